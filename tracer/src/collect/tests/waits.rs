//! A session is stopped, or ends, while a vCPU waits for its reader.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::clock::HostClock;
use crate::waits::{Waits, Wake};
use terms::addr::Gpa;
use wait_drain::OnFull;

/// Threads here look again and again.
#[derive(Debug)]
struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
    fn take_out(&self) {}
    fn end_run(&self, _why: &str) {}
}

/// A guest with one ring, its reader, and where its vCPU waits for that.
fn waited_for(output: &Path, clock: HostClock) -> (MockGuest, SessionMemory, Polled, Waits) {
    let (guest, place, polled) = reader_by(Some(output), RingClock::Host(clock));
    let waits = Waits::new(Arc::new(VcpuClocks::new(1, clock)), Arc::new(Nobody));
    let room = waits.open(Gpa(0), 0, 1, false);
    polled.lock().wait_in(room, OnFull::Discard);
    (guest, place, polled, waits)
}

/// As one of a guest that is paused.
#[test]
fn a_vcpu_that_does_not_go_on_holds_up_neither_a_stop_nor_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled, waits) = waited_for(&output, mock::HOST);
    let wait = waits.enter(Gpa(0), 0).unwrap();
    call(&guest, &place, CALLS);
    polled.dismiss();
    polled.attend();
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, CALLS);
    assert!(wait.is_over());
}

/// It was once: a reader that was writing for longer than 50 ms came too late, and what the vCPU called was lost.
#[test]
fn a_vcpu_that_waits_when_its_session_is_stopped_is_waited_for_as_long_as_the_reader_takes() {
    /// So often who stops the session has rested.
    static RESTS: AtomicU64 = AtomicU64::new(0);
    static HAS_LEFT: AtomicBool = AtomicBool::new(false);
    const MANY: u64 = 100;
    let clock = HostClock {
        rest: |_| {
            if RESTS.fetch_add(1, SeqCst) >= MANY {
                comes(|| HAS_LEFT.load(SeqCst));
            }
        },
        ..mock::HOST
    };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (guest, place, mut polled, waits) = waited_for(&output, clock);
    let stuck = output.join("exotrace.json.new");
    pipe(&stuck);
    call(&guest, &place, CALLS);
    polled.lock().describe(Metadata::default());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let drain = &polled.drain;
        let poller = scope.spawn(|| {
            drain.round();
            wait_until(|| {
                drain.round();
                is_over.load(SeqCst)
            });
        });
        let is_busy = comes(|| polled.told().busy_since.is_some() || poller.is_finished());
        let wait = waits.enter(Gpa(0), 0).unwrap();
        let stops = scope.spawn(|| drain.dismiss());
        let vcpu = scope.spawn(move || {
            wait_until(|| wait.is_over());
            let is_attended = drain.ask().waits().unwrap().is_attended();
            drop(wait);
            HAS_LEFT.store(true, SeqCst);
            is_attended
        });
        let is_waited_for = comes(|| RESTS.load(SeqCst) > MANY || stops.is_finished());
        File::open(&stuck)
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        let is_attended = vcpu.join().unwrap();
        stops.join().unwrap();
        is_over.store(true, SeqCst);
        assert!(is_busy && is_waited_for && is_attended);
    });
    assert!(!polled.lock().waits().unwrap().is_attended());
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, CALLS);
}
