//! The counters of all vCPUs, looked at again and again.
//!
//! A guest can set a vCPU's counter (`IA32_TSC`, `IA32_TSC_ADJUST`), and a host that was suspended moves it. So
//! each vCPU's thread reads it every second, when it is out of the guest for another reason, or because
//! it is kicked out when it was in the guest all the time. That takes the vCPU some microseconds. Where ring 3 sees
//! the host's counter whatever KVM says, there is nothing to look at.
//!
//! A look says no more than its bound: whoever was preempted in it for long has seen nothing of a smaller step. It vouches for
//! what was recorded before only where it is about as sure as what was known ([`VcpuClocks::check`]).
//!
//! What lies between the last reading that agreed and the one that does not was timed by nobody knows which of
//! the two: [`Reading::jumps`] tells readers of rings.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::relation::{Relation, Sample};
use super::{HeldTime, HostClock};
use crate::ring::moment::Moment;

/// Nobody asks.
const NEVER: u64 = u64::MAX;

/// The counters of a machine's vCPUs.
#[derive(Debug)]
pub struct VcpuClocks {
    time: Arc<HeldTime>,
    /// When each is to be looked at next, by the guest's time.
    due: Vec<AtomicU64>,
    interval: AtomicU64,
    /// Whether a ring may have the times of any of them.
    is_shared: AtomicBool,
    known: Mutex<Vec<Known>>,
    /// One that does not run as fast as the host's: which vCPU's, and the ticks of both in a millisecond.
    other_speed: Mutex<Option<(u16, [u32; 2])>>,
}

/// What is known of one.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    relation: Option<Relation>,
    /// The widest bound of a look that has vouched for it.
    vouched: u64,
    jumps: Jumps,
}

/// A look vouches for a counter when its bound is at most so many times what is known of that.
const ABOUT_AS_SURE: u64 = 4;
/// Or this part of the time until the next one: a quarter of a millisecond of a second, less than what a host takes that gives the CPU
/// to somebody else.
const SURE_PART: u64 = 4096;
/// After this part of that time a look is made again that was too vague.
const AGAIN_PART: u64 = 8;

/// How often a counter was not what it was taken for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Jumps {
    /// It was found to have been set.
    pub sets: u64,
    /// It could not be set back by what had been hidden.
    pub not_set_back: u64,
}

impl Jumps {
    const fn and(self, other: Self) -> Self {
        Self {
            sets: self.sets.saturating_add(other.sets),
            not_set_back: self.not_set_back.saturating_add(other.not_set_back),
        }
    }

    /// Those after so many.
    #[must_use]
    pub const fn after(self, before: Self) -> Self {
        Self {
            sets: self.sets.saturating_sub(before.sets),
            not_set_back: self.not_set_back.saturating_sub(before.not_set_back),
        }
    }
}

/// A look at the host's counter, and what is known of that which times a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The look.
    pub moment: Moment,
    /// The host's counter when the relation was last seen to hold.
    pub checked: u64,
    /// Of the counters that it may be timed by.
    pub jumps: Jumps,
    /// The ring is timed by counters that differ.
    pub is_mixed: bool,
}

impl Reading {
    /// Of a ring that is timed by the host's counter.
    #[must_use]
    pub const fn exact(now: u64) -> Self {
        Self {
            moment: Moment::exact(now),
            checked: now,
            jumps: Jumps {
                sets: 0,
                not_set_back: 0,
            },
            is_mixed: false,
        }
    }
}

/// What is known of all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// How far the worst known offset may be from the truth, in ticks.
    pub bound: u64,
    /// Of all of them.
    pub jumps: Jumps,
    /// Whether they differ.
    pub do_differ: bool,
}

impl VcpuClocks {
    /// Of so many vCPUs, beside the counter of their `host`. Until [`Self::begin`] their counters are taken for
    /// that one.
    #[must_use]
    pub fn new(vcpus: u16, host: HostClock) -> Self {
        Self {
            time: Arc::new(HeldTime::new(host)),
            due: (0..vcpus).map(|_| AtomicU64::new(NEVER)).collect(),
            interval: AtomicU64::new(NEVER),
            is_shared: AtomicBool::new(false),
            known: Mutex::new(vec![Known::default(); usize::from(vcpus)]),
            other_speed: Mutex::default(),
        }
    }

