//! The file beside uftrace's own: what their format has no place for.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use terms::function::Function;
use terms::printable::masked;
use terms::quantity::{counted, in_microseconds};

use super::init_calls::InitCallList;
use super::lane::LaneTotals;
use super::late::{LateModules, WaitingModules};
use super::pauses::{Pause, PauseSpread};
use super::waits::Waits;
use crate::doubt::TimeNote;
use crate::export::events::EventTotals;
use crate::graph::{Anomalies, Anomaly, Seen};

/// What a trace says of itself: what is known when it begins, and the rest when tracing is attached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The command that made the trace.
    pub command_line: String,
    /// Path of the guest image.
    pub image: String,
    /// vCPUs of the guest.
    pub vcpus: u16,
    /// What a full ring does: `overwrite` or `discard`.
    pub mode: String,
    /// Whether what a vCPU waits for the reader is time of the guest: `visible` or `hidden`. Empty where none waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wait_time: String,
    /// What the times come from: `tsc`, `page` or `none`.
    pub clock: String,
    /// How often the clock page is written, in nanoseconds: shorter times are not told apart. None
    /// for other clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_period_ns: Option<u64>,
    /// The guest's TSC frequency in kHz; 0 if tracing was never attached.
    pub tsc_khz: u64,
    /// How a stub finds its ring: `gs` or `shared`; `unknown` if tracing was never attached.
    pub ring_strategy: String,
    /// The include globs, as they were last.
    pub filter: Vec<String>,
    /// The notrace globs, as they were last.
    pub notrace: Vec<String>,
    /// The vCPUs that were recorded last; none when all were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_vcpus: Vec<u16>,
    /// The tasks that alone were recorded last; none when all were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only_tasks: Vec<String>,
    /// The tasks that were not recorded last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_tasks: Vec<String>,
    /// Whether the tasks that they made were meant, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follow_forks: bool,
    /// What was recorded: `function`, `graph`, or `nop` (events only). Older traces do not say, and are of functions.
    #[serde(default)]
    pub tracer: String,
    /// Whether each call says where it was made (function).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub callers: bool,
    /// Bytes of a guest's stack, by which threads are told apart (graph).
    #[serde(default)]
    pub stack_bytes: u64,
    /// What the kernel lists as its init calls. Older traces do not say.
    #[serde(default, skip_serializing_if = "InitCallList::is_empty")]
    pub init_calls: InitCallList,
    /// Modules whose functions were patched when they could already have been called.
    #[serde(default, skip_serializing_if = "LateModules::is_empty")]
    pub late_modules: LateModules,
    /// Modules that have not been read yet, so that none of their functions is traced.
    #[serde(default, skip_serializing_if = "WaitingModules::is_none")]
    pub waiting_modules: WaitingModules,
    /// How long the guest stood still for being traced, by any session, until this trace ended; nothing before.
    #[serde(default, skip_serializing_if = "PauseSpread::is_empty")]
    pub pauses: PauseSpread,
    /// The first few thousand of them, in the order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paused: Vec<Pause>,
    /// Triggers that have fired, the first few thousand, in the order in which they were carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fired: Vec<Fired>,
}

/// A trigger has fired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    /// When the thing happened that it waited for, in nanoseconds since the guest's time began. None where the record of it
    /// was lost, and it is known by what the guest did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<u64>,
    /// The trigger, as its user wrote it.
    pub trigger: String,
}

impl Fired {
    /// Adds it to those that have fired, of which there are to be so many at most. Where the record of one was read later
    /// than that fired, it says when that was.
    pub fn add_to(self, all: &mut Vec<Self>, most: usize) {
        let has_room = all.len() < most;
        let is_same = |one: &&mut Self| one.time_ns.is_none() && one.trigger == self.trigger;
        match all.iter_mut().find(is_same) {
            Some(one) if self.time_ns.is_some() => one.time_ns = self.time_ns,
            _ if has_room => all.push(self),
            _ => {}
        }
    }

