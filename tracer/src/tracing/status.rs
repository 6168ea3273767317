//! What operations of tracing tell: plain data, for whoever shows it or sends it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::collect::status::{RingStatus, WaitStatus};
use crate::tasks::WantedTasks;
use trace::doubt::TimeNote;
use trace::export::uftrace::{AnomalyNote, LateModules, WaitingModules};

/// Names in a line about functions that have something in common.
const NAMES_SHOWN: usize = 3;

/// Tracing as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracingStatus {
    /// `frozen` (an unexpected state stopped all patching), or the strongest state of a session:
    /// `tracing`, `switched-off`, `waiting`, `off`.
    pub state: String,
    /// Why patching is frozen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen: Option<FrozenStatus>,
    /// Functions that are patched now.
    pub patched: u64,
    /// Functions that could be traced.
    pub available: u64,
    /// Functions that cannot be traced; `functions` says why.
    pub skipped: u64,
    /// How a stub finds its vCPU's ring: `gs` or `shared`; none before the first attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_strategy: Option<String>,
    /// Why not by `gs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_gs: Option<String>,
    /// How text is changed: `atomic`, `quiesce` or `live`.
    #[serde(default)]
    pub patch_method: String,
    /// How many sites were switched how.
    #[serde(default)]
    pub switched: SwitchedSites,
    /// The vCPUs' clocks; none before the first attach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu_clocks: Option<VcpuClocksStatus>,
    /// The guest's lock prefixes, where the image lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smp_locks: Option<LocksStatus>,
    /// Bytes of stubs in the guest.
    pub stub_bytes: u64,
    /// The clock page, while a session uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_page: Option<ClockPageStatus>,
    /// Each session.
    pub sessions: Vec<SessionStatus>,
}

/// How many sites of the guest's text were switched how, each as often as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedSites {
    /// While every vCPU ran, by one exchange of a word.
    pub atomic: u64,
    /// While it ran, by breakpoints.
    pub live: u64,
    /// While every vCPU was stopped.
    pub stopped: u64,
}

impl SwitchedSites {
    /// Whether there is anything to say.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.atomic + self.live + self.stopped > 0
    }
}

impl fmt::Display for SwitchedSites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            (self.atomic, "while the guest ran"),
            (self.live, "by breakpoints"),
            (self.stopped, "in pauses"),
        ];
        let shown = ways.iter().filter(|(count, _)| *count > 0);
        let shown: Vec<_> = shown.map(|(count, way)| format!("{count} {way}")).collect();
        f.write_str(&shown.join(", "))
    }
}

/// The clock page and its thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPageStatus {
    /// Nanoseconds between two beats.
    pub period_ns: u64,
    /// The host CPU of the thread, when it is kept on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// How often the page was not written in time while vCPUs ran.
    pub stalls: u64,
    /// The longest of those times in nanoseconds.
    pub longest_stall_ns: u64,
}

/// How the vCPUs' clocks relate to the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuClocksStatus {
    /// Nanoseconds by which the times of a trace may be off, all of them alike; 0 where the guest sees the host's
    /// clock.
    pub bound_ns: u64,
    /// How often one was found to have been set.
    pub sets: u64,
    /// Whether they differ: then a call that was moved between two vCPUs as it was recorded has a wrong time.
    pub differ: bool,
}

impl VcpuClocksStatus {
    /// Whether it is worth a line.
    #[must_use]
    pub const fn is_news(&self) -> bool {
        self.sets > 0 || self.differ
    }
}

impl fmt::Display for VcpuClocksStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differ = if self.differ { ", they differ" } else { "" };
        let (sets, bound) = (self.sets, self.bound_ns);
        write!(f, "vCPU clocks: set {sets}×{differ}; known to {bound} ns")
    }
}

/// The guest's lock prefixes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocksStatus {
    /// `on`, or `off`: replaced by a prefix that means nothing.
    pub state: String,
    /// How many instructions the image lists.
    pub sites: u64,
}

