//! The words of rings and cells as a guest makes them up, through the readers and the graph to calls. Whatever they say,
//! the readers end, a thread's calls are well nested and never go back in time, and what goes in comes out or is counted.

use std::cell::RefCell;
use std::collections::HashMap;

use terms::function::FunctionId;
use trace::event::{
    CallValues, Event, EventKind, Moment, Record as Brought, RecordKind, Sink as Events, Step,
};
use trace::stream::{Origin, Pass, Stream};
use tracer::record::{Detail, Format, Record};
use tracer::ring::geometry::{Geometry, Position};
use tracer::ring::reader::{CellWord, Delivered, Mode, Patience, RingMemory, RingReader, Sink};
use tracer::ring::snapshot::Snapshot;
use tracer::ring::timeline::Timeline;
use tracer::stub::mirror::stacks::Stacks;

use super::input::Input;

const FUNCTIONS: u32 = 16;
const BYTES: u64 = 4096;
const SLOTS: usize = 512;
const RINGS: u16 = 2;

/// Two rings, which the input writes to.
#[derive(Default)]
struct Memory {
    cells: RefCell<[[u64; 3]; RINGS as usize]>,
    slots: RefCell<Vec<[u64; 2]>>,
    copied: RefCell<usize>,
}

impl Memory {
    fn put(&self, ring: u16, slot: u64, words: [u64; 2]) {
        let slot = usize::try_from(slot).unwrap_or_default() % SLOTS;
        self.slots.borrow_mut()[usize::from(ring) * SLOTS + slot] = words;
    }

    fn column(&self, ring: u16, slot: u64, into: &mut [u64], column: usize) {
        let slot = usize::try_from(slot).expect("a slot");
        assert!(slot + into.len() <= SLOTS, "past the ring's end");
        *self.copied.borrow_mut() += into.len();
        let slots = self.slots.borrow();
        for (word, found) in into
            .iter_mut()
            .zip(&slots[usize::from(ring) * SLOTS + slot..])
        {
            *word = found[column];
        }
    }
}

impl RingMemory for Memory {
    fn load(&self, ring: u16, word: CellWord) -> u64 {
        self.cells.borrow()[usize::from(ring)][word as usize]
    }

    fn store(&self, ring: u16, word: CellWord, value: u64) {
        self.cells.borrow_mut()[usize::from(ring)][word as usize] = value;
    }

    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]) {
        self.column(ring, slot, into, 0);
    }

    fn copy_details(&self, ring: u16, slot: u64, into: &mut [u64]) {
        self.column(ring, slot, into, 1);
    }
}

/// One ring's way into the graph.
struct Lane<'a> {
    ring: u16,
    last_ticks: u64,
    is_late: bool,
    lost: u64,
    events: u64,
    stacks: &'a mut Stacks,
    is_untimed: bool,
    stream: &'a mut Stream,
    now: u64,
}

impl Lane<'_> {
    fn push(&mut self, ticks: u64, kind: RecordKind) {
        let time_ns = ticks;
        let brought = vec![Brought { time_ns, kind }];
        let rings = self.stream.rings();
        rings.push(Origin::Calls(self.ring), brought, self.now);
    }
}

impl Sink for Lane<'_> {
    fn record(&mut self, record: Delivered) {
        // One that comes late has its own time where nothing is put together.
        let has_own_time = std::mem::take(&mut self.is_late) && record.beside.step().is_none();
        assert!(record.function.0 < FUNCTIONS);
        assert!(has_own_time || record.ticks >= self.last_ticks);
        self.last_ticks = self.last_ticks.max(record.ticks);
        self.events += 1;
        let Some((step, slot)) = record.beside.step() else {
            return;
        };
        let slot = match self.is_untimed {
            true => self.stacks.whole(slot, Vec::new),
            false => slot,
        };
        assert_eq!(slot % 8, 0);
        let function = record.function;
        self.push(
            record.ticks,
            RecordKind::Graph {
                function,
                step,
                slot,
            },
        );
    }

    fn lost(&mut self, ticks: u64, records: u64) {
        self.lost = self.lost.saturating_add(records);
        self.push(ticks, RecordKind::Lost(records));
    }

    fn late(&mut self) {
        self.is_late = true;
        self.push(self.last_ticks, RecordKind::Lost(0));
    }
}

/// Looks at what comes out.
#[derive(Default)]
struct Checked {
    threads: HashMap<u32, (u64, Vec<FunctionId>)>,
}

