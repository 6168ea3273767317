//! What a profile session has counted.

use serde::{Deserialize, Serialize};

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
    /// Times, of either kind, that were below zero and count as zero: the clock went back during a call, or another thread's calls were
    /// taken for some inside.
    #[serde(default)]
    pub clamped: u64,
}
