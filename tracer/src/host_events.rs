//! What the host does with the vCPUs of a guest, read by every session that wants to know. It is told by the threads that
//! run them, which wait for who reads no longer than copying takes: what nobody has read in time is gone, and counted. Or
//! somebody else knows of it, and is asked whenever somebody reads.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use trace::host::HostStep;

use crate::clock::HeldTime;
use terms::choice::choices;

/// Steps of a vCPU that are kept: at 20,000 exits a second, more than a second of them.
const KEPT_MAX: usize = 1 << 16;

choices! {
    /// Who tells what the host does with the vCPUs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum HostTeller {
        /// The threads that run the vCPUs: what the host's kernel serves by itself is not seen.
        Threads = "threads",
        /// The host's kernel, with what it serves by itself: takes root.
        Kernel = "kernel",
        /// The host's kernel where it can be asked, else the threads.
        Auto = "auto",
    }
}

/// Who knows what the host does with the vCPUs.
pub trait HostSource: Debug + Send {
    /// This thread of the host executes this vCPU from now on.
    fn executes(&mut self, thread: u32, vcpu: u16);

    /// Has `to` see all that has come since the last time, in any order: the vCPU, the host's counter, and what it was.
    fn read(&mut self, to: &mut dyn FnMut(u16, u64, HostStep));
}

/// What was told.
#[derive(Debug)]
pub struct HostEvents {
    time: Arc<HeldTime>,
    vcpus: Vec<Mutex<Told>>,
    asked: OnceLock<Mutex<Asked>>,
}

/// Who is asked.
#[derive(Debug)]
struct Asked {
    source: Box<dyn HostSource>,
    /// What came while the last question was answered: there may be more that was before it.
    early: Vec<(u64, u16, HostStep)>,
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

impl Told {
    fn keep(&mut self, ticks: u64, step: HostStep) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back((ticks, step));
        self.count += 1;
    }
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
    /// Of so many vCPUs, in a guest of this time.
    #[must_use]
    pub fn new(vcpus: u16, time: Arc<HeldTime>) -> Self {
        Self {
            time,
            vcpus: (0..vcpus).map(|_| Mutex::default()).collect(),
            asked: OnceLock::new(),
        }
    }

    /// From now on `source` knows it. Only the first does that is named.
    pub fn know_by(&self, source: Box<dyn HostSource>) {
        let early = Vec::new();
        let asked = Mutex::new(Asked { source, early });
        // The other one goes.
        let _ = self.asked.set(asked);
    }

    /// Whether somebody else knows it, so that threads need not tell.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.asked.get().is_some()
    }

    /// This thread of the host executes this vCPU from now on.
    pub fn executed_by(&self, thread: u32, vcpu: u16) {
        if let Some(asked) = self.asked.get() {
            lock_asked(asked).source.executes(thread, vcpu);
        }
    }

    /// Asks who knows, if somebody does.
    pub(crate) fn ask(&self) {
        let Some(asked) = self.asked.get() else {
            return;
        };
        let mut asked = lock_asked(asked);
        let Asked { source, early } = &mut *asked;
        let now = self.time.counter();
        // Twice: what was being written down at this moment has been by then.
        for _ in 0..2 {
            source.read(&mut |vcpu, ticks, step| early.push((ticks, vcpu, step)));
        }
        if self.time.hidden() > 0 {
            // Who knows does not know of time that the guest has not seen: these have no place in it.
            let lost = all_lost(early);
            early.extend(lost.map(|(vcpu, step)| (now.saturating_sub(1), vcpu, step)));
        }
        early.sort_by_key(|(ticks, ..)| *ticks);
        let known = early.partition_point(|(ticks, ..)| *ticks < now);
        for (ticks, vcpu, step) in early.drain(..known) {
            if let Some(told) = self.vcpus.get(usize::from(vcpu)) {
                lock(told).keep(ticks, step);
            }
        }
        for told in &self.vcpus {
            lock(told).begun = Some(now);
        }
    }

    /// What is told next happens now. Called by the thread that runs the vCPU.
    pub fn begin(&self, vcpu: u16) {
        if let Some(told) = self.vcpus.get(usize::from(vcpu)) {
            let mut told = lock(told);
            told.begun = Some(self.time.counter());
        }
    }

    /// This has happened when it [began](Self::begin), or now. Called by the thread that runs the vCPU.
    pub fn note(&self, vcpu: u16, step: HostStep) {
        let Some(told) = self.vcpus.get(usize::from(vcpu)) else {
            return;
        };
        let mut told = lock(told);
        // Under the lock: who reads knows up to when it has all.
        let now = told.begun.take().unwrap_or_else(|| self.time.counter());
        told.keep(now, step);
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
            looked: told.begun.unwrap_or_else(|| self.time.counter()),
        }
    }
}