/// Why nothing is patched any more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenStatus {
    /// In one line.
    pub reason: String,
    /// The function whose site is not what it must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Where the site lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The bytes that must be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The bytes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// One session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its name.
    pub name: String,
    /// `function`, `graph` or `profile`.
    pub tracer: String,
    /// `off`, `tracing`, `switched-off` (stubs in place, not recording) or `waiting` (for the attach
    /// point).
    pub state: String,
    /// Functions that it traces now.
    pub traced: u64,
    /// Globs in force.
    pub filter: Vec<String>,
    /// Globs in force against it.
    pub notrace: Vec<String>,
    /// The vCPUs that are recorded, where not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_vcpus: Option<OnlyStatus>,
    /// The tasks that are recorded, or are not, where not all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<TaskStatus>,
    /// `overwrite`, `discard` or `lossless`.
    pub mode: String,
    /// Where times come from: `tsc`, `page` or `none`.
    pub clock: String,
    /// The period of the clock page, where times come from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_period_ns: Option<u64>,
    /// Bytes of each ring; 0 for a profile session, which has none.
    pub ring_bytes: u64,
    /// The directory that the trace is written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Why not everything is in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// For how long what was read has been waiting for it, if that is a second or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_stalled_ms: Option<u64>,
    /// What did not fit in the graph so far, as far as it is written to an output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anomalies: Vec<AnomalyNote>,
    /// Modules whose functions were patched when they could already have been called.
    #[serde(default, skip_serializing_if = "LateModules::is_empty")]
    pub late_modules: LateModules,
    /// Modules of the guest that have not been read yet, so that none of their functions is traced.
    #[serde(default, skip_serializing_if = "WaitingModules::is_none")]
    pub waiting_modules: WaitingModules,
    /// Records that were read and whose times may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub doubts: Vec<TimeNote>,
    /// How vCPUs waited for its reader; none where they do not, and before the first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitStatus>,
    /// Each ring; none before the first start.
    pub rings: Vec<RingStatus>,
    /// Events that it records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Each event ring; none before its first event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_rings: Vec<RingStatus>,
}

/// What alone is recorded, and who sees to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyStatus {
    /// The numbers of vCPUs.
    pub vcpus: Vec<u16>,
    /// `stub`: in the guest, before anything is written.
    pub by: String,
}

/// Whose calls are recorded, and who sees to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Only these, where any are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<String>,
    /// All but these, where any are named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not: Vec<String>,
    /// Whether the tasks that they make are meant, too.
    pub follow_forks: bool,
    /// `stub`: in the guest, before anything is written. None while all are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl From<&WantedTasks> for TaskStatus {
    fn from(wanted: &WantedTasks) -> Self {
        let (only, not) = match wanted.is_not {
            true => (Vec::new(), wanted.written()),
            false => (wanted.written(), Vec::new()),
        };
        Self {
            only,
            not,
            follow_forks: wanted.follows,
            by: (!wanted.is_all()).then(|| "stub".to_owned()),
        }
    }
}

/// Result of `session.create` and `session.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionList {
    /// By name.
    pub sessions: Vec<SessionStatus>,
}

/// Result of `profile`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The session's name.
    pub session: String,
    /// The period of the clock page, where times come from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_period_ns: Option<u64>,
    /// Every function that was called, by address.
    pub functions: Vec<ProfiledFunction>,
}

/// What was counted of one function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfiledFunction {
    /// Its address, as hexadecimal text.
    pub address: String,
    /// Its name, demangled.
    pub name: String,
    /// Calls.
    pub hits: u64,
    /// Time from entries to exits.
    pub total_ns: u64,
    /// Time without that of profiled calls inside; absent where the vCPUs cannot be told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_ns: Option<u64>,
}

/// Result of `session.delete`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Deleted {
    /// Its name.
    pub session: String,
    /// What stopping it did, if it still traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Changed>,
}

