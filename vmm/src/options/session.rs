//! What a session is made of, as options of `vmm run` and `vmm ctl session create` and as parameters
//! of the method `session.create`: one list for all three.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tracer::patch::events::Dispatch;
use tracer::patch::locks::LockPrefixes;
use tracer::ring::reader::Mode;
use tracer::stub::graph::ReturnHook;
use tracer::tracing::options::{self, ClockSource, PERIOD_NS, RING_BYTES};

use super::graph::GraphOptions;
use super::quantities;

/// What to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracer {
    /// Entries of functions.
    #[default]
    Function,
    /// Entries and exits of functions: the call graph with durations.
    Graph,
    /// Nothing but the events that are enabled.
    Nop,
    /// How often functions are called and how long they take, counted in the guest: no records.
    Profile,
}

impl From<Tracer> for options::Tracer {
    fn from(tracer: Tracer) -> Self {
        match tracer {
            Tracer::Function => Self::Function,
            Tracer::Graph => Self::Graph,
            Tracer::Nop => Self::Nop,
            Tracer::Profile => Self::Profile,
        }
    }
}

/// How a function whose exit is recorded is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookChoice {
    /// Entered by call, left by return: the CPU predicts every return.
    #[default]
    Balanced,
    /// Left by a jump to the real return address.
    Jmp,
    /// Left by a return to the real return address.
    Ret,
}

impl From<HookChoice> for ReturnHook {
    fn from(hook: HookChoice) -> Self {
        match hook {
            HookChoice::Balanced => Self::Balanced,
            HookChoice::Jmp => Self::Jmp,
            HookChoice::Ret => Self::Ret,
        }
    }
}

/// What happens when a ring is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingMode {
    /// The oldest records are overwritten (flight recorder).
    #[default]
    Overwrite,
    /// New records are discarded, and counted.
    Discard,
}

impl From<RingMode> for Mode {
    fn from(mode: RingMode) -> Self {
        match mode {
            RingMode::Overwrite => Self::Overwrite,
            RingMode::Discard => Self::Discard,
        }
    }
}

/// Where times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockChoice {
    /// The guest's time-stamp counter, read in each record.
    #[default]
    Tsc,
    /// A page that a thread of the host keeps: the resolution is its period, at an eighth of the price.
    Page,
    /// Nowhere: records show order and counts only, at a tenth of the price.
    None,
}

impl From<ClockChoice> for ClockSource {
    fn from(clock: ClockChoice) -> Self {
        match clock {
            ClockChoice::Tsc => Self::Tsc,
            ClockChoice::Page => Self::Page,
            ClockChoice::None => Self::None,
        }
    }
}

/// How the guest's text is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatchMethod {
    /// While every vCPU is stopped.
    #[default]
    Quiesce,
    /// While the guest runs: breakpoint, rest, first byte. The guest must serve the breakpoints.
    Live,
}

impl From<PatchMethod> for options::PatchMethod {
    fn from(method: PatchMethod) -> Self {
        match method {
            PatchMethod::Quiesce => Self::Quiesce,
            PatchMethod::Live => Self::Live,
        }
    }
}

/// How a tracepoint leads to its only callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DispatchChoice {
    /// By a jump to it.
    #[default]
    Direct,
    /// Through the iterator, as if there were several.
    Iterator,
}

impl From<DispatchChoice> for Dispatch {
    fn from(choice: DispatchChoice) -> Self {
        match choice {
            DispatchChoice::Direct => Self::Direct,
            DispatchChoice::Iterator => Self::Iterator,
        }
    }
}

/// Whether the guest's lock prefixes are effective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockChoice {
    /// Locked.
    On,
    /// Not locked: for one vCPU.
    Off,
}

impl From<LockChoice> for LockPrefixes {
    fn from(choice: LockChoice) -> Self {
        match choice {
            LockChoice::On => Self::On,
            LockChoice::Off => Self::Off,
        }
    }
}

/// Size of a ring in KiB when nothing is said.
const RING_KIB: u64 = RING_BYTES >> 10;

