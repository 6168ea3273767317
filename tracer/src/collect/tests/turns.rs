//! Who asks, and who wants a round, beside who polls.

use std::cell::RefCell;
use std::sync::mpsc::RecvTimeoutError;

use super::super::awaited::rounds_of_others;
use super::*;

/// Locks are not fair: who polls without a pause would have the reader again before anybody who waits for it.
#[test]
fn who_asks_comes_before_who_polls() {
    for _ in 0..200 {
        let folder = tempfile::tempdir().unwrap();
        let (guest, place, polled) = reader(Some(&folder.path().join("trace")));
        call(&guest, &place, CALLS);
        let first = polled.lock();
        thread::scope(|scope| {
            let drain = &polled.drain;
            let poller = scope.spawn(|| drain.round());
            // It has come as far as the reader, or nearly.
            wait_until(|| drain.rounds.begin_when_free().is_none());
            let asked = scope.spawn(|| drain.ask().status()[0].read);
            wait_until(|| drain.asking.load(SeqCst) == 2);
            drop(first);
            assert_eq!(asked.join().unwrap(), 0, "read before who had asked");
            assert_eq!(poller.join().unwrap() as u64, CALLS);
        });
    }
}

/// It once waited until it found nobody making a round, for many seconds beside a guest that records without a rest.
#[test]
fn who_wants_a_round_out_of_turn_has_it_although_one_follows_the_other() {
    let (_guest, _place, polled) = reader(None);
    thread::scope(|scope| {
        let mut round = polled.drain.rounds.begin();
        let drain = &polled.drain;
        let asked = scope.spawn(|| rounds_of_others(&[drain], u32::MAX) == [true]);
        let has_it = comes(|| {
            round.again();
            asked.is_finished()
        });
        drop(round);
        assert!(has_it, "a whole round was not enough");
        assert!(asked.join().unwrap());
    });
}

thread_local! {
    /// How often this thread has rested.
    static RESTS: Cell<u32> = const { Cell::new(0) };
    /// A round of this one is made meanwhile.
    static MADE: RefCell<Option<Arc<SharedDrain>>> = const { RefCell::new(None) };
}

/// Counts rests, and has a round made in the second.
const RESTED: HostClock = HostClock {
    rest: |_| {
        RESTS.set(RESTS.get() + 1);
        if RESTS.get() == 2 {
            MADE.with_borrow(|drain| drain.as_ref().map(|drain| drain.round()));
        }
    },
    ..mock::HOST
};

/// At the end of a run each was waited for after the others, and each for five seconds where the disk took nothing.
#[test]
fn rounds_of_several_readers_are_waited_for_together() {
    const LOOKS: u32 = 7;
    let readers = [(); 3].map(|()| reader_by(None, paged(RESTED)));
    let drains = readers.each_ref().map(|(.., polled)| &*polled.drain);
    assert_eq!(rounds_of_others(&drains, LOOKS), [false; 3]);
    assert_eq!(RESTS.take(), LOOKS, "no more than for one");
    MADE.set(Some(Arc::clone(&readers[1].2.drain)));
    assert_eq!(rounds_of_others(&drains, LOOKS), [false, true, false]);
    assert_eq!(RESTS.take(), LOOKS);
    assert_eq!(rounds_of_others(&drains[1..2], LOOKS), [true]);
    assert_eq!(RESTS.take(), 2, "and no longer than it takes");
    assert!(rounds_of_others(&[], LOOKS).is_empty());
    MADE.take();
}

/// Somebody polls, and is away just now.
#[derive(Debug)]
struct Away;

impl Poller for Away {
    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, _: &dyn Fn() -> bool) -> bool {
        last();
        true
    }
}

/// It made the round itself once where nobody was making one, and was away for as long as the disk was.
#[test]
fn who_wants_a_round_writes_nothing_itself_and_does_not_wait_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled) = reader(Some(&output));
    polled.poller = Some(Box::new(Away));
    let stuck = output.join("exotrace.json.new");
    pipe(&stuck);
    call(&guest, &place, CALLS);
    polled.lock().describe(Metadata::default());
    let (tell, told) = channel::<()>();
    let has_it = thread::scope(|scope| {
        let stuck = &stuck;
        scope.spawn(move || {
            // Else this would never end.
            if told.recv_timeout(NEVER) == Err(RecvTimeoutError::Timeout) {
                let mut taken = File::open(stuck).unwrap();
                taken.read_to_end(&mut Vec::new()).unwrap();
            }
        });
        let has_it = polled.round();
        drop(tell);
        has_it
    });
    assert!(!has_it, "nobody has made one");
    assert!(polled.told().busy_since.is_none());
    fs::remove_file(&stuck).unwrap();
    assert_eq!(polled.finish().unwrap().unwrap().tally().calls, CALLS);
}
