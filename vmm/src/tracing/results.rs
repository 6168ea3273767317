//! What tracing operations answer, as the control socket sends it. Times are nanoseconds, sizes bytes.

use serde::{Deserialize, Serialize};

/// What a change of the traced functions did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Functions that are traced now.
    pub traced: usize,
    /// Sites that were written to lead to a stub.
    pub patched: usize,
    /// Sites that were given their original bytes back.
    pub restored: usize,
    /// Functions that were to be changed and were left as they are.
    pub skipped: Vec<SkippedFunction>,
    /// Functions that match the filter and are never traced.
    pub denied: Vec<SkippedFunction>,
    /// How long the guest was paused for it, from the request until it ran again.
    pub pause_ns: u64,
}

/// A function that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedFunction {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A traceable function, or one that is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionLine {
    /// Its address, `0x…`.
    pub address: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: FunctionStateName,
    /// Why it is skipped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// The states that `functions` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionStateName {
    /// It can be traced.
    Available,
    /// It is being traced.
    Patched,
    /// It cannot be traced, or not now.
    Skipped,
}

/// One ring.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingStatus {
    /// Its number: the vCPU's, or 0 when all share one.
    pub ring: u16,
    /// Records that stubs have reserved room for.
    pub written: u64,
    /// Records that have been read and passed on.
    pub read: u64,
    /// All records that are known to be missing: the sum of the counts below.
    pub lost: u64,
    /// Calls not recorded because the ring was full (discard mode).
    pub discarded: u64,
    /// Records written over before they were read.
    pub overwritten: u64,
    /// Slots that were reserved and never written.
    pub abandoned: u64,
    /// Records that name no function.
    pub invalid: u64,
    /// Times that the guest had changed the ring's own words.
    pub corrupt: u64,
}

/// The state of tracing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracingStatus {
    /// The tracer, `function`, or none.
    pub tracer: Option<String>,
    /// Whether stubs record (`tracing-on`, `tracing-off`).
    pub tracing_on: bool,
    /// Functions that are traced.
    pub traced: usize,
    /// `overwrite` or `discard`.
    pub mode: String,
    /// `tsc` or `none`.
    pub clock: String,
    /// Bytes of each ring.
    pub ring_bytes: u64,
    /// How stubs know their vCPU: `gs` or `shared`; none before the first attach.
    pub cpu_strategy: Option<String>,
    /// Why not by `gs`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub no_gs: Option<String>,
    /// Include globs in force; empty for all functions.
    pub filter: Vec<String>,
    /// Exclude globs in force.
    pub notrace: Vec<String>,
    /// Bytes of stubs in the guest.
    pub stub_bytes: u64,
    /// Where the trace is being written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<String>,
    /// Why nothing more is written there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_error: Option<String>,
    /// Why nothing is patched any more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub frozen: Option<String>,
    /// Times at which the reader was late by so much that records of that time may be timed wrong.
    pub clock_gaps: u64,
    /// The rings.
    pub rings: Vec<RingStatus>,
}

/// What a dump wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dumped {
    /// Where to.
    pub directory: String,
    /// Records in it.
    pub records: u64,
    /// Records known to be missing from it.
    pub lost: u64,
}
