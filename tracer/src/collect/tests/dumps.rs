//! What a dump says is lost, before it and by it.

use super::super::event_drain::EventDrain;
use super::super::only_vcpus::OnlyVcpus;
use super::points::points_at;
use super::*;
use crate::guest::SharedMemory;
use crate::mock::MockMemory;
use crate::ring::geometry::{LIMIT_HOLD, LIMIT_NONE, LIMIT_OFF};
use crate::stub::cell::{LIMIT, LOST};
use crate::target::{MemoryError, PhysicalMemory, WindowMemory};

/// Where a dump of so many rings goes.
fn copy(folder: &Path, rings: u16) -> Output {
    let image = Arc::new(nop_image(FUNCTIONS));
    let stream = Stream::of_functions(rings, WAITING_MAX);
    let metadata = Metadata::default();
    Output::create(&folder.join("copy"), true, &image, metadata, stream).unwrap()
}

/// What ends recording leaves them closed: opened as far as counting goes, they would count.
#[test]
fn calls_of_a_vcpu_that_is_left_out_are_not_lost_whoever_ends_recording() {
    let folder = tempfile::tempdir().unwrap();
    for is_written in [false, true] {
        let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
        let place = SessionMemory {
            halts_left: Some(guest.window().start.wrapping_add(1024)),
            ..place_in(&guest, RecordFormat::Calls, 2, 4096)
        };
        let output = folder.path().join("trace");
        let output = is_written.then_some(&*output);
        let mut polled = reader_at(&guest, &place, output, paged(mock::HOST));
        let call = |vcpu, calls| {
            for _ in 0..calls {
                let is_recorded = guest.call(&place, vcpu, FunctionId(0), NOW).unwrap();
                assert!(!is_recorded);
            }
        };
        let limit = |ring| cell_word(&place, ring, LIMIT);
        let limits = || [0, 1].map(|ring| guest.target().read_word(limit(ring)).unwrap());
        polled.lock().record_only(OnlyVcpus::new(&[0], 2).unwrap());
        polled.lock().switch(true);
        assert_eq!(limits(), [LIMIT_NONE, LIMIT_OFF]);
        // As a stub does, to those that are open.
        guest.target().write_word(limit(0), LIMIT_HOLD).unwrap();
        call(0, 3);
        let lost = |polled: &Polled| {
            let status = polled.lock().status();
            [status[0].discarded, status[1].discarded]
        };
        polled.lock().refresh();
        assert_eq!(lost(&polled), [3, 0]);
        let copy = copy(folder.path(), 2);
        let dump = polled.lock().dumping().begin(copy, false, |_| 0);
        let (dumped, held) = dump.write(|| {});
        let dumped = dumped.unwrap();
        assert_eq!(dumped.lost, 3);
        assert_eq!(
            limits(),
            [LIMIT_NONE, LIMIT_OFF],
            "the other one stays closed"
        );
        let since = polled.lock().dumping().lost_since(&held.unwrap());
        assert_eq!((since, lost(&polled)), (0, [3, 0]));
        // What comes when it is recorded counts.
        polled.lock().record_only(OnlyVcpus::default());
        polled.lock().switch(true);
        guest.target().write_word(limit(1), LIMIT_HOLD).unwrap();
        call(1, 2);
        polled.lock().refresh();
        assert_eq!(lost(&polled), [3, 2]);
        let written = polled.finish().unwrap();
        let told = written.map(|written| written.tally().lost);
        assert_eq!(told, is_written.then_some(5));
        if is_written {
            fs::remove_dir_all(folder.path().join("trace")).unwrap();
        }
    }
}

