//! Changing what a session traces while it does.

use crate::filter::{Filter, FilterError, Side};

use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::guest::Guest;
use status::Changed;

/// What is to be traced, and what not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globs {
    /// Functions to trace; none means all.
    pub filter: Vec<String>,
    /// Functions not to trace.
    pub notrace: Vec<String>,
}

/// What becomes of a session's globs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterEdit {
    /// These come to them.
    Add,
    /// These are taken out of them.
    Remove,
    /// These replace them; with none everything is traced.
    Set,
}

impl FilterEdit {
    fn apply(self, filter: &mut Filter, globs: &Globs) -> Result<(), FilterError> {
        let edit = match self {
            Self::Add => Filter::add,
            Self::Remove => Filter::remove,
            Self::Set => {
                *filter = Filter::new(&globs.filter, &globs.notrace)?;
                return Ok(());
            }
        };
        let included = globs.filter.iter().map(|glob| (Side::Include, glob));
        let excluded = globs.notrace.iter().map(|glob| (Side::Notrace, glob));
        let mut all = included.chain(excluded);
        all.try_for_each(|(side, glob)| edit(filter, side, glob))
    }
}

impl Tracing {
    /// Changes what a session traces while it does.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn change_filter(
        &mut self,
        guest: &impl Guest,
        session: &str,
        edit: FilterEdit,
        globs: &Globs,
    ) -> Result<Changed, TracingError> {
        let attachment = &mut self.attachment;
        let index = attachment.sessions.find(session)?;
        let session = attachment.sessions.at(index)?;
        let (id, mut filter) = (session.started()?, session.filter.clone());
        edit.apply(&mut filter, globs)?;
        let session = attachment.sessions.at(index)?;
        let selection = session.select(&filter, &attachment.shared)?;
        let stops = &mut Stops::default();
        let changed = attachment.change(guest, index, id, (filter, selection), stops)?;
        Ok(stops.told(changed))
    }
}