/// How a session records.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionOptions {
    /// How the graph tracer leaves a function
    #[arg(long, value_name = "HOOK", value_enum, default_value_t)]
    pub return_hook: HookChoice,
    /// What gives way when a ring is full: its oldest records or the new one
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub mode: RingMode,
    /// Where the times of records come from
    #[arg(long, value_name = "CLOCK", value_enum, default_value_t)]
    pub clock: ClockChoice,
    /// How often the clock page is written, in ns or with a unit, as 1us (--clock page)
    #[arg(long, value_name = "NS", default_value_t = PERIOD_NS, value_parser = quantities::ns)]
    #[serde(deserialize_with = "quantities::ns_in")]
    pub clock_period: u64,
    /// Keep the thread that writes the clock page on this host CPU (--clock page)
    #[arg(long, value_name = "CPU")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_cpu: Option<usize>,
    /// Size of the ring of each vCPU, in KiB or with a unit, as 1M: a power of two from 4 KiB to 256 MiB; there is
    /// room for 448 MiB of rings in all, and a graph record with a time takes two places
    #[arg(long, value_name = "KIB", default_value_t = RING_KIB, allow_negative_numbers = true, value_parser = quantities::kib)]
    #[serde(deserialize_with = "quantities::kib_in")]
    pub ring_size: u64,
    /// Size of a stack of the guest, in KiB or with a unit, a power of two: how the graph tracer tells threads apart
    /// (default: what the kernel uses, as far as it is known; 16 for Linux)
    #[arg(long, value_name = "KIB", value_parser = quantities::kib)]
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "quantities::some_kib_in"
    )]
    pub stack_size: Option<u64>,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub graph: GraphOptions,
    /// Record this event of the guest; may be given several times (`vmm ctl events list`)
    #[arg(long, value_name = "EVENT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event: Vec<String>,
    /// Set a probe: where, what it captures and when, as `SPEC FETCH… [if CONDITION]`; may be given several
    /// times
    #[arg(long, value_name = "PROBE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<String>,
    /// How these probes are put into the text, 1 to 5 (default: each in the best way there is)
    #[arg(long, value_name = "N", requires = "probe", value_parser = clap::value_parser!(u8).range(1..=5))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_tactic: Option<u8>,
    /// Room for what an event or a probe says, in bytes of its record or with a unit: a power of two from 64 to 64K
    /// (default: what the image's events need, with probes at least 256)
    #[arg(long, value_name = "BYTES", value_parser = quantities::in_bytes)]
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "quantities::some_bytes_in"
    )]
    pub record_bytes: Option<u64>,
    /// Record the arguments of every call of a function whose types are known (--trace graph --clock tsc)
    #[arg(long)]
    pub args: bool,
    /// Record what every call of a function whose types are known returns (--trace graph --clock tsc)
    #[arg(long)]
    pub retval: bool,
    /// Write the trace to this directory, in uftrace's format
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Replace the output directory if it exists
    #[arg(long, requires = "output")]
    pub force: bool,
}

impl SessionOptions {
    /// What the session is made of.
    #[must_use]
    pub fn to_session(&self) -> options::SessionOptions {
        let bytes = |kib: u64| kib.saturating_mul(1024);
        options::SessionOptions {
            return_hook: self.return_hook.into(),
            mode: self.mode.into(),
            clock: self.clock.into(),
            clock_period: self.clock_period,
            clock_cpu: self.clock_cpu,
            ring_bytes: bytes(self.ring_size),
            stack_bytes: self.stack_size.map(bytes),
            graph: self.graph.to_session(),
            event: self.event.clone(),
            probe: self.probe.clone(),
            probe_tactic: self.probe_tactic,
            record_bytes: self.record_bytes,
            args: self.args,
            retval: self.retval,
            output: self.output.clone(),
            force: self.force,
        }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            return_hook: HookChoice::default(),
            mode: RingMode::default(),
            clock: ClockChoice::default(),
            clock_period: PERIOD_NS,
            clock_cpu: None,
            ring_size: RING_KIB,
            stack_size: None,
            graph: GraphOptions::default(),
            event: Vec::new(),
            probe: Vec::new(),
            probe_tactic: None,
            record_bytes: None,
            args: false,
            retval: false,
            output: None,
            force: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_the_same_defaults_on_the_line_and_in_json() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: SessionOptions,
        }
        let typed: Line = clap::Parser::try_parse_from(["x"]).unwrap();
        assert_eq!(typed.options, SessionOptions::default());
        assert_eq!(
            serde_json::from_str::<SessionOptions>("{}").unwrap(),
            SessionOptions::default()
        );
    }
}