/// Its rings were read by nobody until the dump was written: a guest filled them meanwhile, and what it called then was lost.
#[test]
fn rings_are_read_and_asked_while_a_dump_of_them_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (guest, place, mut polled) = reader(Some(&folder.path().join("trace")));
    let slots = place.geometry.slots();
    call(&guest, &place, slots);
    let dump = polled
        .lock()
        .dumping()
        .begin(copy(folder.path(), 1), true, |_| 0);
    let mut is_first = true;
    let meanwhile = || {
        if std::mem::take(&mut is_first) {
            // It would wait for itself.
            assert!(polled.drain.is_free());
            assert_eq!(polled.drain.round() as u64, 0, "read as it was copied");
            call(&guest, &place, slots);
            assert_eq!(polled.drain.round() as u64, slots);
        }
    };
    let dumped = dump.write(meanwhile).0.unwrap();
    assert!(!is_first);
    assert_eq!((dumped.records, dumped.lost), (slots, 0));
    let written = polled.finish().unwrap().unwrap();
    let tally = written.tally();
    assert_eq!((tally.calls, tally.lost), (2 * slots, 0));
}

/// Memory of a guest in which one more call is lost whenever somebody looks at the count of those.
#[derive(Debug)]
struct Losing {
    memory: MockMemory,
    counts: Vec<Gpa>,
}

impl PhysicalMemory for Losing {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl WindowMemory for Losing {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_window(at, bytes)
    }
}

impl SharedMemory for Losing {
    fn load(&self, at: Gpa) -> Result<u64, MemoryError> {
        let word = self.memory.load(at)?;
        if !self.counts.contains(&at) {
            return Ok(word);
        }
        self.memory.store(at, word + 1)?;
        Ok(word + 1)
    }

    fn store(&self, at: Gpa, word: u64) -> Result<(), MemoryError> {
        self.memory.store(at, word)
    }

    fn exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, MemoryError> {
        self.memory.exchange(at, old, new)
    }

    fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError> {
        self.memory.copy_words(at, into)
    }

    fn populate(&self, _at: Gpa, _bytes: u64) {}
}

/// A drain of two rings of calls and two of events in such memory, and where their counts are.
fn losing(guest: &MockGuest) -> (Drain, Vec<Gpa>) {
    let place = place_in(guest, RecordFormat::Calls, 2, 4096);
    let events_at = guest.window().start.wrapping_add(1 << 16);
    let lost = u64::from(LOST.unsigned_abs());
    let events = [0, 64].map(|cell| events_at.wrapping_add(cell + lost));
    let calls = [0, 1].map(|ring| cell_word(&place, ring, LOST));
    let counts = [calls, events].concat();
    let memory: Arc<dyn SharedMemory> = Arc::new(Losing {
        memory: guest.memory().clone(),
        counts: counts.clone(),
    });
    let clock = paged(mock::HOST);
    let (_, points): (_, EventDrain) = points_at(events_at, Arc::clone(&memory), 2, 4096, &clock);
    let mut drain = Drain::new(
        SharedRings::new(memory, place.clone()),
        place.geometry,
        Mode::Discard,
        u32::try_from(FUNCTIONS).unwrap(),
        TraceTime {
            run: RunClock::new(0, 1_000_000),
            rings: clock,
        },
        false,
    );
    drain.add_events(points);
    drain.switch(true);
    (drain, counts)
}

/// It was once: calls that were lost in between were in neither count, events in both.
#[test]
fn what_was_lost_before_a_dump_and_by_it_is_all_and_each_once() {
    let folder = tempfile::tempdir().unwrap();
    let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
    let (mut drain, counts) = losing(&guest);
    let copy = copy(folder.path(), 2);
    // Who dumps may have threads to let go meanwhile.
    let mut looked = 0;
    let meanwhile = || looked += 1;
    let dump = drain.dumping().begin(copy, false, |_| 0);
    let (dumped, held) = dump.write(meanwhile);
    let dumped = dumped.unwrap();
    assert!(looked > 0);
    let by_it = drain.dumping().lost_since(&held.unwrap());
    let counted = |at: &Gpa| guest.target().read_word(*at).unwrap();
    let all: u64 = counts.iter().map(counted).sum();
    assert!(dumped.lost >= 4 && by_it >= 4, "{dumped:?} {by_it}");
    assert_eq!(dumped.lost + by_it, all);
}