impl Events for Checked {
    fn event(&mut self, event: Event) {
        let (last, open) = self.threads.entry(event.thread).or_default();
        assert!(event.time_ns >= *last, "back in time: {event:?}");
        *last = event.time_ns;
        match event.kind {
            EventKind::Entry(function) => {
                assert_eq!(event.depth as usize, open.len(), "{event:?}");
                open.push(function);
            }
            EventKind::Exit {
                function, duration, ..
            } => {
                assert_eq!(open.pop(), Some(function), "{event:?}");
                assert_eq!(event.depth as usize, open.len(), "{event:?}");
                assert!(duration.is_none_or(|duration| duration <= event.time_ns));
            }
            _ => assert_eq!(event.depth as usize, open.len(), "{event:?}"),
        }
    }
}

fn looked_at(now: u64) -> tracer::ring::moment::Moment {
    tracer::ring::moment::Moment::exact(now)
}

struct Host {
    geometry: Geometry,
    format: Format,
    memory: Memory,
    readers: Vec<(RingReader, Timeline, Stacks)>,
    stream: Stream,
    sink: Checked,
    now: u64,
    said: u64,
}

impl Host {
    fn new(input: &mut Input<'_>) -> Self {
        let geometry = Geometry::with_bytes(BYTES).expect("a ring");
        let choice = input.byte();
        let format = [
            Format::Graph,
            Format::GraphUntimed,
            Format::Graph,
            Format::Calls,
        ][usize::from(choice & 3)];
        let mode = if choice & 4 == 0 {
            Mode::Discard
        } else {
            Mode::Overwrite
        };
        let memory = Memory::default();
        memory
            .slots
            .borrow_mut()
            .resize(SLOTS * usize::from(RINGS), [0; 2]);
        let waiting = if choice & 8 == 0 { 1 << 20 } else { 8 };
        let stack = 4096 << (choice >> 4 & 7);
        let stream = Stream::of_graph(RINGS, stack, waiting).expect("a size");
        let stream = stream.with_values();
        let reader = |ring| {
            let mut reader = RingReader::new(ring, geometry, mode, FUNCTIONS).of(format);
            reader.initialise(&memory);
            reader.switch(&memory, true);
            (reader, Timeline::begun(looked_at(0)), Stacks::default())
        };
        let readers = (0..RINGS).map(reader).collect();
        let sink = Checked::default();
        let mut host = Self {
            geometry,
            format,
            memory,
            readers,
            stream,
            sink,
            now: 1 << 36,
            said: 0,
        };
        host.stream.expect_values(FunctionId(1), Moment::Entry);
        host.stream.expect_values(FunctionId(1), Moment::Exit);
        host
    }

    /// A record where a stub would write one, wrong in what `flaws` says.
    fn record(&mut self, ring: u16, input: &mut Input<'_>, flaws: u8) {
        let head = self.memory.load(ring, CellWord::Head);
        let position = Position::of_word(head, ring).unwrap_or(self.geometry.first());
        let [function, step, slot] = [input.byte(), input.byte(), input.byte()];
        let late = if flaws & 1 == 0 {
            0
        } else {
            u64::from(input.byte())
        };
        let lap = (position.0 / self.geometry.slots()).wrapping_sub(late);
        let stack = 0xffff_c900_0000_0000 | u64::from(step >> 2) << 14 | u64::from(slot) << 4;
        let step = [Step::Entry, Step::Exit, Step::Tail, Step::Unhooked][usize::from(step & 3)];
        let function = FunctionId((function % 20).into());
        let time = if flaws & 2 == 0 {
            self.now
        } else {
            input.word()
        };
        let spill = self.geometry.spill(position.word(ring));
        let (record, detail) = match self.format {
            Format::GraphUntimed => {
                let word = (stack & ((1 << 36) - 1)) | step as u64;
                (Record::new(word, function, lap), 0)
            }
            _ => {
                let detail = Detail::new(stack, step, if flaws & 4 == 0 { lap } else { 0 });
                (
                    Record::new(time, function, lap),
                    detail.0.wrapping_add(spill),
                )
            }
        };
        let slot = self.geometry.slot(position);
        if flaws & 8 == 0 {
            self.memory.put(ring, slot, [record.with(spill).0, detail]);
        }
        if flaws & 16 == 0 {
            let function = FunctionId(function.0 % FUNCTIONS);
            let moment = if step == Step::Exit {
                Moment::Exit
            } else {
                Moment::Entry
            };
            let call = CallValues {
                function,
                moment,
                slot: stack,
                values: [].into(),
            };
            let (time_ns, kind) = (time, RecordKind::Captured(Box::new(call)));
            let brought = vec![Brought { time_ns, kind }];
            self.stream.rings().push(Origin::Points(ring), brought, 0);
        }
        let next = position.after(1).word(ring);
        self.memory.store(ring, CellWord::Head, next);
    }