/// As many as these are lost, of each vCPU.
fn all_lost(
    steps: &mut Vec<(u64, u16, HostStep)>,
) -> impl Iterator<Item = (u16, HostStep)> + use<> {
    let mut lost: BTreeMap<u16, u32> = BTreeMap::new();
    for (_, vcpu, step) in steps.drain(..) {
        let count = match step {
            HostStep::Lost(count) => count,
            HostStep::Entry(_) | HostStep::Exit(..) => 1,
        };
        let sum = lost.entry(vcpu).or_default();
        *sum = sum.saturating_add(count);
    }
    let lost = lost.into_iter();
    lost.map(|(vcpu, count)| (vcpu, HostStep::Lost(count)))
}

fn lock_asked(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
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
    use crate::clock::HostClock;

    static NOW: AtomicU64 = AtomicU64::new(0);

    const HOST: HostClock = HostClock {
        counter: || NOW.fetch_add(1, Ordering::SeqCst),
        now: || Duration::ZERO,
        rest: |_| (),
    };

    /// Answers that were given in this order, one question after the other.
    #[derive(Debug)]
    struct Answers(VecDeque<Vec<(u16, u64)>>);

    impl HostSource for Answers {
        fn executes(&mut self, thread: u32, vcpu: u16) {
            self.0.push_back(vec![(vcpu, thread.into())]);
        }

        fn read(&mut self, to: &mut dyn FnMut(u16, u64, HostStep)) {
            for (vcpu, ticks) in self.0.pop_front().unwrap_or_default() {
                to(vcpu, ticks, HostStep::Lost(1));
            }
        }
    }

    /// The CPUs of a host are asked one after the other, while a thread goes from one to the next.
    #[test]
    fn who_knows_is_asked_and_nothing_comes_before_what_was_earlier() {
        static TIME: AtomicU64 = AtomicU64::new(0);
        const HOST: HostClock = HostClock {
            counter: || TIME.load(Ordering::SeqCst),
            now: || Duration::ZERO,
            rest: |_| (),
        };
        let answers = [
            // At 100: the first time, what was written down meanwhile, and what is later than the question.
            vec![(0, 90), (1, 20), (7, 5)],
            vec![(0, 80), (0, 101)],
            vec![(0, 100)],
        ];
        let source = Box::new(Answers(answers.into()));
        let time = Arc::new(HeldTime::new(HOST));
        let events = HostEvents::new(2, Arc::clone(&time));
        events.know_by(source);
        let times = |fresh: Fresh| -> Vec<u64> {
            let times: Vec<_> = fresh.steps.iter().map(|(ticks, _)| *ticks).collect();
            assert!(times.iter().all(|ticks| *ticks < fresh.looked), "{fresh:?}");
            times
        };
        TIME.store(100, Ordering::SeqCst);
        events.ask();
        TIME.store(150, Ordering::SeqCst);
        assert_eq!(events.since(0, 0).looked, 100, "not more is known");
        assert_eq!(times(events.since(0, 0)), [80, 90]);
        assert_eq!(times(events.since(1, 0)), [20]);
        TIME.store(200, Ordering::SeqCst);
        events.ask();
        assert_eq!(times(events.since(0, 2)), [100, 101]);
        events.executed_by(199, 1);
        TIME.store(300, Ordering::SeqCst);
        events.ask();
        assert_eq!(times(events.since(1, 1)), [199], "who knows is told");
        // Time that is hidden, of which who knows does not know.
        let hold = time.hold();
        TIME.store(350, Ordering::SeqCst);
        drop(hold);
        for thread in [310, 320, 330] {
            events.executed_by(thread, u16::from(thread == 330));
        }
        TIME.store(400, Ordering::SeqCst);
        events.ask();
        events.ask();
        let steps = |vcpu, seen| events.since(vcpu, seen).steps;
        assert_eq!(steps(0, 4), [(349, HostStep::Lost(2))]);
        assert_eq!(steps(1, 2), [(349, HostStep::Lost(1))]);
    }

    #[test]
    fn each_step_is_read_once_and_what_is_gone_is_counted() {
        let events = HostEvents::new(2, Arc::new(HeldTime::new(HOST)));
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
