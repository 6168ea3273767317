//! What one ring has brought and has not continued yet. It stays where it was read to until its turn comes: nothing is
//! copied to wait.

use std::collections::VecDeque;

use super::taker::Taker;
use crate::columns::{LentSteps, Part, Steps};
use crate::event::Timed;

/// What one ring brought in one round, or a part of it.
#[derive(Debug)]
pub(super) struct Batch {
    pub vcpu: u16,
    pub part: Part,
    /// How many of its records have continued.
    pub passed: usize,
    /// When the round was over, if the guest runs; before that, when the next part begins.
    pub until_ns: u64,
    /// When it came: what had continued was not after this,
    pub passed_ns: u64,
    /// what had continued without being certain was not after this,
    pub forced_ns: u64,
    /// and what was lost in this ring was lost after this.
    pub seen_ns: u64,
}

impl Batch {
    /// How many records wait.
    pub const fn waiting(&self) -> usize {
        self.part.len().saturating_sub(self.passed)
    }

    /// When a record of it was made.
    fn own_ns(&self, index: usize) -> Option<u64> {
        let time_ns = self.part.time_ns(index)?;
        Some(match self.part.is_loss(index) {
            // Nothing was missing when the ring was looked at before.
            true => time_ns.max(self.seen_ns),
            false => time_ns,
        })
    }

    /// The place of a record, after the ring's last. A time that others have passed is set to theirs. Its own thread has
    /// not: it continues only after the record has its place in the ring, and the ring was looked at before that.
    fn place_ns(&self, index: usize, last_ns: u64) -> Option<u64> {
        Some(self.own_ns(index)?.max(last_ns).max(self.passed_ns))
    }

    /// Up to when a loss may have happened that was the record before the next: by its place in the ring before that, and
    /// with no record after it, at some time up to the end of the round.
    fn until_ns(&self) -> u64 {
        self.part.time_ns(self.passed).unwrap_or(self.until_ns)
    }

    /// The next record, if its place is in this turn.
    fn pop(&mut self, last_ns: u64, turn: &Turn) -> Option<Timed> {
        let own_ns = self.own_ns(self.passed)?;
        let time_ns = self.place_ns(self.passed, last_ns)?;
        if time_ns > turn.up_to_ns {
            return None;
        }
        let record = self.part.take(self.passed)?;
        self.passed += 1;
        Some(Timed {
            record,
            vcpu: self.vcpu,
            time_ns,
            until_ns: self.until_ns(),
            is_late: own_ns < self.forced_ns,
            is_tied: time_ns >= turn.others_ns,
        })
    }

    /// The next records, as far as nothing more is to be said of them: steps in this turn that are neither late nor tied,
    /// each at the time that it was made at.
    fn steps(&self, last_ns: u64, turn: &Turn) -> Steps<'_> {
        let Part::Steps(steps) = &self.part else {
            return Steps::default();
        };
        let times = steps.times().get(self.passed..).unwrap_or_default();
        let least_ns = last_ns.max(self.passed_ns).max(self.forced_ns);
        if !steps.is_ascending() || times.first().is_none_or(|first| *first < least_ns) {
            return Steps::default();
        }
        let most_ns = turn.up_to_ns.min(turn.others_ns.saturating_sub(1));
        let count = times.partition_point(|time_ns| *time_ns <= most_ns);
        steps.some(self.vcpu, self.passed..self.passed + count.min(turn.most))
    }
}

/// How far one ring goes before the others.
pub(super) struct Turn {
    pub up_to_ns: u64,
    pub most: usize,
    /// The others bring nothing that is earlier.
    pub others_ns: u64,
}

/// The records of one ring that wait.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub waiting: VecDeque<Batch>,
    /// No record to come is earlier.
    pub seen_ns: u64,
    /// The place of the last that has continued.
    pub last_ns: u64,
}

impl Ring {
    /// The place of the next record.
    pub fn head_ns(&self) -> Option<u64> {
        let batch = self.waiting.front()?;
        batch.place_ns(batch.passed, self.last_ns)
    }

