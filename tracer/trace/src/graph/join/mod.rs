//! Values that were captured of calls, put to the records of the same calls.
//!
//! A stub has the values of a step captured right before it records the step: by the same thread, with the same
//! stack slot, and the time is taken anew for each of the two. So in the order of time what was captured last at a
//! slot belongs to the slot's next record, unless a record is missing in between. What can be missing is known:
//!
//! * A record of the graph was lost. Whatever was captured before the end of the loss is dropped, for the next record
//!   at its slot may be another call's.
//! * What was captured was lost. The record finds nothing at its slot, or what a call of which the record is missing
//!   has left: that is the first case.
//! * A record was passed on late, because too much waited for it. It gets no values, and neither does what waits at its slot.
//!
//! So a call has its own values or none, and none is counted.

use std::collections::HashMap;
use std::collections::HashSet;

use terms::function::FunctionId;

use crate::event::Step;
use crate::event::{CallValues, Moment, Values, weight};

/// Captured values that wait for their records, at most: one for each stack slot that is being entered or left.
const WAITING_MAX: usize = 1 << 16;
/// Bytes that they take, at most: in a file that comes from somebody a record can have thousands of values.
const BYTES_MAX: usize = 64 << 20;

/// What became of captured values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Joined {
    /// Steps that have their values.
    pub with: u64,
    /// Steps of functions that are captured, without values.
    pub without: u64,
    /// Captured values without a step.
    pub unclaimed: u64,
}

/// What was captured at a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Found {
    /// Nothing was to be captured.
    #[default]
    Nothing,
    /// These values.
    Values(Values),
    /// Something that is not there.
    Missing,
}

/// Captured values that wait for their record.
#[derive(Debug)]
struct Waiting {
    function: FunctionId,
    values: Values,
    /// What they take.
    bytes: usize,
}

/// Captured values on their way to their records.
#[derive(Debug)]
pub struct Join {
    /// By stack slot.
    waiting: HashMap<(u64, Moment), Waiting>,
    /// What all of them take, and may.
    bytes: usize,
    bytes_max: usize,
    captured: HashSet<(FunctionId, Moment)>,
    /// What was captured up to then may belong to a record that was lost.
    lossy_until_ns: u64,
    joined: Joined,
}

impl Default for Join {
    fn default() -> Self {
        Self {
            waiting: HashMap::new(),
            bytes: 0,
            bytes_max: BYTES_MAX,
            captured: HashSet::new(),
            lossy_until_ns: 0,
            joined: Joined::default(),
        }
    }
}

impl Join {
    /// Values that wait take no more than so many bytes.
    #[cfg(test)]
    pub(crate) const fn keep_within(&mut self, bytes: usize) {
        self.bytes_max = bytes;
    }

    /// Values of these calls are captured from now on.
    pub fn expect(&mut self, function: FunctionId, moment: Moment) {
        self.captured.insert((function, moment));
    }

    /// What became of everything so far.
    #[must_use]
    pub const fn joined(&self) -> Joined {
        self.joined
    }

    /// The next captured values in the order of time.
    pub fn captured(&mut self, time_ns: u64, is_late: bool, call: CallValues) {
        if is_late || time_ns <= self.lossy_until_ns {
            self.joined.unclaimed += 1;
            return;
        }
        let bytes = weight(&call.values);
        let is_much = self.bytes.saturating_add(bytes) > self.bytes_max;
        if self.waiting.len() >= WAITING_MAX || is_much {
            self.drop_waiting();
        }
        let waiting = Waiting {
            function: call.function,
            values: call.values,
            bytes,
        };
        self.bytes += bytes;
        let before = self.waiting.insert((call.slot, call.moment), waiting);
        self.joined.unclaimed += u64::from(before.is_some());
        self.bytes -= before.map_or(0, |before| before.bytes);
    }

    /// Records of the graph were lost, up to this time.
    pub fn lost(&mut self, until_ns: u64) {
        self.lossy_until_ns = self.lossy_until_ns.max(until_ns);
        self.drop_waiting();
    }

    /// The values of the next record in the order of time.
    pub fn record(&mut self, is_late: bool, function: FunctionId, step: Step, slot: u64) -> Found {
        let moment = match step {
            Step::Exit => Moment::Exit,
            Step::Entry | Step::Tail | Step::Unhooked => Moment::Entry,
        };
        let waiting = self.waiting.remove(&(slot, moment));
        self.bytes -= waiting.as_ref().map_or(0, |waiting| waiting.bytes);
        let is_its_own = |waiting: &Waiting| waiting.function == function && !is_late;
        let is_wrong = waiting.as_ref().is_some_and(|waiting| !is_its_own(waiting));
        self.joined.unclaimed += u64::from(is_wrong);
        match waiting.filter(is_its_own) {
            Some(Waiting { values, .. }) => {
                self.joined.with += 1;
                Found::Values(values)
            }
            None if self.captured.contains(&(function, moment)) => {
                self.joined.without += 1;
                Found::Missing
            }
            None => Found::Nothing,
        }
    }

    fn drop_waiting(&mut self) {
        self.joined.unclaimed += self.waiting.len() as u64;
        self.waiting.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests;
