//! Events, whose values can be a hundred times what the guest has written for them.

use image::Image;
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::{Field, FieldType};

use super::super::event_drain::EventDrain;
use super::super::only_vcpus::OnlyVcpus;
use super::super::rooms::Rooms;
use super::*;
use crate::event_formats::EventFormats;
use crate::module::Module;
use crate::ring::payload::PAYLOAD_SHIFT;
use crate::session::SessionEvents;
use crate::stack::{CopiedStack, StackReader, Unwind, Walked};
use crate::stub::cell::CellPlace;
use crate::stub::event::EventRecorder;
use crate::stub::halt::Halts;
use crate::stub::recorder::{Clock, Recorder};
use crate::target::PhysicalMemory;

/// Callers of each hit.
const DEPTH: u64 = 1000;
/// Words that a stub writes of a stack of which nothing was copied.
const WORDS: u64 = 7;
const PAYLOAD_LOG2: u32 = 6;

/// All stacks are as deep.
#[derive(Debug)]
struct Deep;

impl Unwind for Deep {
    fn walk(&self, stack: &CopiedStack) -> Walked {
        Walked {
            addresses: (0..DEPTH).map(|depth| Gva(stack.at.0 + depth)).collect(),
            is_whole: true,
        }
    }

    fn with(&self, _: &dyn PhysicalMemory, _: &[Module]) -> Arc<dyn Unwind> {
        Arc::new(Self)
    }
}

/// Event rings of so many bytes each, of one event that has a stack, and their reader.
fn points(
    guest: &MockGuest,
    rings: u16,
    bytes: u64,
    clock: &RingClock,
) -> (SessionEvents, EventDrain) {
    let window = guest.window().start;
    let memory = Arc::new(guest.memory().clone());
    points_at(window, memory, rings, bytes, clock)
}

/// The same from this address on.
pub(super) fn points_at(
    window: Gpa,
    memory: Arc<dyn crate::guest::SharedMemory>,
    rings: u16,
    bytes: u64,
    clock: &RingClock,
) -> (SessionEvents, EventDrain) {
    let geometry = Geometry::with_bytes(bytes).unwrap();
    let all = bytes * u64::from(rings);
    let place = SessionMemory {
        cells: (0..u64::from(rings))
            .map(|ring| window.wrapping_add(ring * 64))
            .collect(),
        rings: window.wrapping_add(4096),
        format: RecordFormat::Calls,
        details: None,
        directory: None,
        room: all,
        geometry,
        first: vec![geometry.first(); usize::from(rings)],
        halts_left: None,
        awaited: None,
    };
    let recorder = Recorder {
        cell: CellPlace::Fixed(Gva(0)),
        rings: Gva(0),
        format: RecordFormat::Calls,
        details: None,
        geometry,
        clock: Clock::Tsc,
        halts: Halts::default(),
        waits: None,
        tasks: None,
    };
    let place = SessionEvents {
        memory: place,
        recorder: EventRecorder {
            recorder,
            payload: Gva(0),
            payload_log2: PAYLOAD_LOG2,
        },
        payload: window.wrapping_add(4096 + all),
    };
    let image: Arc<Image> = Arc::new(nop_image(FUNCTIONS));
    let mut formats = EventFormats::default();
    let field = Field {
        name: "stack".into(),
        kind: FieldType::stack(0),
    };
    let format = EventFormat::new("deep".into(), vec![field]);
    formats.add(Arc::new(format)).unwrap();
    let unwind = Arc::new(Deep);
    formats.read_stacks_by(StackReader { unwind, image });
    let mut drain = EventDrain::new(memory, &place, Mode::Overwrite, &Arc::new(formats), clock);
    drain.switch(true, &OnlyVcpus::default());
    (place, drain)
}

