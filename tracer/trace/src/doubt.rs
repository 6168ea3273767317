//! Records whose time is in doubt, counted by why, and how often the guest's clock was set, or could not be.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the time of a record may be wrong, and what else is wrong with a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeDoubt {
    /// Nobody looked at the ring for so long that the low bits in the record have gone round.
    Late,
    /// It would be a time at which the record cannot have been made.
    Impossible,
    /// The clock that it was taken from was set at about that time.
    Moved,
    /// The vCPUs' clocks differ, and whose it was taken from is not known.
    Mixed,
    /// No record, but a clock that was found to have been set.
    Set,
    /// No record, but a clock that could not be set back by the waits that were to be hidden from the guest.
    NotSetBack,
    /// No record, but a clock that could not be looked at after the last records that it has timed.
    Unchecked,
    /// No record, but a stall of the clock page of which nothing is known but that it was.
    Stalled,
}

impl TimeDoubt {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Late,
        Self::Impossible,
        Self::Moved,
        Self::Mixed,
        Self::Set,
        Self::NotSetBack,
        Self::Unchecked,
        Self::Stalled,
    ];

    /// Whether it is records that are counted.
    #[must_use]
    pub const fn is_of_records(self) -> bool {
        !matches!(
            self,
            Self::Set | Self::NotSetBack | Self::Unchecked | Self::Stalled
        )
    }

    /// What reports say of it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Late => {
                "records may have wrong times: the host was too busy to look at their ring"
            }
            Self::Impossible => {
                "records had impossible times: they are shown at the time of the record before"
            }
            Self::Moved => {
                "records may have wrong times: the guest's clock was set meanwhile, or could not be set back"
            }
            Self::Mixed => {
                "records may have wrong times: the vCPUs' clocks differ, and they share a ring"
            }
            Self::Set => "× the clock of a vCPU had been set, or had run away from the host's",
            Self::NotSetBack => {
                "× the clock of a vCPU could not be set back by what was hidden: the guest has seen that wait"
            }
            Self::Unchecked => {
                "× the clock of a vCPU could not be looked at after its last records: whether it had been set by then is not known"
            }
            Self::Stalled => {
                "× the clock had stood still, when and for how long is not known: so many are not kept"
            }
        }
    }
}

/// How many there are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeNote {
    /// Why.
    pub kind: TimeDoubt,
    /// How many.
    pub count: u64,
}

impl fmt::Display for TimeNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.kind.text())
    }
}

/// How many there are of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeDoubts {
    counts: [u64; TimeDoubt::ALL.len()],
}

impl TimeDoubts {
    /// So many more.
    pub fn add(&mut self, kind: TimeDoubt, records: u64) {
        if let Some(count) = self.counts.get_mut(kind as usize) {
            *count = count.saturating_add(records);
        }
    }

    /// All of another count, too.
    pub fn add_all(&mut self, other: &Self) {
        for kind in TimeDoubt::ALL {
            self.add(kind, other.count(kind));
        }
    }

    /// How many of this kind.
    #[must_use]
    pub fn count(&self, kind: TimeDoubt) -> u64 {
        self.counts.get(kind as usize).copied().unwrap_or_default()
    }

    /// How many records are in doubt.
    #[must_use]
    pub fn records(&self) -> u64 {
        let kinds = TimeDoubt::ALL.into_iter();
        let records = kinds.filter(|kind| kind.is_of_records());
        records.fold(0, |sum, kind| sum.saturating_add(self.count(kind)))
    }

    /// One for each kind that there is.
    #[must_use]
    pub fn notes(&self) -> Vec<TimeNote> {
        let note = |kind| TimeNote {
            kind,
            count: self.count(kind),
        };
        let notes = TimeDoubt::ALL.into_iter().map(note);
        notes.filter(|note| note.count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_by_itself() {
        let mut doubts = TimeDoubts::default();
        assert_eq!(doubts.notes(), []);
        for (kind, count) in TimeDoubt::ALL.into_iter().zip(1..) {
            doubts.add(kind, count);
        }
        let mut twice = doubts;
        twice.add_all(&doubts);
        let counts: Vec<u64> = twice.notes().iter().map(|note| note.count).collect();
        assert_eq!(counts, [2, 4, 6, 8, 10, 12, 14, 16]);
        assert_eq!(twice.records(), 20, "a clock is no record");
        let text = doubts.notes()[1].to_string();
        assert!(text.starts_with("2 records had impossible times"), "{text}");
    }
}