    /// The same with nothing in it that a terminal would obey: it may come from a damaged file.
    #[must_use]
    pub fn clean(&self) -> Self {
        Self {
            time_ns: self.time_ns,
            trigger: masked(&self.trigger).into_owned(),
        }
    }
}

impl fmt::Display for Fired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trigger '{}' has fired", self.clean().trigger)
    }
}

/// Where what a vCPU waits is no time of the guest.
const HIDDEN: &str = "hidden";

/// The clock of traces without times.
pub const NO_CLOCK: &str = "none";

/// The tracer whose traces hold events only.
pub const NOP: &str = "nop";

/// The tracer whose traces hold entries and exits of threads.
pub const GRAPH: &str = "graph";

impl Metadata {
    /// Whether the trace holds entries and exits of threads.
    #[must_use]
    pub fn is_graph(&self) -> bool {
        self.tracer == GRAPH
    }
}

/// Something in a graph trace that did not fit, with its first case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnomalyNote {
    /// What.
    pub kind: Anomaly,
    /// How often.
    pub count: u64,
    /// The function of the first.
    pub function: String,
    /// The thread of the first.
    pub thread: u32,
}

impl AnomalyNote {
    /// One for each kind that there was.
    #[must_use]
    pub fn list(anomalies: &Anomalies, functions: &[Function]) -> Vec<Self> {
        let note = |(kind, seen): (Anomaly, Seen)| {
            let function = functions.get(seen.function.index());
            Self {
                kind,
                count: seen.count,
                function: function.map_or("?", |one| &*one.display).to_owned(),
                thread: seen.thread,
            }
        };
        anomalies.iter().map(note).collect()
    }
}

impl fmt::Display for AnomalyNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, text, thread) = (self.count, self.kind.text(), self.thread);
        // It may come from a damaged file.
        let function = masked(&self.function);
        write!(f, "{count} {text} (first: {function}, thread-{thread})")
    }
}

/// The clock page was not written for longer than its period: times of that while are too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockStall {
    /// When it was over, in nanoseconds since the guest's time began.
    pub end_ns: u64,
    /// How long it was.
    pub length_ns: u64,
}

impl fmt::Display for ClockStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let microseconds = self.length_ns / 1000;
        write!(f, "the clock stood still for {microseconds} us up to here")
    }
}

/// What was written for one vCPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuTotals {
    /// The vCPU.
    pub vcpu: u16,
    /// Its task id in uftrace's files.
    pub tid: u32,
    /// Function entries in the trace.
    pub entries: u64,
    /// Records that were lost in the ring.
    pub lost: u64,
    /// Events that could not be written to disk.
    pub dropped: u64,
    /// Events that came with a time before their forerunner's.
    pub reordered: u64,
    /// Events of functions that the image does not have.
    pub unknown: u64,
}

impl VcpuTotals {
    pub(super) fn new(vcpu: u16, tid: u32, lane: LaneTotals) -> Self {
        let LaneTotals {
            entries,
            lost,
            dropped,
            reordered,
            unknown,
            ..
        } = lane;
        Self {
            vcpu,
            tid,
            entries,
            lost,
            dropped,
            reordered,
            unknown,
        }
    }
}

