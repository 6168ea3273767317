//! Methods that change which functions a session traces.

use clap::Args;
use serde::{Deserialize, Serialize};
use status::Changed;
use tracer::guest::Guest;
use tracer::tracing::filters::{FilterEdit, Globs};
use tracer::tracing::{Tracing, TracingError};

use super::sessions::{OfSession, SessionName};
use crate::control::method::methods;

/// Globs for and against tracing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterChange {
    /// Which session
    #[arg(from_global)]
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// Functions to trace; `!GLOB` takes out what those before it match
    #[arg(required_unless_present = "notrace")]
    pub filter: Vec<String>,
    /// Functions not to trace; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub notrace: Vec<String>,
}

impl FilterChange {
    fn make(
        self,
        edit: FilterEdit,
        tracing: &mut Tracing,
        guest: &impl Guest,
    ) -> Result<Changed, TracingError> {
        let globs = Globs {
            filter: self.filter,
            notrace: self.notrace,
        };
        tracing.change_filter(guest, &self.session.0, edit, &globs)
    }
}

methods! {
    /// Add globs to those in force
    ///
    /// Example: vmm ctl --control vm.sock filter add '!calls_t*'
    AddFilter(FilterChange) "filter.add" -> Changed:
        |change, tracing, guest| change.make(FilterEdit::Add, tracing, guest)?;

    /// Remove globs from those in force
    RemoveFilter(FilterChange) "filter.remove" -> Changed:
        |change, tracing, guest| change.make(FilterEdit::Remove, tracing, guest)?;

    /// Replace the globs in force
    SetFilter(FilterChange) "filter.set" -> Changed:
        |change, tracing, guest| change.make(FilterEdit::Set, tracing, guest)?;

    /// Remove all globs: everything is traced
    ClearFilter(OfSession) "filter.clear" -> Changed: |of, tracing, guest| {
        tracing.change_filter(guest, &of.session.0, FilterEdit::Set, &Globs::default())?
    };
}
