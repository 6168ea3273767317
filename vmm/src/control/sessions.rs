//! The session that a method is about, and the methods that make, start and filter one.

use serde::{Deserialize, Serialize};

use tracer::tracing::options::{DEFAULT_SESSION, Tracer};

use crate::options::session::SessionOptions;

/// The session that a method is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionName(pub String);

impl Default for SessionName {
    fn default() -> Self {
        Self(DEFAULT_SESSION.to_owned())
    }
}

impl SessionName {
    /// Whether it is the session that is meant when none is named.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT_SESSION
    }
}

/// The parameters of methods that take a session only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OfSession {
    /// Which session.
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
}

/// `session.create`: a session that traces nothing yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSession {
    /// Its name.
    pub name: String,
    /// What it records.
    #[serde(default)]
    pub tracer: Tracer,
    /// How it records.
    #[serde(default)]
    pub options: SessionOptions,
}

/// `start`: what to trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Start {
    /// Which session.
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// What it is to record, while it has recorded nothing yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracer: Option<Tracer>,
    /// Globs of functions to trace; none means all.
    pub filter: Vec<String>,
    /// Globs of functions not to trace.
    pub notrace: Vec<String>,
}

/// Globs for `filter.add`, `filter.remove` and `filter.set`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterChange {
    /// Which session.
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// Globs of functions to trace.
    pub filter: Vec<String>,
    /// Globs of functions not to trace.
    pub notrace: Vec<String>,
}
