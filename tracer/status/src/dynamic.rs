//! Dynamic functions.

use serde::{Deserialize, Serialize};

use super::pauses::paused;

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
    /// How often the guest was paused for it: 0 when nothing had to be changed; what is changed live takes none.
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
