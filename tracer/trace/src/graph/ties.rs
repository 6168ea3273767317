//! Which of the records of one time and one stack come first, when they were made on several vCPUs.
//!
//! A thread can be interrupted right after it has read the time of a record, and go on on another vCPU. Then its record
//! lies in that one's ring, with a time at which the thread was not there yet; and what it did before lies in the
//! ring of the vCPU that it came from, perhaps with the same time: counters count in steps (10 ns on one host), and a clock page stands still
//! between two of its beats. Neither the time nor the rings say what was first. The stack does: a call is entered inside of the
//! innermost one, and only that one returns. What fits so comes first, and of that, what the vCPU brings where the thread was.

use std::collections::{BTreeMap, VecDeque};

/// So many wait at most: while a clock stands still, everything has the same time. Ten milliseconds of a busy vCPU.
const WAITING_MAX: usize = 1 << 16;
/// Bytes that wait beside them, at most: values of calls.
const BYTES_MAX: usize = 64 << 20;

/// Records of one time that wait until all of that time have come.
#[derive(Debug)]
pub(super) struct Ties<T> {
    /// Of each stack.
    stacks: BTreeMap<u32, Vec<Lane<T>>>,
    waiting: usize,
    /// What came with them, until nothing waits.
    bytes: usize,
    time_ns: u64,
}

/// What one vCPU brings of one stack, in the order of its ring.
#[derive(Debug)]
struct Lane<T> {
    vcpu: u16,
    records: VecDeque<T>,
}

impl<T> Ties<T> {
    pub const fn new() -> Self {
        Self {
            stacks: BTreeMap::new(),
            waiting: 0,
            bytes: 0,
            time_ns: 0,
        }
    }

    /// Whether something waits that all of its time have come for when a record of this time has.
    pub const fn are_before(&self, time_ns: u64) -> bool {
        self.waiting > 0 && self.time_ns < time_ns
    }

    /// Whether nothing waits.
    pub const fn are_none(&self) -> bool {
        self.waiting == 0
    }

    /// Whether there is no room.
    pub const fn are_full(&self) -> bool {
        self.waiting >= WAITING_MAX || self.bytes >= BYTES_MAX
    }

    /// Whether something of this stack waits: what comes after it has to wait, too.
    pub fn have(&self, stack: u32) -> bool {
        self.stacks.contains_key(&stack)
    }

    /// So many bytes come with the next record.
    pub const fn weigh(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The next record that this vCPU brings of this stack. All that wait have the same time.
    pub fn add(&mut self, time_ns: u64, stack: u32, vcpu: u16, record: T) {
        self.time_ns = time_ns;
        self.waiting += 1;
        let lanes = self.stacks.entry(stack).or_default();
        match lanes.iter_mut().find(|lane| lane.vcpu == vcpu) {
            Some(lane) => lane.records.push_back(record),
            None => lanes.push(Lane {
                vcpu,
                records: [record].into(),
            }),
        }
    }

    /// Takes what is next of some stack: what has the lowest rank, which goes by the record and by how many that vCPU brings
    /// of the stack. Of equal ones it is that which came first.
    pub fn next<R: Ord>(&mut self, rank: impl Fn(&T, usize) -> R) -> Option<T> {
        let mut stack = self.stacks.first_entry()?;
        let lanes = stack.get_mut();
        let rank = |lane: &Lane<T>| Some(rank(lane.records.front()?, lane.records.len()));
        let (index, _) = lanes
            .iter()
            .enumerate()
            .min_by_key(|(_, lane)| rank(lane))?;
        let lane = lanes.get_mut(index)?;
        let record = lane.records.pop_front();
        if lane.records.is_empty() {
            lanes.remove(index);
        }
        if lanes.is_empty() {
            stack.remove();
        }
        self.waiting -= 1;
        if self.waiting == 0 {
            self.bytes = 0;
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_with_records_counts_until_none_waits() {
        let mut ties = Ties::new();
        for (stack, bytes) in [(1, BYTES_MAX - 1), (2, 1)] {
            assert!(!ties.are_full());
            ties.weigh(bytes);
            ties.add(5, stack, 0, stack);
        }
        assert!(ties.are_full());
        while ties.next(|_, _| 0).is_some() {}
        assert!(!ties.are_full());
        ties.weigh(BYTES_MAX - 1);
        ties.add(6, 1, 0, 1);
        assert!(!ties.are_full());
    }
}
