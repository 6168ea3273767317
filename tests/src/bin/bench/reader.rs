//! How fast the host reads full rings: records taken out and decoded; looked at for a trigger; and kept, in a trace directory
//! and in a compact trace, by one thread and by two, and how many bytes that takes.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};
use std::time::Instant;

use image::Image;

use terms::addr::Gpa;
use terms::function::FunctionId;
use trace::event::Step;
use trace::export::uftrace::{GRAPH, Metadata};
use trace::live::tail;
use trace::stream::{Stream, StreamOptions, WAITING_MAX};
use tracer::clock::RunClock;
use tracer::clock::page::Beats;
use tracer::collect::SharedDrain;
use tracer::collect::drain::Drain;
use tracer::collect::output::Output;
use tracer::collect::ring_clock::{RingClock, TraceTime};
use tracer::collect::rings::SharedRings;
use tracer::record::{Detail, Format, RECORD_BYTES, Record};
use tracer::ring::geometry::{Geometry, Position};
use tracer::ring::moment::Moment;
use tracer::ring::reader::{CellWord, Delivered, Mode, Patience, RingMemory, RingReader, Sink};
use tracer::ring::timeline::Timeline;
use tracer::session::SessionMemory;
use tracer::target::WindowMemory;
use tracer::tracing::options::StoreKind;
use vmm::clock::{HOST, host_tsc};
use vmm::layout::MIB;
use vmm::memory::{Memory, Ram};

use crate::Failed;
use crate::sample::Samples;
use crate::table::{Row, Target};

/// The ring that `vmm run` makes by default.
const RING_BYTES: u64 = 4 * MIB;
const ROUNDS: u64 = 101;
/// Functions that the records name, in turn.
const FUNCTIONS: u32 = 100;
/// Ticks between two records.
const STEP: u64 = 40;
const KHZ: u32 = 2_600_000;
/// From one cell to the next.
const CELL: u64 = 64;
/// Of a graph: where its stack ends, the bytes from one call to the next inside it, and how deep the calls go.
const STACK_TOP: u64 = 0xffff_8880_0001_0000;
const FRAME: u64 = 48;
const LEVELS: u32 = 6;

/// Rows about reading.
pub fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let mut rows = vec![Row::median(
        "reading and decoding a full ring",
        UNIT,
        &decode()?,
        Target::AtLeast(50.0),
    )];
    for (what, format, occasion) in [
        ("calls", Format::Calls, "nobody"),
        ("a graph", Format::Graph, "* > 1h"),
    ] {
        rows.push(Row::median(
            format!("a full ring of {what}, kept nowhere, for a trigger that does not fire"),
            UNIT,
            &hear(format, occasion)?,
            Target::None,
        ));
    }
    for (what, format, per, most) in [
        ("calls", Format::Calls, 1.0, 4.0),
        ("a graph", Format::Graph, 2.0, 8.0),
    ] {
        let keep = |kind, rings| {
            let name = match kind {
                StoreKind::Uftrace => "directory",
                StoreKind::Compact => "compact",
            };
            keep(&place.join(name), format, kind, rings)
        };
        let directory = keep(StoreKind::Uftrace, 1)?;
        let compact = keep(StoreKind::Compact, 1)?;
        let (two_into_directory, two_into_compact) =
            (keep(StoreKind::Uftrace, 2)?, keep(StoreKind::Compact, 2)?);
        rows.extend([
            Row::median(
                format!("a full ring of {what} into a trace directory"),
                UNIT,
                &directory.rates,
                Target::AtLeast(60.0),
            ),
            Row::median(
                format!("a full ring of {what} into a compact trace"),
                UNIT,
                &compact.rates,
                Target::AtLeast(100.0),
            ),
            Row::median(
                format!("two full rings of {what} into a trace directory, by two threads"),
                UNIT,
                &two_into_directory.rates,
                Target::AtLeast(60.0),
            ),
            Row::median(
                format!("two full rings of {what} into a compact trace, by two threads"),
                UNIT,
                &two_into_compact.rates,
                Target::None,
            ),
        ]);
        for (store, kept, target) in [
            ("a trace directory", &directory, Target::None),
            ("a compact trace", &compact, Target::AtMost(most)),
        ] {
            let bytes = [kept.bytes * per].into_iter().collect();
            let of = if per > 1.0 {
                "an entry and its exit"
            } else {
                "a call"
            };
            let name = format!("{of} in {store}");
            rows.push(Row::median(name, "bytes", &bytes, target));
        }
    }
    Ok(rows)
}

const UNIT: &str = "M records/s";

/// Rings in a machine's memory, filled by hand.
struct Filled {
    memory: Memory,
    rings: SharedRings,
    geometry: Geometry,
    place: SessionMemory,
    head: Position,
    now: u64,
    /// Steps so far of a tree of calls.
    steps: u64,
}

