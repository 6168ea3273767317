//! A session is stopped, or ends, while a vCPU waits for its reader.

use std::cell::Cell;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::mpsc::Sender;

use super::*;
use crate::waits::Waits;
use crate::waits::tests::Woken;
use wait_drain::OnFull;

/// A guest with one ring, its reader, and where its vCPU waits for that.
fn waited_for(output: &Path) -> (MockGuest, SessionMemory, Polled, Waits) {
    let (guest, place, polled) = reader_by(Some(output), paged(RESTED));
    let waits = Waits::new(
        Arc::new(VcpuClocks::new(1, mock::HOST)),
        Arc::new(Woken::default()),
    );
    let room = waits.open(Gpa(0), 0, 1, false);
    polled.lock().wait_in(room, OnFull::Discard);
    (guest, place, polled, waits)
}

/// Has its disk take nothing when it is to write next: a pipe that nobody reads.
fn stuck(guest: &MockGuest, place: &SessionMemory, polled: &Polled, output: &Path) -> PathBuf {
    let stuck = output.join("exotrace.json.new");
    pipe(&stuck);
    call(guest, place, CALLS);
    polled.lock().describe(Metadata::default());
    stuck
}

thread_local! {
    /// How often this thread has rested.
    static RESTS: Cell<u32> = const { Cell::new(0) };
}

/// Counts them.
const RESTED: HostClock = HostClock {
    rest: |_| RESTS.set(RESTS.get() + 1),
    ..mock::HOST
};

/// At the end of a run who has begun a record has time to write it: as long as somebody has, and no longer than is bounded.
#[test]
fn a_record_that_is_begun_is_waited_for_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled) = reader_by(Some(&output), paged(RESTED));
    call(&guest, &place, CALLS);
    polled.lock().switch(false);
    let mut rounds = LET_GO_ROUNDS;
    polled.complete(&mut rounds);
    assert_eq!(RESTS.get(), 0, "all is there");
    reserve(&guest, &place);
    polled.complete(&mut rounds);
    assert_eq!(RESTS.get(), LET_GO_ROUNDS.end - 1, "what is left of them");
    polled.complete(&mut rounds);
    assert_eq!(RESTS.get(), LET_GO_ROUNDS.end - 1);
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, CALLS);
    assert_eq!(written.tally().lost, 1);
}

/// As one of a guest that is paused.
#[test]
fn a_vcpu_that_does_not_go_on_holds_up_neither_a_stop_nor_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled, waits) = waited_for(&output);
    let wait = waits.enter(Gpa(0), 0).unwrap();
    let asked = |polled: &Polled| {
        let drain = polled.lock();
        let ring = drain.calls().ring(0).unwrap();
        ring.source.reader.asks.and(0)
    };
    assert_eq!(asked(&polled), 1, "that is who wants room");
    call(&guest, &place, CALLS);
    polled.dismiss();
    assert_eq!(RESTS.get(), LET_GO_ROUNDS.end);
    polled.attend();
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, CALLS);
    assert!(wait.is_over());
}

/// It was once: a reader that was writing for longer than 50 ms came too late, and what the vCPU called was lost.
#[test]
fn a_vcpu_that_waits_when_its_session_is_stopped_has_room_also_while_a_disk_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled, waits) = waited_for(&output);
    let stuck = stuck(&guest, &place, &polled, &output);
    thread::scope(|scope| {
        let drain = &polled.drain;
        let poller = scope.spawn(|| drain.round());
        let is_busy = comes(|| polled.told().busy_since.is_some() || poller.is_finished());
        call(&guest, &place, CALLS);
        let wait = waits.enter(Gpa(0), 0).unwrap();
        let stops = scope.spawn(|| drain.dismiss());
        let vcpu = scope.spawn(move || {
            wait_until(|| wait.is_over());
            drain.ask().status()[0].read
        });
        let read = vcpu.join().unwrap();
        stops.join().unwrap();
        let is_stuck = !poller.is_finished();
        File::open(&stuck)
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        assert!(is_busy && is_stuck);
        assert_eq!(read, 2 * CALLS, "it has waited in vain");
    });
    assert!(!polled.lock().waits().unwrap().is_attended());
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, 2 * CALLS);
}