/// Result of `functions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// In the order of their addresses.
    pub functions: Vec<Function>,
}

/// One function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its address, as hexadecimal text (JSON numbers do not hold 64 bits everywhere).
    pub address: String,
    /// Its name, demangled.
    pub name: String,
    /// The module that it came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// `available`, `patched` or `skipped`.
    pub state: String,
    /// Why it is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Result of the methods that change what is patched: `start`, `stop` and `filter.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// Functions patched by this change.
    pub patched: u64,
    /// Functions that got their original bytes back.
    pub restored: u64,
    /// Functions that are traced now.
    pub traced: u64,
    /// Functions that the filter asks for and that were left alone, with reasons.
    pub skipped: Vec<Function>,
    /// Functions that are traced, of which a session that hooks returns sees the entries only, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entry_only: Vec<Function>,
    /// How often the guest was paused for it; large changes are made in slices. 0 where text is changed live,
    /// or by exchanges of words.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds: the longest of the pauses. Where text is changed
    /// live, the most that one vCPU lost.
    pub pause_us: f64,
}

/// A duration in microseconds, to the nanosecond: as a sum of decimal digits, not of rounding errors.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "pauses have far fewer than 53 bits of ns"
)]
pub(crate) fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1000.0
}

/// How often and for how many microseconds the guest was paused for a change of its text, as text.
#[must_use]
fn paused(pauses: u64, pause_us: f64) -> String {
    match pauses {
        0 if pause_us == 0.0 => "not paused".to_owned(),
        0 => format!("not paused, a vCPU lost {pause_us:.1} us at most"),
        1 => format!("paused for {pause_us:.1} us"),
        _ => format!("paused {pauses} times, for {pause_us:.1} us at most"),
    }
}

impl Changed {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }

    /// The functions that are not traced as was asked for, one line for each reason: how many, why,
    /// and the first few names.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = by_reason("not traced", &self.skipped);
        lines.extend(by_reason("traced at entry only", &self.entry_only));
        lines
    }
}

fn by_reason(what: &str, functions: &[Function]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for function in functions {
        let reason = function.reason.as_deref().unwrap_or("no reason given");
        reasons.entry(reason).or_default().push(&function.name);
    }
    let line = |(reason, names): (&str, Vec<&str>)| {
        let count = names.len();
        let shown: Vec<&str> = names.into_iter().take(NAMES_SHOWN).collect();
        let more = if count > NAMES_SHOWN { ", …" } else { "" };
        format!("{count} {what} ({}{more}): {reason}", shown.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

/// Result of `smp-locks`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchedLocks {
    /// `on` or `off`.
    pub state: String,
    /// Instructions switched by this; 0 when it was so before.
    pub switched: u64,
    /// How long the guest was paused for it, in microseconds.
    pub pause_us: f64,
}

/// Result of `digest`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// SHA-256 of the guest's text as it is in memory now.
    pub sha256: String,
}

/// Result of the methods that only switch something: whether it was switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// `false` when it was so before.
    pub changed: bool,
}

/// Result of `events.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventList {
    /// In the order in which the image declares them.
    pub events: Vec<EventStatus>,
}

/// One event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStatus {
    /// Its name.
    pub name: String,
    /// `tracepoint` or `marker`.
    pub kind: String,
    /// Its fields, in order.
    pub fields: Vec<FieldStatus>,
    /// Places that pass it.
    pub sites: u64,
    /// What stands there: `nop`, `direct` (to the one callback) or `iterator` (several).
    pub state: String,
    /// Who is called, in order: `session NAME`, or a function of the guest.
    pub callbacks: Vec<String>,
    /// Functions of the guest that could be called.
    pub candidates: Vec<String>,
}

/// A field of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldStatus {
    /// What it is called.
    pub name: String,
    /// Its type, such as `u32`.
    pub r#type: String,
}