    /// These are the counters; none is of a vCPU whose counter cannot be read: it is taken for that of the others until it can
    /// be, and nothing vouches for that. They are looked at again each `interval` ticks.
    pub fn begin(&self, relations: &[Option<Relation>], interval: u64) {
        let mut all = relations.iter().flatten();
        let common = all
            .next()
            .and_then(|first| all.try_fold(*first, |both, next| both.and(next)));
        let mut known = self.lock();
        for (known, relation) in known.iter_mut().zip(relations) {
            known.relation = relation.map(|relation| {
                // The order of what different vCPUs record is exact when they have the same offset.
                let best = common.unwrap_or(relation);
                Relation {
                    offset: best.offset,
                    bound: best.bound,
                    ..relation
                }
            });
        }
        drop(known);
        self.interval.store(interval, Ordering::Relaxed);
        let next = self.time.counter().saturating_add(interval);
        self.due
            .iter()
            .for_each(|due| due.store(next, Ordering::Release));
    }

    /// From now on each ring may be written to by any vCPU.
    pub fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Whether the counters are known.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.interval.load(Ordering::Relaxed) != NEVER
    }

    /// The counter of this vCPU makes so many ticks in a millisecond, and the host's so many: KVM multiplies what the guest
    /// reads, so no offset relates the two.
    pub fn runs_at(&self, vcpu: u16, khz: u32, host_khz: u32) {
        let mut other = lock(&self.other_speed);
        other.get_or_insert((vcpu, [khz, host_khz]));
    }

    /// One that does not run as the host's does, as [`Self::runs_at`] was told.
    #[must_use]
    pub fn other_speed(&self) -> Option<(u16, [u32; 2])> {
        *lock(&self.other_speed)
    }

    /// Whether it is time to look at the counter of this vCPU.
    #[must_use]
    pub fn is_due(&self, vcpu: u16) -> bool {
        let due = self.due.get(usize::from(vcpu));
        due.is_some_and(|due| self.is_past(due.load(Ordering::Acquire)))
    }

    fn is_past(&self, due: u64) -> bool {
        due != NEVER && self.time.at_most() >= due
    }

    /// The vCPU at whose counter nobody has looked for the longest, of those for which it is time: for who looks at
    /// one after the other.
    #[must_use]
    pub fn most_due(&self) -> Option<u16> {
        let due = self.due.iter().map(|due| due.load(Ordering::Acquire));
        let due = (0..).zip(due).filter(|(_, due)| self.is_past(*due));
        due.min_by_key(|(_, due)| *due).map(|(vcpu, _)| vcpu)
    }

    /// The counter of this vCPU could not be read: it is looked at again when the others have been.
    pub fn put_off(&self, vcpu: u16) {
        self.is_next_at(vcpu, self.time.counter(), 1);
    }

    /// It is to be looked at again when the `part`th part of the interval is over.
    fn is_next_at(&self, vcpu: u16, now: u64, part: u64) {
        let interval = self.interval.load(Ordering::Relaxed);
        if let Some(due) = self.due.get(usize::from(vcpu))
            && interval != NEVER
        {
            due.store(now.saturating_add(interval / part), Ordering::Release);
        }
    }

    /// The counter was read again. What was recorded before is vouched for by a reading that is about as sure as what is known, or
    /// sure enough: one that is too vague to tell says nothing of it, and is made again soon.
    ///
    /// Says whether the counter was found to have been set.
    pub fn check(&self, vcpu: u16, sample: Sample) -> bool {
        let fresh = Relation::from(sample);
        let mut all = self.lock();
        let known = all.get(usize::from(vcpu)).copied();
        let Some(known) = known.filter(|_| self.is_begun()) else {
            return false;
        };
        let before = known.relation.unwrap_or_else(|| taken_for(&all));
        let sure = before.bound.saturating_mul(ABOUT_AS_SURE);
        let sure = sure.max(self.interval.load(Ordering::Relaxed) / SURE_PART);
        let agrees = before.and(&fresh).is_some();
        let (now, part) = match (agrees, fresh.bound <= sure) {
            (true, true) => (known.seen(before, &fresh), 1),
            (true, false) => (known, AGAIN_PART),
            (false, _) => (known.set(vcpu, &before, &fresh, &all), 1),
        };
        if let Some(known) = all.get_mut(usize::from(vcpu)) {
            *known = now;
        }
        self.is_next_at(vcpu, sample.after, part);
        !agrees
    }

    /// So many ticks were hidden from the guest, and the counter of this vCPU could not be set back by them: it is ahead of
    /// where it was, and stays there. Set back later it would go back.
    pub fn cannot_be_set_back(&self, vcpu: u16, ticks: u64) {
        let now = self.time.counter();
        let mut all = self.lock();
        let Some(known) = all.get_mut(usize::from(vcpu)) else {
            return;
        };
        known.jumps.not_set_back += 1;
        if let Some(relation) = &mut known.relation {
            relation.offset = relation.offset.wrapping_add(ticks);
            relation.measured = now;
        }
    }

    /// The clock of this vCPU, now.
    #[must_use]
    pub(crate) fn of(&self, vcpu: u16) -> Reading {
        match self.is_shared.load(Ordering::Relaxed) {
            true => self.of_any(),
            false => self.of_one(vcpu),
        }
    }

    fn of_one(&self, vcpu: u16) -> Reading {
        let now = self.time.counter();
        let all = self.lock();
        let known = all.get(usize::from(vcpu)).copied();
        let known = known.unwrap_or_default();
        if known.relation.is_none() && !self.is_begun() {
            return Reading::exact(now);
        }
        let relation = known.relation.unwrap_or_else(|| taken_for(&all));
        Reading {
            moment: Moment {
                now,
                offset: relation.offset,
                bound: relation.bound,
            },
            checked: relation.measured,
            jumps: known.jumps,
            is_mixed: false,
        }
    }

    /// The clock of whichever vCPU, now.
    #[must_use]
    pub(crate) fn of_any(&self) -> Reading {
        let mut reading = self.of_one(0);
        let summary = self.summary();
        let known = self.lock();
        let relations = known.iter().filter_map(|known| known.relation);
        let checked = relations.map(|relation| relation.measured).min();
        reading.checked = checked.unwrap_or(reading.checked);
        reading.jumps = summary.jumps;
        reading.is_mixed = summary.do_differ;
        reading
    }

    /// What is known of all of them; none while they are taken for the host's.
    #[must_use]
    pub(crate) fn summary(&self) -> Summary {
        let known = self.lock();
        let relations = || known.iter().filter_map(|known| known.relation);
        let first = relations().next();
        let bounds = relations().map(|one| one.bound);
        let bounds = bounds.chain(known.iter().map(|known| known.vouched));
        Summary {
            bound: bounds.max().unwrap_or_default(),
            jumps: known
                .iter()
                .fold(Jumps::default(), |sum, known| sum.and(known.jumps)),
            do_differ: first.is_some_and(|first| relations().any(|one| one.and(&first).is_none())),
        }
    }

    /// How often one could not be set back.
    #[must_use]
    pub fn not_set_back(&self) -> u64 {
        self.summary().jumps.not_set_back
    }

    /// The host's clock.
    #[must_use]
    pub fn host(&self) -> HostClock {
        self.time.host()
    }

    /// The guest's time, which they show.
    #[must_use]
    pub const fn time(&self) -> &Arc<HeldTime> {
        &self.time
    }

    /// How many vCPUs there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.due.len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        lock(&self.known)
    }
}