/// A disk that hangs says nothing: nobody waits for it any more, and who ends the session abandons what writes to it. When
/// that goes on after all, it finds no rings.
#[test]
fn a_disk_that_hangs_ends_no_run_and_holds_up_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled, waits) = waited_for(&output);
    let stuck = stuck(&guest, &place, &polled, &output);
    let drain = Arc::clone(&polled.drain);
    thread::scope(|scope| {
        let poller = scope.spawn(|| drain.round());
        let is_busy = comes(|| polled.told().busy_since.is_some() || poller.is_finished());
        let wait = waits.enter(Gpa(0), 0).unwrap();
        // It may be slow.
        let steps = polled.told().steps;
        (0..1000).for_each(|_| {
            steps.step();
            drain.look();
        });
        let moves = drain.ask().waits().unwrap().status().given_up.is_none();
        let looks = (0..1000).map(|_| drain.look());
        let mut given_up = looks.map(|()| drain.ask().waits().unwrap().status().given_up);
        let after = given_up.position(|given_up| given_up.is_some());
        drop(given_up);
        let is_over = wait.is_over();
        // As a trigger that can still fire has made at the end: it was once waited for here for ever.
        polled.round();
        let left = polled.finish().unwrap_err();
        let words = || {
            let target = guest.target();
            let cell = place.cells[0];
            let word = |at| target.read_word(cell.wrapping_add(at)).unwrap();
            [0, 8, 16, 24].map(word)
        };
        call(&guest, &place, CALLS);
        let before = words();
        let is_stuck = !poller.is_finished();
        File::open(&stuck)
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        poller.join().unwrap();
        drain.round();
        assert!(is_busy && moves && is_over && is_stuck, "{after:?}");
        assert!(after > Some(100), "{after:?}");
        let told = left.to_string();
        assert!(
            told.contains("for a minute") && told.contains("/trace"),
            "{told}"
        );
        assert_eq!(words(), before, "the rings are somebody else's");
        assert_eq!(drain.ask().status()[0].read, CALLS);
    });
}

/// Polls nothing, but has a thread for what comes last, and looks at that all the time if it `hangs`.
#[derive(Debug)]
struct OneThread {
    hangs: bool,
    drain: Arc<SharedDrain>,
    left: Sender<thread::JoinHandle<()>>,
}

impl Poller for OneThread {
    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, stands: &dyn Fn() -> bool) -> bool {
        let thread = thread::spawn(last);
        while !thread.is_finished() && !stands() {
            if self.hangs {
                self.drain.look();
            }
            yield_now();
        }
        let has_ended = thread.is_finished();
        self.left.send(thread).unwrap();
        has_ended
    }
}

/// The last things that are written are those that say how it ended: it was once waited for them for ever.
#[test]
fn a_disk_that_hangs_at_the_very_end_holds_it_up_no_longer_than_before() {
    let folder = tempfile::tempdir().unwrap();
    for hangs in [true, false] {
        let output = folder.path().join(format!("{hangs}"));
        let (guest, place, mut polled) = reader(Some(&output));
        call(&guest, &place, CALLS);
        polled.round();
        let stuck = output.join("exotrace.json.new");
        if hangs {
            pipe(&stuck);
        }
        let (left, thread) = channel();
        let drain = Arc::clone(&polled.drain);
        polled.poller = Some(Box::new(OneThread { hangs, drain, left }));
        let finished = polled.finish();
        let thread = thread.recv().unwrap();
        assert_eq!(thread.is_finished(), !hangs);
        if hangs {
            let mut written = Vec::new();
            let mut disk = File::open(&stuck).unwrap();
            disk.read_to_end(&mut written).unwrap();
            let told = finished.unwrap_err().to_string();
            assert!(told.contains("for a minute"), "{told}");
        } else {
            assert_eq!(finished.unwrap().unwrap().tally().calls, CALLS);
        }
        thread.join().unwrap();
        assert!(polled.told().busy_since.is_none());
    }
}

/// A slow disk is told from one that hangs by these.
#[test]
fn what_is_written_makes_steps() {
    let folder = tempfile::tempdir().unwrap();
    for is_last in [false, true] {
        let output = folder.path().join(format!("{is_last}"));
        let by = paged(mock::HOST);
        let (guest, place, mut polled) = reader_of(Some(&output), by, 1, 1 << 17);
        call(&guest, &place, CALLS);
        polled.round();
        let steps = polled.told().steps;
        let before = steps.count();
        if is_last {
            polled.finish().unwrap();
        } else {
            // More than waits for its file.
            call(&guest, &place, 5000);
            polled.round();
        }
        assert!(steps.count() > before, "{is_last}");
    }
}