/// Result of `events.enable` and `events.disable`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EventsChanged {
    /// The events of which something was changed.
    pub events: Vec<String>,
    /// Whether they are on now.
    pub on: bool,
    /// How often the guest was paused for it: 0 when nothing had to be changed, and where text is changed live.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds; where text is changed live, the most that one
    /// vCPU lost. 0 when nothing had to be changed.
    pub pause_us: f64,
}

impl EventsChanged {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}

/// Result of `probe.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeList {
    /// In the order in which they were added.
    pub probes: Vec<ProbeStatus>,
    /// How often vCPUs have left the guest at probes: those by breakpoints that the host serves.
    #[serde(default)]
    pub exits: u64,
}

/// One probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Its number, never used again.
    pub id: u32,
    /// What its event is called in the trace.
    pub name: String,
    /// The session that records it.
    pub session: String,
    /// As it was added.
    pub probe: String,
    /// The instruction before which it is hit.
    pub address: String,
    /// The same as function and offset.
    pub place: String,
    /// How it is put into the text.
    pub tactic: String,
    /// `on`, `disabled`, `off` while its session is not started, `gone` when its text is.
    pub state: String,
    /// Hits that are in the trace; none without an output directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    /// What it captures.
    pub values: Vec<FieldStatus>,
}

/// Result of `probe.add`, `probe.remove`, `probe.enable` and `probe.disable`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbesChanged {
    /// The probes that were changed, as they are now or were last.
    pub probes: Vec<ProbeStatus>,
    /// How often the guest was paused for it.
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds.
    pub pause_us: f64,
}

impl ProbesChanged {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}

/// One function and its target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamicChange {
    /// The dynamic function.
    pub name: String,
    /// The function that it is to lead to.
    pub target: String,
}

/// Result of `dynfunc.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicList {
    /// Dynamic functions by name, then static calls by name.
    pub functions: Vec<DynamicStatus>,
}

/// One dynamic function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DynamicStatus {
    /// Its name.
    pub name: String,
    /// `dynamic`, or `static_call` for one of a Linux kernel, which is only listed.
    pub kind: String,
    /// The address of its jump, as hexadecimal text.
    pub jump: String,
    /// Its parameters and result, as the guest's source has them.
    pub types: String,
    /// Where it leads now.
    pub target: String,
    /// Where it led when the guest was built.
    pub default: String,
    /// Where it may lead: its own targets and those of the same signature.
    pub targets: Vec<String>,
}

/// Result of `dynfunc.set` and `dynfunc.reset`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DynamicChanged {
    /// The functions that lead somewhere else now.
    pub functions: Vec<DynamicChange>,
    /// How often the guest was paused for it: 0 when nothing had to be changed, and where text is changed live.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds; where text is changed live, the most that one
    /// vCPU lost. 0 when nothing had to be changed.
    pub pause_us: f64,
}

impl DynamicChanged {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_have_three_digits_after_the_point() {
        for (ns, text) in [
            (3_423_656, "3423.656"),
            (40_100, "40.1"),
            (999, "0.999"),
            (0, "0.0"),
        ] {
            let us = microseconds(Duration::from_nanos(ns));
            assert_eq!(serde_json::to_string(&us).unwrap(), text);
        }
    }

    #[test]
    fn skipped_functions_are_told_by_reason() {
        let skip = |name: &str, reason: &str| Function {
            address: "0x1".to_owned(),
            name: name.to_owned(),
            module: None,
            state: "skipped".to_owned(),
            reason: Some(reason.to_owned()),
        };
        let skipped = vec![
            skip("a", "no site"),
            skip("x", "foreign bytes"),
            skip("b", "no site"),
            skip("c", "no site"),
            skip("d", "no site"),
        ];
        let changed = Changed {
            skipped,
            ..Changed::default()
        };
        assert_eq!(
            changed.remarks(),
            [
                "1 not traced (x): foreign bytes",
                "4 not traced (a, b, c, …): no site"
            ]
        );
    }
}