    fn poll(&mut self, ring: u16, patience: Patience) {
        let (reader, timeline, stacks) = &mut self.readers[usize::from(ring)];
        let before = self.now;
        let head = reader.look(&self.memory);
        timeline.look(
            head,
            looked_at(self.now),
            Position(head.0.saturating_sub(self.geometry.slots())),
        );
        stacks.begin_round();
        let mut lane = Lane {
            ring,
            last_ticks: 0,
            is_late: false,
            lost: 0,
            events: 0,
            stacks,
            is_untimed: self.format == Format::GraphUntimed,
            stream: &mut self.stream,
            now: self.now,
        };
        *self.memory.copied.borrow_mut() = 0;
        let was = (reader.delivered(), reader.losses().records());
        reader.drain(&self.memory, timeline, patience, &mut lane);
        // Words and details: a lap, what was waited for, and a batch to find that it must wait.
        assert!(*self.memory.copied.borrow() <= 6 * SLOTS + 2048);
        assert_eq!(lane.events, reader.delivered() - was.0);
        // A count that the guest makes up goes up to the largest number and stays there.
        let lost = reader.losses().records();
        assert!(lost == u64::MAX || lane.lost == lost - was.1);
        self.said += lane.events;
        if reader.is_drained_to(reader.head()) {
            self.stream.rings().looked(Origin::Calls(ring), before);
            self.stream.rings().looked(Origin::Points(ring), before);
        }
        self.stream.pass_on(Pass::Round, &mut self.sink);
    }

    /// What a dump would show.
    fn dump(&self, ring: u16) {
        let (reader, timeline, _) = &self.readers[usize::from(ring)];
        let snapshot = Snapshot {
            ring,
            geometry: self.geometry,
            first: reader.first(),
            head: reader.head(),
            functions: FUNCTIONS,
            format: self.format,
            is_timed: self.format != Format::GraphUntimed,
            timeline,
        };
        let mut counted = Counted::default();
        snapshot.deliver(&self.memory, &mut counted);
        assert_eq!(counted.0, reader.reserved());
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let action = input.byte();
        let ring = u16::from(action >> 7) % RINGS;
        match action & 0x0f {
            0..=6 => self.record(ring, input, 0x10),
            7 => self.record(ring, input, 0),
            8 => {
                let flaws = input.byte();
                self.record(ring, input, flaws);
            }
            9 => self
                .memory
                .put(ring, input.half().into(), [input.word(), input.word()]),
            10 => {
                let words = [
                    CellWord::Head,
                    CellWord::Limit,
                    CellWord::Lost,
                    CellWord::Lost,
                ];
                self.memory
                    .store(ring, words[usize::from(action >> 4 & 3)], input.word());
            }
            11 => {
                self.now = self
                    .now
                    .saturating_add(input.word() >> ((action >> 4 & 7) * 8))
            }
            12 => self.dump(ring),
            13 => self.poll(ring, Patience::Ticks(u64::MAX)),
            _ => self.poll(ring, Patience::Ticks(input.byte().into())),
        }
        self.now = self.now.saturating_add(10);
    }
}

/// How many records were delivered or said to be lost.
#[derive(Default)]
struct Counted(u64);

impl Sink for Counted {
    fn record(&mut self, _: Delivered) {
        self.0 += 1;
    }

    fn lost(&mut self, _: u64, records: u64) {
        self.0 += records;
    }
}

/// Everything that the input says happens, then the end.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mut host = Host::new(&mut input);
    while !input.is_empty() {
        host.act(&mut input);
    }
    for ring in 0..RINGS {
        host.poll(ring, Patience::Over);
    }
    host.stream.finish(&mut host.sink);
}

/// Calls on two rings and stacks; a loss, a late writer, values; the same without times.
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = |ring: u8, function: u8, slot: u8| [ring << 7, function, ring << 2, slot];
    let exit = |ring: u8, function: u8, slot: u8| [ring << 7, function, ring << 2 | 1, slot];
    let calls = [
        entry(0, 1, 200),
        entry(0, 2, 190),
        entry(1, 1, 100),
        exit(0, 2, 190),
        [0, 3, 2, 200],
        exit(0, 1, 200),
        exit(1, 1, 100),
    ]
    .concat();
    let polls = [0x0e, 0, 0x8e, 0, 0x0c];
    let lost = [&[0x2a, 3][..], &[0; 7], &[8, 8, 1, 2, 180, 0, 1, 1, 170]].concat();
    let values = [7, 1, 0, 150, 7, 1, 1, 150];
    let more = [&calls[..], &polls, &lost, &polls, &values, &calls, &polls].concat();
    [0u8, 1, 4, 8 | 5]
        .map(|choice| [&[choice][..], &more].concat())
        .to_vec()
}