/// What is under a lock, also after a thread failed that had it: each is written at once.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a counter is taken for that could not be read: another vCPU's, since those of most guests are alike, or the host's.
fn taken_for(all: &[Known]) -> Relation {
    let other = all.iter().find_map(|known| known.relation);
    let (offset, bound) = other.map_or((0, 0), |other| (other.offset, other.bound));
    Relation {
        offset,
        bound,
        // Nobody has seen it.
        measured: 0,
    }
}

impl Known {
    /// It was found to be what it was `before`.
    fn seen(self, before: Relation, fresh: &Relation) -> Self {
        Self {
            relation: Some(Relation {
                measured: fresh.measured,
                ..before
            }),
            vouched: self.vouched.max(fresh.bound),
            ..self
        }
    }

    /// It was found to be another one than `before`, beside `all`.
    fn set(self, vcpu: u16, before: &Relation, fresh: &Relation, all: &[Self]) -> Self {
        let moved = fresh.ahead_of(before);
        log::warn!(
            "the clock of vCPU {vcpu} was set: it is {moved} ticks from where it was; \
             times from about then are in doubt"
        );
        // Set to what another has: then they are the same.
        let others = all.iter().filter_map(|known| known.relation);
        let same = others
            .filter(|other| other.and(before).is_none())
            .find(|other| other.and(fresh).is_some());
        let relation = same.map_or(*fresh, |same| Relation {
            measured: fresh.measured,
            ..same
        });
        Self {
            relation: Some(relation),
            jumps: Jumps {
                sets: self.jumps.sets + 1,
                ..self.jumps
            },
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOST: HostClock = HostClock {
        counter: || 1 << 61,
        now: || Duration::ZERO,
        rest: |_| {},
    };

    #[test]
    fn a_ring_of_all_vcpus_is_in_doubt_when_their_clocks_differ() {
        let clocks = VcpuClocks::new(2, HOST);
        let relation = |offset| Relation {
            offset,
            bound: 1,
            measured: 1,
        };
        clocks.begin(&[Some(relation(0)), Some(relation(1000))], 1 << 40);
        assert!(!clocks.of(0).is_mixed);
        clocks.share();
        assert!(clocks.of(0).is_mixed);
        assert_eq!(clocks.of(1).moment.offset, 0);
    }

    /// A reading of a counter that is `offset` ahead; it took `width` ticks.
    fn sample(at: u64, offset: u64, width: u64) -> Sample {
        Sample {
            before: at,
            guest: (at + width / 3).wrapping_add(offset),
            after: at + width,
        }
    }

    const INTERVAL: u64 = 1 << 22;

    fn clocks(offsets: &[u64]) -> VcpuClocks {
        let clocks = VcpuClocks::new(u16::try_from(offsets.len()).unwrap(), HOST);
        let at = |(width, offset): (u64, &u64)| Some(sample(1000, *offset, width).into());
        let relations: Vec<Option<Relation>> = (500..).step_by(90).zip(offsets).map(at).collect();
        clocks.begin(&relations, INTERVAL);
        clocks
    }

    #[test]
    fn without_measurements_it_is_the_hosts() {
        let clocks = VcpuClocks::new(2, HOST);
        let reading = clocks.of(1);
        assert_eq!(reading, Reading::exact(reading.moment.now));
        assert!(!clocks.is_due(0) && !clocks.is_due(7));
        clocks.check(0, sample(5, 1 << 40, 3));
        assert_eq!(clocks.summary(), Summary::default());
        assert!(!clocks.is_due(0), "nobody asks still");
    }

    #[test]
    fn vcpus_whose_measurements_agree_have_one_offset() {
        for offset in [0, 1 << 50, u64::MAX - 3] {
            let clocks = clocks(&[offset, offset, offset]);
            let readings = [0, 1, 2].map(|vcpu| clocks.of(vcpu).moment);
            let first = readings[0];
            let error = first.offset.wrapping_sub(offset).cast_signed();
            assert!(error.unsigned_abs() <= first.bound && first.bound <= 251);
            for other in readings {
                assert_eq!((other.offset, other.bound), (first.offset, first.bound));
            }
            assert!(!clocks.summary().do_differ && !clocks.of_any().is_mixed);
        }
    }

    #[test]
    fn vcpus_that_differ_keep_their_own_and_cannot_share() {
        let clocks = clocks(&[0, 1 << 30]);
        let [first, second] = [0, 1].map(|vcpu| clocks.of(vcpu).moment.offset);
        let apart = second.wrapping_sub(first);
        assert!(apart.abs_diff(1 << 30) < 1000);
        assert!(clocks.summary().do_differ && clocks.of_any().is_mixed);
    }

    #[test]
    fn a_check_that_agrees_changes_nothing_but_the_time() {
        let clocks = clocks(&[40, 40]);
        let before = clocks.of(0);
        clocks.check(0, sample(9000, 40, 77));
        let after = clocks.of(0);
        assert_eq!(after.moment.offset, before.moment.offset);
        assert_eq!((after.checked, after.jumps), (9000, Jumps::default()));
        assert_eq!(clocks.of_any().checked, 1000, "the other was not looked at");
    }

    #[test]
    fn a_counter_that_was_set_is_counted_once_and_known_anew() {
        let clocks = clocks(&[40, 40]);
        clocks.check(1, sample(5000, 1 << 33, 90));
        clocks.check(1, sample(6000, 1 << 33, 90));
        let reading = clocks.of(1);
        assert_eq!((reading.jumps.sets, reading.checked), (1, 6000));
        assert!(reading.moment.offset.abs_diff(1 << 33) <= 45);
        assert_eq!(clocks.of(0).jumps, Jumps::default());
        assert!(clocks.of_any().is_mixed);
        // The other one is set to the same: they are alike again, exactly.
        clocks.check(0, sample(7000, 1 << 33, 500));
        assert_eq!(clocks.of(0).moment.offset, clocks.of(1).moment.offset);
        let all = clocks.of_any();
        assert!(!all.is_mixed);
        assert_eq!(all.jumps.sets, 2);
    }

    /// Its records have the right times all the same, and what it is found at later is no news.
    #[test]
    fn a_counter_that_could_not_be_set_back_is_ahead_from_then_on() {
        let clocks = clocks(&[40, 40]);
        let before = clocks.of(1).moment;
        clocks.cannot_be_set_back(1, 3000);
        let reading = clocks.of(1);
        let once = Jumps {
            sets: 0,
            not_set_back: 1,
        };
        assert_eq!((reading.jumps, reading.checked), (once, 1 << 61));
        assert_eq!(reading.moment.offset, before.offset.wrapping_add(3000));
        assert_eq!(clocks.of(0).jumps, Jumps::default());
        assert!(clocks.of_any().is_mixed, "one of two");
        clocks.check(1, sample(9000, 3040, 77));
        assert_eq!(clocks.of(1).jumps, once);
        assert_eq!(clocks.summary().jumps, once);
        // Nothing is known of its counter, or there is none.
        let unknown = VcpuClocks::new(1, HOST);
        unknown.cannot_be_set_back(0, 3000);
        unknown.cannot_be_set_back(1, 3000);
        assert_eq!(unknown.summary().jumps, once);
        assert_eq!(unknown.of(0).moment.offset, 0);
    }

    /// It was once taken for a proof that nothing had been set, whatever the reading could have told.
    #[test]
    fn a_check_that_is_too_vague_to_tell_vouches_for_nothing() {
        let clocks = clocks(&[40, 40]);
        let before = clocks.of(0);
        let vague = sample(9000, 40 + 100_000, 4 << 20);
        clocks.check(0, vague);
        let after = clocks.of(0);
        assert_eq!((after.checked, after.jumps), (1000, Jumps::default()));
        assert_eq!(after.moment, before.moment);
        assert_eq!(clocks.of_any().checked, 1000);
        assert_eq!(clocks.summary().bound, before.moment.bound);
        // It is made again before it is time for the others.
        let due = |vcpu: usize| clocks.due[vcpu].load(Ordering::Acquire);
        assert_eq!(due(0), vague.after + INTERVAL / AGAIN_PART);
        // A sure one sees what had been set.
        clocks.check(0, sample(8 << 20, 40 + 100_000, 100));
        assert_eq!(clocks.of(0).jumps.sets, 1);
        assert_eq!(due(0), (8 << 20) + 100 + INTERVAL);
        // However vague it is, what it contradicts was set.
        clocks.check(1, sample(9 << 20, 1 << 40, 4 << 20));
        assert_eq!(clocks.of(1).jumps.sets, 1);
    }

    #[test]
    fn a_check_vouches_within_its_bound_which_is_told() {
        let clocks = clocks(&[40, 40]);
        let bound = clocks.summary().bound;
        // As much as four times what is known, or some thousandth of the interval.
        let most = (4 * bound).max(INTERVAL / SURE_PART);
        clocks.check(0, sample(8000, 40, 2 * most + 2));
        assert_eq!(clocks.of(0).checked, 1000);
        clocks.check(0, sample(9000, 40, 2 * most));
        assert_eq!((clocks.of(0).checked, clocks.summary().bound), (9000, most));
        assert_eq!(clocks.of(0).moment.bound, bound, "no less is known");
    }

    /// It was once at the host's, so that all of them were said to differ.
    #[test]
    fn a_counter_that_cannot_be_read_is_unknown_and_no_other_one() {
        let clocks = VcpuClocks::new(3, HOST);
        let at = |offset| Some(Relation::from(sample(1000, offset, 10)));
        clocks.begin(&[None, at(5000), at(5000)], INTERVAL);
        assert!(!clocks.summary().do_differ && !clocks.of_any().is_mixed);
        assert_eq!(clocks.of_any().checked, 1000);
        let [unknown, other] = [0, 1].map(|vcpu| clocks.of(vcpu));
        assert_eq!((unknown.checked, other.checked), (0, 1000));
        assert_eq!(unknown.moment, other.moment);
        // It can be read again, and is what it was taken for.
        clocks.check(0, sample(7000, 5000, 10));
        let known = clocks.of(0);
        assert_eq!((known.checked, known.jumps), (7000, Jumps::default()));
        // Or is not.
        clocks.begin(&[None, at(5000), at(5000)], INTERVAL);
        clocks.check(0, sample(7000, 1 << 33, 10));
        assert_eq!(clocks.of(0).jumps.sets, 1);
        assert!(clocks.summary().do_differ);
        // None of them could be.
        clocks.begin(&[None; 3], INTERVAL);
        let none = clocks.of(2);
        assert_eq!((none.moment.offset, none.checked), (0, 0));
    }

    #[test]
    fn who_looks_at_one_after_the_other_takes_the_one_that_waits_for_the_longest() {
        let clocks = VcpuClocks::new(3, HOST);
        assert_eq!(clocks.most_due(), None);
        clocks.begin(&[None; 3], 0);
        // In the past of the host whose time stands still.
        for (vcpu, at) in [(0, 700), (1, 300), (2, 500)] {
            clocks.check(vcpu, sample(at, 0, 1));
        }
        assert_eq!(clocks.most_due(), Some(1));
        clocks.put_off(1);
        assert_eq!(clocks.most_due(), Some(2));
        clocks.check(2, sample(1 << 62, 0, 1));
        assert_eq!(clocks.most_due(), Some(0));
        clocks.check(0, sample(1 << 62, 0, 1));
        assert_eq!(clocks.most_due(), Some(1), "that can be read by now");
        clocks.check(1, sample(1 << 62, 0, 1));
        assert_eq!(clocks.most_due(), None);
    }

    #[test]
    fn each_is_due_after_the_interval() {
        let clocks = VcpuClocks::new(1, HOST);
        clocks.begin(&[Some(sample(1, 0, 1).into())], 1);
        assert!(!clocks.is_due(0));
        clocks.begin(&[Some(sample(1, 0, 1).into())], 0);
        assert!(clocks.is_due(0));
    }
}