impl Filled {
    fn new(format: Format, count: u16) -> Result<Self, Failed> {
        let all = RING_BYTES * u64::from(count);
        let memory = Ram::create(16, RING_BYTES + 2 * all)?.memory().clone();
        let window = memory.window().start;
        let geometry = Geometry::with_bytes(RING_BYTES)?;
        let details = format.has_details();
        let place = SessionMemory {
            cells: (0..u64::from(count))
                .map(|ring| Gpa(window.0 + ring * CELL))
                .collect(),
            rings: Gpa(window.0 + RING_BYTES),
            format,
            details: details.then_some(Gpa(window.0 + RING_BYTES + all)),
            directory: None,
            room: 2 * all,
            geometry,
            first: vec![geometry.first(); usize::from(count)],
            halts_left: None,
            awaited: None,
        };
        memory.populate(window, RING_BYTES + 2 * all);
        Ok(Self {
            rings: SharedRings::new(Arc::new(memory.clone()), place.clone()),
            memory,
            geometry,
            place,
            head: geometry.first(),
            now: 1 << 40,
            steps: 0,
        })
    }

    /// Writes one lap of records into each ring and moves the heads after them, as stubs would.
    fn fill(&mut self) -> Result<(), Failed> {
        let (now, steps) = (self.now, self.steps);
        for ring in 0..self.rings.count() {
            (self.now, self.steps) = (now, steps);
            self.fill_one(ring)?;
        }
        self.head = self.head.after(self.geometry.slots());
        for ring in 0..self.rings.count() {
            self.rings.store(ring, CellWord::Head, self.head.word(ring));
        }
        Ok(())
    }

    fn fill_one(&mut self, ring: u16) -> Result<(), Failed> {
        let (mut bytes, mut details) = (Vec::new(), Vec::new());
        let spill = self.geometry.spill(self.head.word(ring));
        let mark = self.head.0 / self.geometry.slots();
        for slot in 0..self.geometry.slots() {
            self.now += STEP;
            let mut function = FunctionId(u32::try_from(slot)? % FUNCTIONS);
            if self.place.details.is_some() {
                let (step, depth) = self.step();
                let top = STACK_TOP + u64::from(ring) * (STACK_TOP & STACK_TOP.wrapping_neg());
                let at = top - FRAME * u64::from(depth + 1);
                let word = Detail::new(at, step, mark).0.wrapping_add(spill);
                details.extend(word.to_le_bytes());
                function = FunctionId(depth);
            }
            let record = Record::new(self.now, function, mark).with(spill);
            bytes.extend(record.0.to_le_bytes());
        }
        assert_eq!(bytes.len() as u64, self.geometry.slots() * RECORD_BYTES);
        let start = u64::from(ring) * RING_BYTES;
        let at = |array: Gpa| array.wrapping_add(start);
        self.memory.write_window(at(self.place.rings), &bytes)?;
        if let Some(array) = self.place.details {
            self.memory.write_window(at(array), &details)?;
        }
        Ok(())
    }

    /// The next step of trees of calls, each of which makes two others up to the leaves, and how deep it is.
    fn step(&mut self) -> (Step, u32) {
        let all = 2 * ((1 << LEVELS) - 1);
        let (mut left, mut depth) = (self.steps % all, 0);
        self.steps += 1;
        let mut whole = all;
        loop {
            if left == 0 {
                return (Step::Entry, depth);
            }
            if left == whole - 1 {
                return (Step::Exit, depth);
            }
            (left, whole, depth) = (left - 1, whole / 2 - 1, depth + 1);
            left %= whole;
        }
    }

    /// M records a second, when all of them took so long.
    fn rate(&self, since: Instant) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 2^27 slots")]
        let records = (self.geometry.slots() * u64::from(self.rings.count())) as f64;
        records / since.elapsed().as_secs_f64() / 1e6
    }
}

/// Looks at every record and keeps none.
#[derive(Debug, Default)]
struct Tally {
    records: u64,
    lost: u64,
    sum: u64,
}

impl Sink for Tally {
    fn record(&mut self, record: Delivered) {
        self.records += 1;
        self.sum = self
            .sum
            .wrapping_add(record.ticks ^ u64::from(record.function.0));
    }

    fn lost(&mut self, _ticks: u64, records: u64) {
        self.lost += records;
    }
}

fn decode() -> Result<Samples, Failed> {
    let mut ring = Filled::new(Format::Calls, 1)?;
    let mut reader = RingReader::new(0, ring.geometry, Mode::Overwrite, FUNCTIONS);
    reader.initialise(&ring.rings);
    reader.switch(&ring.rings, true);
    let mut rates = Vec::new();
    let mut tally = Tally::default();
    for _ in 0..ROUNDS {
        ring.fill()?;
        let since = Instant::now();
        reader.look(&ring.rings);
        let timeline = Timeline::of_one(reader.head(), Moment::exact(ring.now));
        reader.drain(&ring.rings, &timeline, Patience::Over, &mut tally);
        rates.push(ring.rate(since));
    }
    let expected = ROUNDS * ring.geometry.slots();
    if tally.records != expected || tally.lost != 0 {
        return Err(format!("{expected} records were written, read: {tally:?}").into());
    }
    std::hint::black_box(tally.sum);
    Ok(rates.into_iter().collect())
}

