//! How fast the host reads a full ring: records taken out and decoded, and the same with each of
//! them written to a trace directory.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use image::Image;

use terms::addr::Gpa;
use terms::function::FunctionId;
use trace::export::uftrace::Metadata;
use trace::stream::{Stream, WAITING_MAX};
use tracer::clock::RunClock;
use tracer::collect::SharedDrain;
use tracer::collect::drain::Drain;
use tracer::collect::looks::RingClock;
use tracer::collect::output::Output;
use tracer::collect::rings::SharedRings;
use tracer::record::{Format, RECORD_BYTES, Record};
use tracer::ring::geometry::{Geometry, Position};
use tracer::ring::moment::Moment;
use tracer::ring::reader::{CellWord, Delivered, Mode, Patience, RingMemory, RingReader, Sink};
use tracer::ring::timeline::Timeline;
use tracer::session::SessionMemory;
use tracer::target::WindowMemory;
use vmm::clock::{HOST, host_tsc};
use vmm::layout::MIB;
use vmm::memory::{Memory, Ram};

use crate::Failed;
use crate::sample::Samples;
use crate::table::{Row, Target};

/// The ring that `vmm run` makes by default.
const RING_BYTES: u64 = 4 * MIB;
const ROUNDS: u64 = 21;
/// Functions that the records name, in turn.
const FUNCTIONS: u32 = 100;
/// Ticks between two records.
const STEP: u64 = 40;
const KHZ: u32 = 2_600_000;

/// Rows about reading.
pub fn rows(place: &Path) -> Result<Vec<Row>, Failed> {
    let decoded = decode()?;
    let streamed = stream(place)?;
    Ok(vec![
        Row::median(
            "reading and decoding a full ring",
            "M records/s",
            &decoded,
            Target::AtLeast(50.0),
        ),
        Row::median(
            "the same into a trace directory",
            "M records/s",
            &streamed,
            Target::None,
        ),
    ])
}

/// One ring in a machine's memory, filled by hand.
struct Ring {
    memory: Memory,
    rings: SharedRings,
    geometry: Geometry,
    place: SessionMemory,
    head: Position,
    now: u64,
}

impl Ring {
    fn new() -> Result<Self, Failed> {
        let memory = Ram::create(16, 2 * RING_BYTES)?.memory().clone();
        let window = memory.window().start;
        let geometry = Geometry::with_bytes(RING_BYTES)?;
        let place = SessionMemory {
            cells: vec![window],
            rings: Gpa(window.0 + RING_BYTES),
            format: Format::Calls,
            details: None,
            directory: None,
            room: geometry.bytes(),
            geometry,
            first: vec![geometry.first()],
        };
        memory.populate(window, 2 * RING_BYTES);
        Ok(Self {
            rings: SharedRings::new(Arc::new(memory.clone()), place.clone()),
            memory,
            geometry,
            place,
            head: geometry.first(),
            now: 1 << 40,
        })
    }

    /// Writes one lap of records and moves the head after them, as stubs would.
    fn fill(&mut self) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        for slot in 0..self.geometry.slots() {
            self.now += STEP;
            let function = FunctionId(u32::try_from(slot)? % FUNCTIONS);
            let mark = self.head.0 / self.geometry.slots();
            let record = Record::new(self.now, function, mark);
            let record = record.with(self.geometry.spill(self.head.word(0)));
            bytes.extend(record.0.to_le_bytes());
        }
        assert_eq!(bytes.len() as u64, self.geometry.slots() * RECORD_BYTES);
        self.memory.write_window(self.place.rings, &bytes)?;
        self.head = self.head.after(self.geometry.slots());
        self.rings.store(0, CellWord::Head, self.head.word(0));
        Ok(())
    }

    /// M records a second, when all of them took so long.
    fn rate(&self, since: Instant) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 2^27 slots")]
        let records = self.geometry.slots() as f64;
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
    let mut ring = Ring::new()?;
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

fn stream(place: &Path) -> Result<Samples, Failed> {
    let mut ring = Ring::new()?;
    let image = Arc::new(Image::parse(&std::fs::read(tests::guest())?)?);
    let metadata = Metadata {
        vcpus: 1,
        tsc_khz: KHZ.into(),
        ..Metadata::default()
    };
    let functions = Stream::of_functions(1, WAITING_MAX);
    let output = Output::create(&place.join("stream"), true, &image, metadata, functions)?;
    let clock = RunClock::new(0, KHZ);
    let mut drain = Drain::new(
        ring.rings.clone(),
        ring.geometry,
        Mode::Overwrite,
        FUNCTIONS,
        clock,
        RingClock::Host(HOST),
        true,
    );
    drain.switch(true);
    let drain = SharedDrain::new(drain, Some(output));
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        ring.now = host_tsc() - ring.geometry.slots() * STEP;
        ring.fill()?;
        let since = Instant::now();
        drain.round();
        rates.push(ring.rate(since));
    }
    drain.finish()?;
    Ok(rates.into_iter().collect())
}