    /// Passes on what is in this turn, as of the ring of this number, and leaves its room. Returns how many there were.
    pub fn pass_on(
        &mut self,
        number: usize,
        turn: &Turn,
        to: &mut impl Taker,
        spare: &mut Vec<Part>,
    ) -> usize {
        let mut count = 0;
        while let Some(batch) = self.waiting.front_mut() {
            while count < turn.most {
                let steps = batch.steps(self.last_ns, turn);
                if let Some(last_ns) = steps.times.last() {
                    self.last_ns = *last_ns;
                    let taken = steps.len();
                    to.steps(steps);
                    batch.passed += taken;
                    count += taken;
                } else if let Some(timed) = batch.pop(self.last_ns, turn) {
                    self.last_ns = timed.time_ns;
                    to.one(number, timed);
                    count += 1;
                } else {
                    break;
                }
            }
            if !self.leave(spare) {
                break;
            }
        }
        count
    }

    /// Lends the first steps that wait, so many of one batch.
    pub fn lend(&mut self, steps: usize) -> Option<LentSteps> {
        let batch = self.waiting.front_mut().filter(|_| steps > 0)?;
        let Part::Steps(columns) = &mut batch.part else {
            return None;
        };
        Some(LentSteps {
            vcpu: batch.vcpu,
            columns: std::mem::take(columns),
            range: batch.passed..batch.passed + steps,
        })
    }

    /// What was lent is back, and has continued.
    pub fn take_back(&mut self, lent: LentSteps, spare: &mut Vec<Part>) {
        let Some(batch) = self.waiting.front_mut() else {
            return;
        };
        let last_ns = lent.steps().times.last().copied();
        self.last_ns = last_ns.unwrap_or(self.last_ns);
        batch.part = Part::Steps(lent.columns);
        batch.passed = lent.range.end;
        self.leave(spare);
    }

    /// Leaves the room of the first batch, if all of it has continued.
    fn leave(&mut self, spare: &mut Vec<Part>) -> bool {
        let done = self.waiting.pop_front_if(|batch| batch.waiting() == 0);
        let Some(Batch { mut part, .. }) = done else {
            return false;
        };
        part.clear();
        spare.push(part);
        true
    }

    /// Up to when, and without that time, all that it brings is in its first batch.
    pub fn near_ns(&self, is_over: bool) -> u64 {
        let seen_ns = if is_over { u64::MAX } else { self.seen_ns };
        let mut waiting = self.waiting.iter();
        let Some(first) = waiting.next() else {
            return seen_ns;
        };
        let next_ns = waiting.next().map(|next| next.part.time_ns(next.passed));
        let next_ns = next_ns.map_or(seen_ns, Option::unwrap_or_default);
        let last_ns = first.part.time_ns(first.part.len().saturating_sub(1));
        last_ns.map_or(next_ns, |last_ns| next_ns.max(last_ns))
    }

    /// All that it brings before this time, which is not after [`Self::near_ns`]: steps of which nothing more is to be said.
    /// `None` if there is something else.
    pub fn steps_before(&self, end_ns: u64) -> Option<Steps<'_>> {
        let mut waiting = self.waiting.iter();
        let Some(batch) = waiting.next() else {
            return Some(Steps::default());
        };
        let turn = Turn {
            up_to_ns: u64::MAX,
            most: usize::MAX,
            others_ns: end_ns,
        };
        let steps = batch.steps(self.last_ns, &turn);
        let last_ns = steps.times.last().copied().unwrap_or(self.last_ns);
        let next_ns = match batch.place_ns(batch.passed + steps.len(), last_ns) {
            Some(next_ns) => Some(next_ns),
            None => waiting
                .next()
                .and_then(|next| next.place_ns(next.passed, last_ns)),
        };
        let is_all = next_ns.is_none_or(|next_ns| next_ns >= end_ns);
        is_all.then_some(steps)
    }
}