/// How fast rings were kept, and how many bytes a record takes.
struct Kept {
    rates: Samples,
    bytes: f64,
}

/// As many threads read as there are rings.
fn keep(at: &Path, format: Format, kind: StoreKind, rings: u16) -> Result<Kept, Failed> {
    let mut ring = Filled::new(format, rings)?;
    let output = output(at, format, kind, rings)?;
    let mut drain = drain(&ring, true);
    if let Some(encoding) = output.encodes() {
        drain.encode(&encoding);
    }
    let drain = SharedDrain::new(drain, Some(output));
    let before = taken(at)?;
    let rates = thread::scope(|scope| helped(scope, &drain, rings, || rounds(&drain, &mut ring)))?;
    drain.finish()?;
    let records = ROUNDS * ring.geometry.slots() * u64::from(rings);
    #[expect(clippy::cast_precision_loss, reason = "less than 2^53")]
    let bytes = (taken(at)? - before) as f64 / records as f64;
    std::fs::remove_dir_all(at)?;
    Ok(Kept { rates, bytes })
}

fn drain(ring: &Filled, is_kept: bool) -> Drain {
    let mut drain = Drain::new(
        ring.rings.clone(),
        ring.geometry,
        Mode::Overwrite,
        FUNCTIONS,
        TraceTime {
            run: RunClock::new(0, KHZ),
            rings: RingClock::Page(HOST, Beats::without_end()),
        },
        is_kept,
    );
    drain.switch(true);
    drain
}

/// Nothing is kept: somebody listens, and waits for what never comes.
fn hear(format: Format, occasion: &str) -> Result<Samples, Failed> {
    let mut ring = Filled::new(format, 1)?;
    let (image, options) = (image()?, stream_options(format, 1));
    let stream = Stream::of(&options, &image.functions, WAITING_MAX)?;
    let (_tail, listener) = tail(|| ());
    let mut drain = drain(&ring, false);
    let listener = listener.of(occasion.parse()?, 1);
    drain.listen(listener, |live| {
        Ok::<_, Failed>(Output::told(&image, stream, live))
    })?;
    rounds(&SharedDrain::new(drain, None), &mut ring)
}

/// How fast full rings are read, again and again.
fn rounds(drain: &SharedDrain, ring: &mut Filled) -> Result<Samples, Failed> {
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        ring.now = host_tsc() - ring.geometry.slots() * STEP;
        ring.fill()?;
        let since = Instant::now();
        drain.round();
        rates.push(ring.rate(since));
    }
    Ok(rates.into_iter().collect())
}

/// Does that while one thread less than there are `rings` helps to read.
fn helped<'scope, T>(
    scope: &'scope Scope<'scope, '_>,
    drain: &'scope SharedDrain,
    rings: u16,
    read: impl FnOnce() -> T,
) -> T {
    let helper = || {
        let (knock, knocked) = channel::<bool>();
        scope.spawn(move || {
            while knocked.recv() == Ok(true) {
                drain.help();
            }
        });
        knock
    };
    let helpers: Vec<_> = (1..rings).map(|_| helper()).collect();
    let all = helpers.clone();
    let tell = |helpers: &[Sender<bool>], goes_on| {
        for helper in helpers {
            // It is there until it is told to end.
            let _ = helper.send(goes_on);
        }
    };
    drain.on_much(Box::new(move || tell(&all, true)));
    let read = read();
    tell(&helpers, false);
    read
}

fn image() -> Result<Arc<Image>, Failed> {
    Ok(Arc::new(Image::parse(&std::fs::read(tests::guest())?)?))
}

fn stream_options(format: Format, rings: u16) -> StreamOptions {
    let stack_bytes = STACK_TOP & STACK_TOP.wrapping_neg();
    StreamOptions {
        rings,
        stack_bytes: format.is_graph().then_some(stack_bytes),
        ..StreamOptions::default()
    }
}

fn output(at: &Path, format: Format, kind: StoreKind, rings: u16) -> Result<Output, Failed> {
    let (image, options) = (image()?, stream_options(format, rings));
    let metadata = Metadata {
        vcpus: rings,
        tsc_khz: KHZ.into(),
        tracer: options.stack_bytes.map_or("function", |_| GRAPH).into(),
        stack_bytes: options.stack_bytes.unwrap_or_default(),
        ..Metadata::default()
    };
    let stream = Stream::of(&options, &image.functions, WAITING_MAX)?;
    Ok(match kind {
        StoreKind::Uftrace => Output::create(at, true, &image, metadata, stream)?,
        StoreKind::Compact => Output::record(at, true, &image, metadata, &options, stream)?,
    })
}

/// The bytes of a directory's files.
fn taken(at: &Path) -> Result<u64, Failed> {
    let mut bytes = 0;
    for file in std::fs::read_dir(at)? {
        bytes += file?.metadata()?.len();
    }
    Ok(bytes)
}
