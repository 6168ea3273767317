//! What is said of a trace as a whole at a moment of it: the clock was late, the guest was held, a vCPU
//! waited for the reader, a trigger has fired, times may be wrong.

use std::fmt;

use super::uftrace::{ClockStall, Fired, Pause, SideFile, Wait};

/// Something that is no step of a thread, and nothing that the guest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// Times up to here are too early.
    Stall(ClockStall),
    /// From here on nothing of the guest ran for a time.
    Pause(Pause),
    /// Up to here a vCPU waited for the reader.
    Wait(Wait),
    /// What a trigger waits for.
    Fired(Fired),
    /// The trace is not whole, as far as this is known: the last time that it has, and what is to be said.
    Cut(u64, String),
    /// How much of it did not fit or may have wrong times, at the last time that it has: when that was is not known.
    Doubt(u64, String),
}

/// So many of each kind of those that concern all vCPUs: no trace of ours has more, and exports say each on every vCPU.
const OF_ALL_MAX: usize = 4096;

impl Remark {
    /// All that a trace has of which it knows when it was, in the order of time.
    #[must_use]
    pub fn all(side: &SideFile) -> Vec<Self> {
        let stalls = side.clock_stalls.iter().take(OF_ALL_MAX);
        let stalls = stalls.copied().map(Self::Stall);
        let pauses = side.metadata.paused.iter().take(OF_ALL_MAX);
        let pauses = pauses.copied().map(Self::Pause);
        let waits = side.waits.each.iter().copied().map(Self::Wait);
        let fired = side.metadata.fired.iter().take(OF_ALL_MAX);
        let fired = fired.filter(|fired| fired.time_ns.is_some());
        let fired = fired.cloned().map(Self::Fired);
        let mut all: Vec<Self> = stalls.chain(pauses).chain(waits).chain(fired).collect();
        all.sort_by_key(Self::time_ns);
        all
    }

    /// What it is, in a word.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        match self {
            Self::Stall(_) => "stall",
            Self::Wait(_) => "wait",
            Self::Pause(_) => "pause",
            Self::Fired(_) => "trigger",
            Self::Cut(..) => "cut",
            Self::Doubt(..) => "doubt",
        }
    }

    /// How long it took, where it is not of a moment.
    #[must_use]
    pub const fn length_ns(&self) -> Option<u64> {
        match self {
            Self::Stall(stall) => Some(stall.length_ns),
            Self::Wait(wait) => Some(wait.length_ns),
            Self::Pause(pause) => Some(pause.length_ns),
            Self::Fired(_) | Self::Cut(..) | Self::Doubt(..) => None,
        }
    }

    /// Which vCPU it is of, if not of all.
    #[must_use]
    pub const fn vcpu(&self) -> Option<u16> {
        match self {
            Self::Wait(wait) => Some(wait.vcpu),
            Self::Stall(_) | Self::Pause(_) | Self::Fired(_) | Self::Cut(..) | Self::Doubt(..) => {
                None
            }
        }
    }

    /// When.
    #[must_use]
    pub const fn time_ns(&self) -> u64 {
        match self {
            Self::Stall(stall) => stall.end_ns,
            Self::Pause(pause) => pause.begin_ns,
            Self::Wait(wait) => wait.end_ns,
            Self::Fired(Fired {
                time_ns: Some(time_ns),
                ..
            }) => *time_ns,
            Self::Fired(_) => 0,
            Self::Cut(time_ns, _) | Self::Doubt(time_ns, _) => *time_ns,
        }
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stall(stall) => stall.fmt(f),
            Self::Pause(pause) => pause.fmt(f),
            Self::Wait(wait) => wait.fmt(f),
            Self::Fired(fired) => fired.fmt(f),
            Self::Cut(_, said) | Self::Doubt(_, said) => f.write_str(said),
        }
    }
}