/// Some are of an event that there is not.
fn hit(guest: &MockGuest, place: &SessionEvents, vcpu: u16, hits: Range<u64>) {
    let slots = place.memory.geometry.slots();
    for hit in hits {
        let ring = u64::from(vcpu) * slots;
        let payload = place
            .payload
            .wrapping_add((ring + hit % slots) << PAYLOAD_LOG2);
        let mark = 1 + hit / slots;
        for word in 0..WORDS {
            let value = u64::from(word == 1) << PAYLOAD_SHIFT | mark;
            let at = payload.wrapping_add(word * 8);
            guest.target().write_word(at, value).unwrap();
        }
        let ticks = NOW - 1_000_000 + hit;
        let event = FunctionId(u32::from(hit % 64 == 63));
        assert!(guest.call(&place.memory, vcpu, event, ticks).unwrap());
    }
}

/// It was once: all that a ring held was made of names at once, a gigabyte of each vCPU of a guest that wants that.
#[test]
fn values_that_are_many_are_read_in_parts() {
    const HITS: u64 = 4000;
    let guest = MockGuest::new(MockTarget::new(1, 4 << 20));
    let (place, mut points) = points(&guest, 2, 1 << 16, &paged(mock::HOST));
    let (clock, rooms) = (RunClock::new(0, 1_000_000), Rooms::default());
    hit(&guest, &place, 0, 0..HITS);
    hit(&guest, &place, 1, 0..10);
    let (mut count, mut parts) = (0, 0);
    loop {
        let mut backlog = Backlog::default();
        let read = points.read(Patience::Ticks(1), &clock, &rooms, Some(&mut backlog));
        let batches: Vec<_> = backlog.drain().collect();
        let bytes: usize = batches.iter().map(|batch| batch.values).sum();
        assert!(bytes < 64 << 20, "{bytes} at a time");
        assert_eq!(batches[0].looked_ns.is_none(), read.is_left);
        assert!(batches[1].looked_ns.is_some());
        count += read.count;
        parts += 1;
        if !read.is_left {
            break;
        }
        // What comes meanwhile is for the next round.
        assert!(parts < 20);
        hit(
            &guest,
            &place,
            0,
            HITS + parts * 10..HITS + (parts + 1) * 10,
        );
    }
    assert!(parts > 2, "{parts}");
    assert!(count as u64 == HITS + 10, "{count}");
}

/// A record has the time of the page's last beat: a page that stands still would have had it come after what was passed on.
#[test]
fn what_comes_of_events_is_later_than_the_last_beat_of_the_page() {
    let guest = MockGuest::new(MockTarget::new(1, 4 << 20));
    let beats = Arc::new(Beats::default());
    let clock = RingClock::Page(mock::HOST, Arc::clone(&beats));
    let (_, mut points) = points(&guest, 1, 1 << 16, &clock);
    let (clock, rooms) = (RunClock::new(0, 1_000_000), Rooms::default());
    for (beat, looked) in [(NOW - 500, NOW - 500), (NOW, NOW), (NOW + 500, NOW)] {
        beats.beat(beat, 1, |_, _| ());
        let mut backlog = Backlog::default();
        points.read(Patience::Over, &clock, &rooms, Some(&mut backlog));
        let batch = backlog.drain().next().unwrap();
        assert_eq!(batch.looked_ns, Some(clock.nanoseconds(looked)));
    }
}

/// Nothing is put together out of events: one that comes late has no other time for that.
#[test]
fn an_event_that_was_passed_over_has_its_own_time() {
    let guest = MockGuest::new(MockTarget::new(1, 4 << 20));
    let (place, mut points) = points(&guest, 1, 1 << 16, &paged(TICKING));
    let (clock, rooms) = (RunClock::new(0, 1_000_000), Rooms::default());
    TICKS.set(NOW);
    let slot = reserve(&guest, &place.memory);
    hit(&guest, &place, 0, 1..4);
    let mut read = || {
        let mut backlog = Backlog::default();
        points.read(Patience::Ticks(0), &clock, &rooms, Some(&mut backlog));
        let rows = backlog
            .drain()
            .flat_map(|batch| batch.records.into_rows(Vec::new()));
        rows.map(|row| row.time_ns - (NOW - 1_000_000))
            .collect::<Vec<_>>()
    };
    assert_eq!(read(), [1, 2, 3]);
    comes_late(&guest, &place.memory, slot, || hit(&guest, &place, 0, 0..1));
    hit(&guest, &place, 0, 4..5);
    assert_eq!(read(), [0, 4]);
}
