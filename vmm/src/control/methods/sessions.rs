//! The session that a method is about, and the methods that make, list and delete sessions.

use std::fmt;

use clap::Args;
use serde::{Deserialize, Serialize};
use status::{Deleted, SessionList};
use tracer::tracing::options::{DEFAULT_SESSION, Tracer};

use crate::closing::ClosingLine;
use crate::control::method::{Nothing, methods};
use crate::control::protocol::RpcError;
use crate::host::clock_page::check_cpu;
use crate::options::choice::choice;
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

impl From<String> for SessionName {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OfSession {
    /// Which session
    #[arg(from_global)]
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
}

/// A session that is to be.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    /// Its name: letters, digits, '-', '_' and '.'
    pub name: String,
    /// What it records
    #[arg(long, value_name = "TRACER", value_parser = choice::<Tracer>(), default_value_t)]
    #[serde(default)]
    pub tracer: Tracer,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it would be the text of the whole verb")]
    #[serde(default)]
    pub options: SessionOptions,
}

/// A session that is there, which has to be named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OldSession {
    /// Its name
    #[arg(id = "name", value_name = "NAME")]
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
}

methods! {
    /// Make a session; `ctl --session NAME start` then traces
    CreateSession(NewSession) "session.create" -> SessionList: |new, on| {
        let mut new = new;
        new.options = new.options.placed(|path| on.outputs().admit(&path))?;
        if let Some(cpu) = new.options.clock_cpu {
            check_cpu(cpu).map_err(RpcError::failed)?;
        }
        new.options.check_dumps()?;
        let made = on.tracing().0.create(&new.name, new.tracer, new.options.to_session())?;
        if let Err(error) = on.arm(&new.name, &new.options.trigger) {
            on.disarm(&new.name);
            let (tracing, guest) = on.tracing();
            tracing.delete(guest, &new.name)?;
            return Err(error);
        }
        made
    };

    /// Every session, with state, filter and rings
    ListSessions(Nothing) "session.list" -> SessionList: |_, tracing, _guest| tracing.list();

    /// Delete a session; one that runs is stopped first
    DeleteSession(OldSession) "session.delete" -> Deleted: |old, on| {
        let (tracing, guest) = on.tracing();
        let deleted = tracing.delete(guest, &old.session.0);
        // When its trace could not be completed it is gone all the same, and what it waited for with it.
        if tracing.session(&old.session.0).is_err() {
            on.disarm(&old.session.0);
        }
        let (deleted, closing) = deleted?;
        if let Some(closing) = closing {
            log::info!("{}", ClosingLine(&closing));
        }
        deleted
    };
}