/// The contents of the side file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideFile {
    /// Version of this file's layout.
    pub version: u32,
    /// Whether the trace was ended in order. A trace without that is whole up to its last record.
    pub finished: bool,
    /// Why the trace that this one was put together from was not whole, where more is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// What is added to a 48-bit address above the middle of the address space.
    pub high_bits: String,
    /// What was traced, and how.
    #[serde(flatten)]
    pub metadata: Metadata,
    /// Events that named a vCPU which the guest does not have.
    #[serde(default)]
    pub strays: u64,
    /// Calls of a graph trace that could not be written to disk.
    #[serde(default)]
    pub dropped: u64,
    /// Records that are missing and of which no record says so: not even that could be written.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub unsaid: u64,
    /// The names of the threads of a graph trace, as `comm-pid`, by number, where the guest told.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<u32, String>,
    /// What did not fit in a graph trace.
    #[serde(default)]
    pub anomalies: Vec<AnomalyNote>,
    /// Records whose times may be wrong; empty before the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<TimeNote>,
    /// Every time the clock page was late, up to a few thousand; empty before the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clock_stalls: Vec<ClockStall>,
    /// Every time a vCPU waited for the reader of a full ring; empty before the end.
    #[serde(default, skip_serializing_if = "Waits::is_empty")]
    pub waits: Waits,
    /// Events in the files beside the calls; absent before the end, and where there are none.
    #[serde(default, skip_serializing_if = "EventTotals::is_empty")]
    pub events: EventTotals,
    /// Up to when something would have been recorded, if something had been called, in nanoseconds; absent before the end, and where
    /// nothing but the records says so.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub until_ns: u64,
    /// Per vCPU; empty before the end.
    pub totals: Vec<VcpuTotals>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes what it skips by reference"
)]
const fn is_nothing(number: &u64) -> bool {
    *number == 0
}

/// The version that is written.
pub const VERSION: u32 = 1;

/// Clock stalls that are kept one by one.
const STALLS_MAX: usize = 4096;

impl SideFile {
    /// The clock page was late once more.
    pub(super) fn add_stall(&mut self, stall: ClockStall) {
        if self.clock_stalls.len() < STALLS_MAX {
            self.clock_stalls.push(stall);
        }
    }

    /// What is to be said of the times at which the clock page was late, if there were any.
    #[must_use]
    pub fn stalls_said(&self) -> Option<String> {
        let lengths = self.clock_stalls.iter().map(|stall| stall.length_ns);
        let longest = in_microseconds(lengths.clone().max()?);
        let total = in_microseconds(lengths.fold(0, u64::saturating_add));
        let count = counted(self.clock_stalls.len() as u64, "time");
        let at_least = match self.clock_stalls.len() < STALLS_MAX {
            true => "",
            false => "at least ",
        };
        Some(format!(
            "{at_least}{count} the clock stood still, {total} us in all, longest {longest} us: what happened meanwhile has times that are too early"
        ))
    }

    /// What is to be said of waits for the reader, if there were any.
    #[must_use]
    pub fn waits_said(&self) -> Option<String> {
        self.waits.said(self.metadata.wait_time == HIDDEN)
    }

    pub(super) fn new(metadata: Metadata) -> Self {
        let high_bits = "0xffff000000000000".to_owned();
        Self {
            version: VERSION,
            finished: false,
            cut: None,
            high_bits,
            metadata,
            strays: 0,
            dropped: 0,
            unsaid: 0,
            threads: BTreeMap::new(),
            anomalies: Vec::new(),
            doubts: Vec::new(),
            clock_stalls: Vec::new(),
            waits: Waits::default(),
            events: EventTotals::default(),
            until_ns: 0,
            totals: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_fired_has_a_time_as_soon_as_it_is_known() {
        let at = |time_ns, trigger: &str| Fired {
            time_ns,
            trigger: trigger.to_owned(),
        };
        let mut all = Vec::new();
        for fired in [
            at(None, "a"),
            at(Some(5), "b"),
            at(None, "a"),
            at(Some(7), "a"),
        ] {
            fired.add_to(&mut all, 4);
        }
        let expected = [at(Some(7), "a"), at(Some(5), "b"), at(None, "a")];
        assert_eq!(all, expected);
        for (fired, said) in [
            (at(Some(9), "a"), 3),
            (at(Some(10), "a"), 4),
            (at(None, "a"), 4),
        ] {
            fired.add_to(&mut all, 4);
            assert_eq!(all.len(), said);
        }
        assert_eq!(all[2], at(Some(9), "a"));
    }
}
