//! The methods `probe.*`: what they take.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::protocol::{METHOD_NOT_FOUND, RpcError, SessionName, read};

/// A method about probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeCall {
    /// Set probes.
    Add(AddProbes),
    /// Every probe.
    List,
    /// Take probes out.
    Remove(SomeProbes),
    /// Have disabled probes recorded again.
    Enable(SomeProbes),
    /// Have probes not recorded, but keep them.
    Disable(SomeProbes),
}

/// `probe.add`: all of these probes, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddProbes {
    /// The session that is to record them.
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// Each as `SPEC FETCH… [if CONDITION]`.
    pub probes: Vec<String>,
    /// How they are to be put into the text, 1 to 5; the best way when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactic: Option<u8>,
}

/// Which probes `probe.remove`, `probe.enable` and `probe.disable` are about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SomeProbes {
    /// By their numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<u32>,
    /// All of this session, instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_of: Option<SessionName>,
}

/// What all the names begin with.
const PREFIX: &str = "probe.";

impl ProbeCall {
    /// Whether a method of this name is about probes.
    #[must_use]
    pub fn is_one(method: &str) -> bool {
        method.starts_with(PREFIX)
    }

    /// The method's name and parameters, as on the line.
    #[must_use]
    pub fn to_method(&self) -> (&'static str, Option<Value>) {
        let some = |probes| serde_json::to_value(probes).ok();
        match self {
            Self::Add(add) => ("probe.add", serde_json::to_value(add).ok()),
            Self::List => ("probe.list", None),
            Self::Remove(probes) => ("probe.remove", some(probes)),
            Self::Enable(probes) => ("probe.enable", some(probes)),
            Self::Disable(probes) => ("probe.disable", some(probes)),
        }
    }

    /// The call of this name.
    ///
    /// # Errors
    /// [`RpcError`] for another name, and for parameters that it does not take.
    pub fn from_method(method: &str, params: Value) -> Result<Self, RpcError> {
        match method {
            "probe.add" => read(method, params).map(Self::Add),
            "probe.list" => {
                #[derive(Deserialize)]
                #[serde(deny_unknown_fields)]
                struct Nothing {}
                read(method, params).map(|Nothing {}| Self::List)
            }
            "probe.remove" => read(method, params).map(Self::Remove),
            "probe.enable" => read(method, params).map(Self::Enable),
            "probe.disable" => read(method, params).map(Self::Disable),
            other => {
                let message = format!("there is no method '{other}'; vmm/CONTROL.md lists them");
                Err(RpcError::new(METHOD_NOT_FOUND, message))
            }
        }
    }
}
