//! What the host does with the vCPUs of a guest, told by the threads that run them, and read by every session that wants
//! to know. Who tells waits for who reads no longer than copying takes: what nobody has read in time is gone, and counted.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trace::host::HostStep;

use crate::clock::HostClock;

/// Steps of a vCPU that are kept: at 20,000 exits a second, more than a second of them.
const KEPT_MAX: usize = 1 << 16;

/// What was told.
#[derive(Debug)]
pub struct HostEvents {
    host: HostClock,
    vcpus: Vec<Mutex<Told>>,
}

/// Of one vCPU.
#[derive(Debug, Default)]
struct Told {
    /// With the host's counter.
    kept: VecDeque<(u64, HostStep)>,
    count: u64,
    /// When that happened which is told next.
    begun: Option<u64>,
}

/// What a reader has not read before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// Steps that are not kept any more.
    pub lost: u64,
    /// The others, with the host's counter.
    pub steps: Vec<(u64, HostStep)>,
    /// How many there were in all.
    pub count: u64,
    /// What comes later is not earlier than this.
    pub looked: u64,
}

impl HostEvents {
    /// Of so many vCPUs, on a host that tells the time like this.
    #[must_use]
    pub fn new(vcpus: u16, host: HostClock) -> Self {
        Self {
            host,
            vcpus: (0..vcpus).map(|_| Mutex::default()).collect(),
        }
    }

    /// What is told next happens now. Called by the thread that runs the vCPU.
    pub fn begin(&self, vcpu: u16) {
        if let Some(told) = self.vcpus.get(usize::from(vcpu)) {
            let mut told = lock(told);
            told.begun = Some((self.host.counter)());
        }
    }

    /// This has happened when it [began](Self::begin), or now. Called by the thread that runs the vCPU.
    pub fn note(&self, vcpu: u16, step: HostStep) {
        let Some(told) = self.vcpus.get(usize::from(vcpu)) else {
            return;
        };
        let mut told = lock(told);
        // Under the lock: who reads knows up to when it has all.
        let now = told.begun.take().unwrap_or_else(self.host.counter);
        if told.kept.len() == KEPT_MAX {
            told.kept.pop_front();
        }
        told.kept.push_back((now, step));
        told.count += 1;
    }

    /// vCPUs that there are.
    pub(crate) fn vcpus(&self) -> u16 {
        u16::try_from(self.vcpus.len()).unwrap_or(u16::MAX)
    }

    /// How many steps a vCPU has made so far.
    pub(crate) fn count(&self, vcpu: u16) -> u64 {
        let told = self.vcpus.get(usize::from(vcpu));
        told.map_or(0, |told| lock(told).count)
    }

    /// What came after the first `seen` steps of a vCPU.
    pub(crate) fn since(&self, vcpu: u16, seen: u64) -> Fresh {
        let Some(told) = self.vcpus.get(usize::from(vcpu)) else {
            return Fresh::default();
        };
        let told = lock(told);
        let unread = told.count.saturating_sub(seen);
        let fresh = usize::try_from(unread).unwrap_or(usize::MAX);
        let skip = told.kept.len().saturating_sub(fresh);
        let steps: Vec<_> = told.kept.iter().skip(skip).copied().collect();
        Fresh {
            lost: unread.saturating_sub(steps.len() as u64),
            steps,
            count: told.count,
            looked: told.begun.unwrap_or_else(self.host.counter),
        }
    }
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use trace::host::HostThread;

    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(0);

    const HOST: HostClock = HostClock {
        counter: || NOW.fetch_add(1, Ordering::SeqCst),
        now: || Duration::ZERO,
        rest: |_| (),
    };

    #[test]
    fn each_step_is_read_once_and_what_is_gone_is_counted() {
        let events = HostEvents::new(2, HOST);
        let step = |tid| {
            HostStep::Entry(HostThread {
                tid,
                ..HostThread::default()
            })
        };
        let tids = |fresh: &Fresh| -> Vec<HostStep> {
            assert!(fresh.steps.is_sorted_by_key(|(ticks, _)| *ticks));
            assert!(fresh.steps.iter().all(|(ticks, _)| *ticks < fresh.looked));
            fresh.steps.iter().map(|(_, step)| *step).collect()
        };
        events.note(0, step(1));
        events.note(0, step(2));
        events.note(7, step(3));
        let fresh = events.since(0, 0);
        assert_eq!(tids(&fresh), [step(1), step(2)]);
        assert_eq!((fresh.lost, fresh.count), (0, 2));
        assert_eq!(events.since(1, 0).steps, []);
        events.note(0, step(4));
        assert_eq!(tids(&events.since(0, fresh.count)), [step(4)]);
        events.begin(1);
        let looked = events.since(1, 0).looked;
        events.note(1, step(5));
        assert_eq!(events.since(1, 0).steps, [(looked, step(5))]);
        let many = u32::try_from(KEPT_MAX).unwrap() + 5;
        (0..many).for_each(|tid| events.note(0, step(tid)));
        let fresh = events.since(0, 3);
        assert_eq!((fresh.lost, fresh.steps.len()), (5, KEPT_MAX));
        assert_eq!(fresh.steps[0].1, step(5));
        assert_eq!(events.count(0), u64::from(many) + 3);
    }
}