/// As a thread does that helps: it once slept for ever when the one that it waited for was the last to write.
#[test]
fn who_waits_for_who_writes_is_woken_by_the_last_one_too() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, polled) = reader(Some(&output));
    call(&guest, &place, CALLS);
    polled.round();
    let stuck = output.join("exotrace.json.new");
    pipe(&stuck);
    let drain = &polled.drain;
    thread::scope(|scope| {
        let last = scope.spawn(|| drain.finish());
        // It has the trace to itself from then on: before, the last round writes, too.
        let is_busy = comes(|| !polled.lock().is_written() || last.is_finished());
        let waits = scope.spawn(|| drain.write_when_free(false));
        // It waits by now, or comes before the other has ended.
        (0..1000).for_each(|_| yield_now());
        let is_stuck = !last.is_finished() && !waits.is_finished();
        File::open(&stuck)
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        let is_woken = comes(|| waits.is_finished());
        drain.hands.has_written();
        assert!(is_busy && is_stuck && is_woken);
        last.join().unwrap().unwrap();
    });
}

/// It has found the ring full while somebody still wrote.
#[test]
fn a_vcpu_that_comes_to_wait_when_nobody_writes_any_more_may_go() {
    let folder = tempfile::tempdir().unwrap();
    let (_guest, _place, polled, waits) = waited_for(&folder.path().join("trace"));
    polled.lock().end_output();
    let wait = waits.enter(Gpa(0), 0).unwrap();
    polled.drain.round();
    assert!(wait.is_over());
}

/// What it was to complete may be somebody else's by then.
#[test]
fn who_was_abandoned_completes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, polled) = reader(Some(&output));
    call(&guest, &place, CALLS);
    polled.round();
    let left = polled.drain.leave().to_string();
    assert!(left.contains("for a minute"), "{left}");
    polled.drain.finish().unwrap_err();
    let side = fs::read_to_string(output.join("exotrace.json")).unwrap();
    assert!(side.contains("\"finished\": false"), "{side}");
}

/// Its trace was taken away, too, so it finds that nobody wants it any more: it once said to the guest then that no vCPU is to wait
/// for the session that had its number by that time.
#[test]
fn who_was_abandoned_changes_no_word_of_the_session_that_has_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
    let awaited = guest.window().start.wrapping_add(2048);
    let place = SessionMemory {
        awaited: Some(awaited),
        ..place_in(&guest, RecordFormat::Calls, 1, 4096)
    };
    let polled = reader_at(&guest, &place, Some(&output), paged(mock::HOST));
    let waits = Waits::new(
        Arc::new(VcpuClocks::new(1, mock::HOST)),
        Arc::new(Woken::default()),
    );
    let room = waits.open(Gpa(0), 0, 1, false);
    polled.lock().wait_in(room, OnFull::Discard);
    let word = || guest.target().read_word(awaited).unwrap();
    assert_eq!(word(), 1);
    let away = folder.path().join("away");
    stuck(&guest, &place, &polled, &output);
    let drain = Arc::clone(&polled.drain);
    thread::scope(|scope| {
        let poller = scope.spawn(|| drain.round());
        let is_busy = comes(|| polled.told().busy_since.is_some() || poller.is_finished());
        let is_stuck = !poller.is_finished();
        drain.leave();
        let left = word();
        guest.target().write_word(awaited, 1).unwrap();
        fs::rename(&output, &away).unwrap();
        // Also where it has not come to the pipe yet.
        let mut disk = File::options();
        let disk = disk.read(true).custom_flags(libc::O_NONBLOCK);
        let disk = disk.open(away.join("exotrace.json.new"));
        poller.join().unwrap();
        drop(disk.unwrap());
        drain.round();
        assert!(is_busy && is_stuck);
        assert_eq!(left, 0, "nobody reads its rings any more");
        let error = polled.told().error.expect("its trace is gone");
        assert!(error.contains("is gone"), "{error}");
        assert_eq!(word(), 1, "it is somebody else's");
    });
}
