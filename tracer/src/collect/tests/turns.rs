//! Who asks, and who wants a round, beside who polls.

use std::sync::mpsc::RecvTimeoutError;

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
        let asked = scope.spawn(|| drain.round_of_others(u32::MAX));
        let has_it = comes(|| {
            round.again();
            asked.is_finished()
        });
        drop(round);
        assert!(has_it, "a whole round was not enough");
        assert!(asked.join().unwrap());
    });
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
