//! What did not fit together, counted by kind, with an example of each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terms::function::FunctionId;

/// A kind of thing that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Anomaly {
    /// A call whose return could not be hooked.
    Unhooked,
    /// An outer call returned, this one did not.
    NotSeen,
    /// The stack was used again before the call returned.
    Unreturned,
    /// Its thread ended before the call returned.
    Died,
    /// The call was open when records were lost, and its exit was not seen.
    LostExit,
    /// The call was open while records were lost: its duration is not known.
    Unsure,
    /// An exit of a call that is not open.
    UnmatchedExit,
    /// A call that returned after the place of an outer one was left: two stacks are taken for one.
    SharedStack,
    /// A call on such a stack, of which the entry alone is shown.
    EntryOnly,
    /// A call that there was no room to follow.
    NoRoom,
    /// A record that came too late to be put in its place.
    Late,
    /// A step of a call that has not the values which were to be captured of it.
    NoValues,
}

impl Anomaly {
    /// What reports say of it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Unhooked => {
                "calls of which the entry alone is known: their return could not be hooked"
            }
            Self::NotSeen => "calls without a return: an outer call returned first",
            Self::Unreturned => "calls without a return: their stack was used again",
            Self::Died => "calls without a return: their thread ended",
            Self::LostExit => "calls whose exit may be among the lost records",
            Self::Unsure => "calls of unknown duration: records were lost meanwhile",
            Self::UnmatchedExit => "exits of calls that were not seen to begin",
            Self::SharedStack => {
                "stacks not told apart (a smaller stack size may help); entries only from there"
            }
            Self::EntryOnly => "calls on such stacks",
            Self::NoRoom => "calls not followed: too many stacks, or too many calls open at once",
            Self::Late => "records that came too late for their place",
            Self::NoValues => {
                "entries and returns without their values: those or records near them were lost, or too many waited"
            }
        }
    }
}

/// How often, and the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// How often.
    pub count: u64,
    /// When the first was, in nanoseconds.
    pub time_ns: u64,
    /// The function of the first.
    pub function: FunctionId,
    /// The thread of the first.
    pub thread: u32,
}

/// All that did not fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Anomalies(BTreeMap<Anomaly, Seen>);

impl Anomalies {
    /// One more, at this time. Of the first time the lowest thread is shown, whichever comes first: threads need not come in the
    /// order of time.
    pub fn note(&mut self, anomaly: Anomaly, time_ns: u64, function: FunctionId, thread: u32) {
        let first = Seen {
            count: 0,
            time_ns,
            function,
            thread,
        };
        let seen = self.0.entry(anomaly).or_insert(first);
        if (time_ns, thread) < (seen.time_ns, seen.thread) {
            let count = seen.count;
            *seen = Seen { count, ..first };
        }
        seen.count += 1;
    }

    /// How often.
    #[must_use]
    pub fn count(&self, anomaly: Anomaly) -> u64 {
        self.0.get(&anomaly).map_or(0, |seen| seen.count)
    }

    /// Those that were noted elsewhere.
    pub fn add(&mut self, others: &Self) {
        for (anomaly, other) in &others.0 {
            let seen = self
                .0
                .entry(*anomaly)
                .or_insert(Seen { count: 0, ..*other });
            let count = seen.count + other.count;
            let first = [*seen, *other];
            let first = first
                .into_iter()
                .min_by_key(|seen| (seen.time_ns, seen.thread));
            *seen = Seen {
                count,
                ..first.unwrap_or(*other)
            };
        }
    }

    /// Those that there were.
    pub fn iter(&self) -> impl Iterator<Item = (Anomaly, Seen)> {
        self.0.iter().map(|(anomaly, seen)| (*anomaly, *seen))
    }
}
