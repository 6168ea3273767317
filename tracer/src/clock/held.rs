//! The time of a guest that can be held: the host's counter, less what was hidden of it. Who waits and is to see nothing of that
//! *holds* it: no vCPU enters the guest any more, those inside are taken out of it, and from when the last one has left until
//! somebody may enter again no time passes. Then the counters of all vCPUs are set back by that, each on its way into
//! the guest: all by the same, and none by more than it was outside, so none goes back.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::HostClock;

/// The time of a guest.
///
/// vCPUs enter and leave all the time, and holds are rare. So who comes or goes changes one word, whose value before tells
/// whether it is held; only who begins or ends a hold, or meets one, takes the lock. While a vCPU is inside, nothing is
/// hidden: it counts in the word, and `since` is set only where nobody does.
#[derive(Debug)]
pub struct HeldTime {
    host: HostClock,
    /// vCPUs in the guest, or about to leave again because it is held, and a [`HOLD`] for each hold.
    word: AtomicU64,
    hidden: AtomicU64,
    /// Since when nobody has been in the guest, while it is held.
    since: Mutex<Option<u64>>,
}

/// One hold, in the word: what is below are vCPUs.
const HOLD: u64 = 1 << 32;

impl HeldTime {
    /// Nobody has held it yet.
    #[must_use]
    pub fn new(host: HostClock) -> Self {
        Self {
            host,
            word: AtomicU64::new(0),
            hidden: AtomicU64::new(0),
            since: Mutex::default(),
        }
    }

    /// The host's counter less what is hidden; it stands still while the time is held and no vCPU is in the guest.
    #[must_use]
    pub fn counter(&self) -> u64 {
        // Under the lock: none of it is hidden between the two.
        let since = self.lock();
        let now = since.unwrap_or_else(self.host.counter);
        now.saturating_sub(self.hidden())
    }

    /// The same without a look whether the time is held: no less than that.
    #[must_use]
    pub(super) fn at_most(&self) -> u64 {
        let hidden = self.hidden();
        (self.host.counter)().saturating_sub(hidden)
    }

    /// The host's clock.
    #[must_use]
    pub const fn host(&self) -> HostClock {
        self.host
    }

    /// A vCPU enters the guest, with its counter set back by the ticks returned; none while the time is held.
    #[must_use]
    pub fn enter(&self) -> Option<u64> {
        if self.word.fetch_add(1, SeqCst) >= HOLD {
            self.leave();
            return None;
        }
        Some(self.hidden())
    }

    /// A vCPU that has [entered](Self::enter) has left the guest.
    pub fn leave(&self) {
        if self.word.fetch_sub(1, SeqCst) >= HOLD {
            self.stand_still();
        }
    }

    /// Who has left has met a hold, which may be over by now.
    fn stand_still(&self) {
        let mut since = self.lock();
        let word = self.word.load(SeqCst);
        let (holds, inside) = (word / HOLD, word % HOLD);
        if holds > 0 && inside == 0 {
            since.get_or_insert_with(self.host.counter);
        }
    }

    /// Whether no vCPU may enter the guest.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.word.load(SeqCst) >= HOLD
    }

    /// Ticks that were hidden so far.
    #[must_use]
    pub fn hidden(&self) -> u64 {
        self.hidden.load(SeqCst)
    }

    /// Holds it until the returned value is dropped, for a vCPU that is outside. Who is inside has to be taken out.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> Hold {
        let mut since = self.lock();
        if self.word.fetch_add(HOLD, SeqCst) == 0 {
            *since = Some((self.host.counter)());
        }
        drop(since);
        Hold(Arc::clone(self))
    }

    fn lock(&self) -> MutexGuard<'_, Option<u64>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the time of a guest.
#[derive(Debug)]
pub struct Hold(Arc<HeldTime>);

