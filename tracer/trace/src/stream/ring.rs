//! What one ring has brought and has not continued yet. It stays where it was read to until its turn comes: nothing is
//! copied to wait.

use std::collections::VecDeque;

use super::merge::Taker;
use crate::event::{Record, RecordKind, Steps, Timed};

/// What one ring brought in one round.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub vcpu: u16,
    pub records: Vec<Record>,
    /// How many of them have continued.
    pub passed: usize,
    /// When the round was over, if the guest runs.
    pub until_ns: u64,
    /// When it came: what had continued was not after this,
    pub passed_ns: u64,
    /// what had continued without being certain was not after this,
    pub forced_ns: u64,
    /// and what was lost in this ring was lost after this.
    pub seen_ns: u64,
}

/// So many records of a ring are looked at together, at most: no more than a processor has near.
pub(super) const NEAR: usize = 4096;

/// In place of a record that has continued.
const PASSED: Record = Record {
    time_ns: 0,
    kind: RecordKind::Lost(0),
};

impl Batch {
    /// Those that wait.
    fn rest(&self) -> &[Record] {
        self.records.get(self.passed..).unwrap_or_default()
    }

    /// When a record of it was made.
    fn own_ns(&self, record: &Record) -> u64 {
        match record.kind {
            // Nothing was missing when the ring was looked at before.
            RecordKind::Lost(_) => record.time_ns.max(self.seen_ns),
            _ => record.time_ns,
        }
    }

    /// The place of a record, after the ring's last. A time that others have passed is set to theirs. Its own thread has
    /// not: it continues only after the record has its place in the ring, and the ring was looked at before that.
    fn place_ns(&self, record: &Record, last_ns: u64) -> u64 {
        self.own_ns(record).max(last_ns).max(self.passed_ns)
    }

    /// Up to when a loss may have happened that was the next record: by its place in the ring before the one that is
    /// next now, and with no record after it, at some time up to the end of the round.
    fn until_ns(&self) -> u64 {
        let next = self.rest().first();
        next.map_or(self.until_ns, |next| next.time_ns)
    }

    /// The next record, if its place is in this turn.
    fn pop(&mut self, last_ns: u64, turn: &Turn) -> Option<Timed> {
        let next = self.rest().first()?;
        let (own_ns, time_ns) = (self.own_ns(next), self.place_ns(next, last_ns));
        if time_ns > turn.up_to_ns {
            return None;
        }
        let record = std::mem::replace(self.records.get_mut(self.passed)?, PASSED);
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
    /// each at the time that it was made at. There may be more.
    fn steps(&self, last_ns: u64, turn: &Turn) -> Steps<'_> {
        let mut least_ns = last_ns.max(self.passed_ns).max(self.forced_ns);
        let most_ns = turn.up_to_ns.min(turn.others_ns.saturating_sub(1));
        let rest = self.rest();
        let fit = rest.iter().take(turn.most.min(NEAR)).take_while(|record| {
            let time_ns = record.time_ns;
            let is_next = (least_ns..=most_ns).contains(&time_ns);
            least_ns = time_ns;
            is_next && record.kind.slot().is_some()
        });
        Steps {
            vcpu: self.vcpu,
            records: rest.get(..fit.count()).unwrap_or_default(),
        }
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
        Some(batch.place_ns(batch.rest().first()?, self.last_ns))
    }

    /// Passes on what is in this turn, as of the ring of this number, and leaves its room. Returns how many there were.
    pub fn pass_on(
        &mut self,
        number: usize,
        turn: &Turn,
        to: &mut impl Taker,
        spare: &mut Vec<Vec<Record>>,
    ) -> usize {
        let mut count = 0;
        while let Some(batch) = self.waiting.front_mut() {
            while count < turn.most {
                let steps = batch.steps(self.last_ns, turn);
                if let Some(last) = steps.records.last() {
                    self.last_ns = last.time_ns;
                    let taken = steps.records.len();
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

    /// The first that wait have continued, so many of one batch.
    pub fn skip(&mut self, steps: usize, spare: &mut Vec<Vec<Record>>) {
        if let Some(batch) = self.waiting.front_mut().filter(|_| steps > 0) {
            batch.passed += steps;
            let last = batch.records.get(batch.passed - 1);
            self.last_ns = last.map_or(self.last_ns, |last| last.time_ns);
            self.leave(spare);
        }
    }

    /// Leaves the room of the first batch, if all of it has continued.
    fn leave(&mut self, spare: &mut Vec<Vec<Record>>) -> bool {
        let done = self.waiting.pop_front_if(|batch| batch.rest().is_empty());
        let Some(Batch { mut records, .. }) = done else {
            return false;
        };
        records.clear();
        spare.push(records);
        true
    }

    /// Up to when, and without that time, all that it brings is in its first batch, and [`NEAR`].
    pub fn near_ns(&self, is_over: bool) -> u64 {
        let seen_ns = if is_over { u64::MAX } else { self.seen_ns };
        let mut waiting = self.waiting.iter();
        let Some(first) = waiting.next().map(Batch::rest) else {
            return seen_ns;
        };
        if let Some(beyond) = first.get(NEAR) {
            return beyond.time_ns;
        }
        let next = waiting.next().map(Batch::rest);
        let next_ns = next.map_or(seen_ns, |next| next.first().map_or(0, |next| next.time_ns));
        first
            .last()
            .map_or(next_ns, |last| next_ns.max(last.time_ns))
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
        let last_ns = steps
            .records
            .last()
            .map_or(self.last_ns, |last| last.time_ns);
        let place_ns = |batch: &Batch, record| batch.place_ns(record, last_ns);
        let next_ns = match batch.rest().get(steps.records.len()) {
            Some(next) => Some(place_ns(batch, next)),
            None => waiting
                .next()
                .and_then(|next| Some(place_ns(next, next.rest().first()?))),
        };
        next_ns
            .is_none_or(|next_ns| next_ns >= end_ns)
            .then_some(steps)
    }
}
