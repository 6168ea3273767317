//! Rooms without threads: who waits, and when that is over.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::*;
use crate::clock::HostClock;
use terms::addr::Gva;

static NOW: AtomicU64 = AtomicU64::new(0);

const HOST: HostClock = HostClock {
    counter: || NOW.fetch_add(10, SeqCst),
    now: || Duration::ZERO,
    rest: |_| (),
};

/// Counts how often threads were to look, and to come out; they look again and again anyway.
#[derive(Debug, Default)]
pub(crate) struct Woken(AtomicUsize, AtomicUsize);

impl Wake for Woken {
    fn wake(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    fn take_out(&self) {
        self.1.fetch_add(1, SeqCst);
    }

    fn end_run(&self, _why: &str) {}
}

const TURNSTILE: Turnstile = Turnstile {
    at: Gva(0xffff_ffff_d000_0000),
    physical: Gpa(0x1_2000_0000),
    awaited: Gva(0x2000),
    awaited_physical: Gpa(0x2000),
};

/// Two rings of session 3, and what its stubs read.
fn room() -> (Waits, Arc<WaitingRoom>, Arc<Woken>, impl Fn(Rings) -> Gpa) {
    room_that(false)
}

fn clocks() -> Arc<VcpuClocks> {
    Arc::new(VcpuClocks::new(2, HOST))
}

fn room_that(hides: bool) -> (Waits, Arc<WaitingRoom>, Arc<Woken>, impl Fn(Rings) -> Gpa) {
    let woken = Arc::new(Woken::default());
    let waits = Waits::new(clocks(), Arc::clone(&woken) as Arc<dyn Wake>);
    let room = waits.open(TURNSTILE.physical, 3, 2, hides);
    let at = |rings| {
        let distance = TURNSTILE.of(3, rings).at.0 - TURNSTILE.at.0;
        TURNSTILE.physical.wrapping_add(distance)
    };
    (waits, room, woken, at)
}

#[test]
fn a_wait_ends_when_the_reader_has_been_at_that_ring_and_no_other() {
    let (waits, room, woken, at) = room();
    room.read(Rings::Calls, 0);
    assert_eq!(woken.0.load(SeqCst), 0, "nobody waits");
    let wait = waits.enter(at(Rings::Calls), 1).unwrap();
    let of_events = waits.enter(at(Rings::Events), 1).unwrap();
    assert_eq!(room.waiting(), 2);
    for (rings, ring) in [(Rings::Calls, 0), (Rings::Events, 0)] {
        room.read(rings, ring);
        assert!(!wait.is_over() && !of_events.is_over());
    }
    room.read(Rings::Calls, 1);
    assert!(wait.is_over() && !of_events.is_over());
    room.read(Rings::Events, 1);
    assert!(of_events.is_over());
    assert_eq!(woken.0.load(SeqCst), 4);
    assert_eq!(room.entered(Rings::Calls, 1), 1);
    assert_eq!(room.entered(Rings::Calls, 0), 0);
    drop((wait, of_events));
    assert_eq!(room.waiting(), 0);
    room.read(Rings::Calls, 1);
    assert_eq!(woken.0.load(SeqCst), 4, "nobody waits any more");
}

#[test]
fn nobody_waits_for_a_reader_that_comes_no_more() {
    let (waits, room, woken, at) = room();
    let wait = waits.enter(at(Rings::Calls), 0).unwrap();
    room.close();
    assert!(wait.is_over());
    assert_eq!(woken.0.load(SeqCst), 1);
    assert!(waits.enter(at(Rings::Calls), 0).is_none());
    // No address of a session without a room, and none between two.
    assert!(waits.enter(TURNSTILE.physical, 0).is_none());
    let between = at(Rings::Calls).wrapping_add(8);
    assert!(waits.enter(between, 0).is_none());
}

#[test]
fn all_vcpus_wait_for_the_one_ring_that_they_share() {
    let waits = Waits::new(clocks(), Arc::new(Woken::default()));
    let room = waits.open(TURNSTILE.physical, 0, 1, false);
    let wait = waits.enter(TURNSTILE.physical, 7).unwrap();
    room.read(Rings::Calls, 0);
    assert!(wait.is_over());
}

/// A kernel that starts has a ring for each vCPU; where they turn out to be alike, all go on with the first.
#[test]
fn vcpus_that_turn_out_to_be_alike_wait_for_the_first_ring() {
    let (waits, room, _, at) = room();
    room.share();
    for rings in [Rings::Calls, Rings::Events] {
        let wait = waits.enter(at(rings), 1).unwrap();
        assert_eq!((room.entered(rings, 0), room.entered(rings, 1)), (1, 0));
        room.read(rings, 1);
        assert!(!wait.is_over());
        room.read(rings, 0);
        assert!(wait.is_over());
    }
}

/// A guest that reads there without end wakes its reader once for each time that it waits, and no more.
#[test]
fn who_comes_without_need_waits_for_one_round() {
    let (waits, room, _, at) = room();
    let knocks = Arc::new(AtomicUsize::new(0));
    let heard = Arc::clone(&knocks);
    room.on_knock(Box::new(move || {
        heard.fetch_add(1, SeqCst);
    }));
    for times in 1..1000 {
        let wait = waits.enter(at(Rings::Calls), 0).unwrap();
        assert!(!wait.is_over());
        room.read(Rings::Calls, 0);
        assert!(wait.is_over());
        assert_eq!(knocks.load(SeqCst), times);
    }
    assert_eq!(room.waiting(), 0);
}

#[test]
fn waits_are_told_once_with_their_times() {
    let (waits, room, _, at) = room();
    for vcpu in [1, 0] {
        drop(waits.enter(at(Rings::Calls), vcpu));
    }
    let (told, seen) = room.since(0);
    let vcpus: Vec<_> = told.iter().map(|wait| wait.vcpu).collect();
    assert_eq!((vcpus, seen), (vec![1, 0], 2));
    assert!(told.iter().all(|wait| wait.end > wait.begin));
    assert_eq!(room.since(seen), (Vec::new(), 2));
    let counts = room.counts();
    let ticks = told.iter().map(|wait| wait.end - wait.begin);
    assert_eq!(counts.count, 2);
    assert_eq!(counts.ticks, ticks.clone().sum::<u64>());
    assert_eq!(Some(counts.longest), ticks.max());
}

#[test]
fn a_wait_that_is_hidden_holds_the_time_but_not_from_who_must_write() {
    let (waits, room, woken, at) = room_that(true);
    let taken_out = || woken.1.load(SeqCst);
    let wait = waits.enter(at(Rings::Calls), 1).unwrap();
    assert!(waits.clocks.time().is_held());
    assert_eq!((waits.clocks.time().enter(), taken_out()), (None, 1));
    room.has_news(Rings::Calls, 1);
    room.read(Rings::Calls, 1);
    let woken_before = woken.0.load(SeqCst);
    drop(wait);
    assert_eq!(
        woken.0.load(SeqCst),
        woken_before + 1,
        "who was held hears of it"
    );
    assert!(!waits.clocks.time().is_held() && waits.clocks.time().hidden() > 0);
    let (told, _) = room.since(0);
    let hidden = waits.clocks.time().hidden();
    assert!(told.iter().all(|wait| wait.at >= wait.end - hidden));
    // There was news: once more. Then the reader finds none: a slot has been reserved and not written.
    let wait = waits.enter(at(Rings::Calls), 1).unwrap();
    assert!(waits.clocks.time().is_held());
    room.read(Rings::Calls, 1);
    drop(wait);
    let wait = waits.enter(at(Rings::Calls), 1).unwrap();
    assert!(!waits.clocks.time().is_held() && !wait.is_over());
    assert_eq!((taken_out(), room.waiting()), (2, 1));
    drop(wait);
    // Rings are apart.
    let _wait = waits.enter(at(Rings::Events), 1).unwrap();
    assert!(waits.clocks.time().is_held());
}

#[test]
fn who_waits_where_nothing_is_hidden_holds_nobody() {
    let (waits, _, woken, at) = room();
    let _wait = waits.enter(at(Rings::Calls), 1).unwrap();
    assert!(!waits.clocks.time().is_held());
    assert_eq!(woken.1.load(SeqCst), 0);
}