impl Drop for Hold {
    fn drop(&mut self) {
        let time = &*self.0;
        let mut since = time.lock();
        let is_last = time.word.load(SeqCst) / HOLD == 1;
        if is_last && let Some(since) = since.take() {
            let ticks = (time.host.counter)().saturating_sub(since);
            time.hidden
                .store(time.hidden().saturating_add(ticks), SeqCst);
        }
        // Who enters after this is to find what is hidden.
        time.word.fetch_sub(HOLD, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(0);

    const HOST: HostClock = HostClock {
        counter: || NOW.load(SeqCst),
        now: || Duration::ZERO,
        rest: |_| {},
    };

    fn pass(ticks: u64) {
        NOW.fetch_add(ticks, SeqCst);
    }

    #[test]
    fn what_nobody_executed_while_it_was_held_is_hidden_and_nothing_else() {
        let time = Arc::new(HeldTime::new(HOST));
        pass(1000);
        assert_eq!((time.enter(), time.enter()), (Some(0), Some(0)));
        time.leave();
        let hold = time.hold();
        assert!(time.is_held());
        pass(10);
        assert_eq!(time.counter(), 1010, "the other one is inside");
        assert_eq!(time.enter(), None);
        pass(4);
        assert_eq!(
            time.counter(),
            1014,
            "one that was turned back is not the last"
        );
        time.leave();
        pass(100);
        assert_eq!(time.counter(), 1014);
        let second = time.hold();
        drop(hold);
        pass(7);
        assert_eq!((time.counter(), time.enter()), (1014, None));
        drop(second);
        assert_eq!((time.hidden(), time.counter()), (107, 1014));
        assert_eq!(time.enter(), Some(107));
        pass(5);
        assert_eq!(time.counter(), 1019);
        // Nobody is inside and nobody holds it: as when all are idle.
        time.leave();
        pass(5);
        assert_eq!(time.counter(), 1024);
        // The last one leaves after all: nothing was hidden.
        let _ = time.enter();
        drop(time.hold());
        pass(3);
        time.leave();
        assert_eq!((time.hidden(), time.counter()), (107, 1027));
        // It met a hold that is over.
        time.stand_still();
        pass(2);
        assert_eq!(time.counter(), 1029);
        let third = time.hold();
        pass(11);
        drop(third);
        assert_eq!((time.hidden(), time.counter()), (118, 1029));
    }

    #[test]
    fn who_comes_while_it_is_held_does_not_begin_it_anew() {
        let time = Arc::new(HeldTime::new(COUNTED));
        let at = time.counter();
        let hold = time.hold();
        let now = time.counter();
        assert_eq!((time.enter(), time.enter()), (None, None));
        assert_eq!(time.counter(), now);
        assert!(time.at_most() > now);
        drop(hold);
        assert!(time.hidden() > 0 && time.counter() > now && now > at);
        assert_eq!(time.enter(), Some(time.hidden()));
    }

    static TICKS: AtomicU64 = AtomicU64::new(1 << 40);

    /// One that goes on by each reading, whoever reads it.
    const COUNTED: HostClock = HostClock {
        counter: || TICKS.fetch_add(1, SeqCst),
        now: || Duration::ZERO,
        rest: |_| {},
    };

    /// vCPUs come and go while others hold the time: none sees its counter go back, or what is hidden change while it is
    /// inside.
    #[test]
    fn however_they_meet_no_counter_goes_back() {
        let time = Arc::new(HeldTime::new(COUNTED));
        let is_over = AtomicBool::new(false);
        let vcpu = || {
            let mut last = 0;
            while !is_over.load(SeqCst) {
                let Some(hidden) = time.enter() else {
                    thread::yield_now();
                    continue;
                };
                for _ in 0..3 {
                    let now = (COUNTED.counter)() - hidden;
                    assert!(now > last, "{now} after {last}");
                    last = now;
                }
                assert_eq!(time.hidden(), hidden);
                time.leave();
            }
        };
        let watch = || {
            let mut last = 0;
            while !is_over.load(SeqCst) {
                let now = time.counter();
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        };
        thread::scope(|scope| {
            let others = [scope.spawn(vcpu), scope.spawn(vcpu), scope.spawn(watch)];
            let holder = || (0..20_000).for_each(|_| drop((time.hold(), time.hold())));
            let holders = [scope.spawn(holder), scope.spawn(holder)];
            let held = holders.map(thread::ScopedJoinHandle::join);
            is_over.store(true, SeqCst);
            assert!(held.iter().all(Result::is_ok));
            assert!(
                others
                    .map(|other| other.join().is_ok())
                    .iter()
                    .all(|is| *is)
            );
        });
        assert!(!time.is_held());
        assert_eq!(time.enter(), Some(time.hidden()));
    }
}
