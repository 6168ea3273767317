//! Changing what a session traces while it does.

use std::sync::Arc;

use crate::filter::{Filter, FilterError, Side};

use super::status::Changed;
use super::{Tracing, TracingError};
use crate::guest::Guest;

/// What is to be traced, and what not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globs {
    /// Functions to trace; none means all.
    pub filter: Vec<String>,
    /// Functions not to trace.
    pub notrace: Vec<String>,
}

impl Tracing {
    /// Traces these too, or excludes these too.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_add(
        &mut self,
        guest: &impl Guest,
        session: &str,
        globs: &Globs,
    ) -> Result<Changed, TracingError> {
        self.refilter(guest, session, |filter| {
            each_glob(globs, |side, glob| filter.add(side, glob))
        })
    }

    /// Takes globs out of the filter.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_remove(
        &mut self,
        guest: &impl Guest,
        session: &str,
        globs: &Globs,
    ) -> Result<Changed, TracingError> {
        self.refilter(guest, session, |filter| {
            each_glob(globs, |side, glob| filter.remove(side, glob))
        })
    }

    /// Traces by exactly these globs; with none everything.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_set(
        &mut self,
        guest: &impl Guest,
        session: &str,
        globs: &Globs,
    ) -> Result<Changed, TracingError> {
        self.refilter(guest, session, |filter| {
            *filter = Filter::new(&globs.filter, &globs.notrace)?;
            Ok(())
        })
    }

    fn refilter(
        &mut self,
        guest: &impl Guest,
        name: &str,
        edit: impl FnOnce(&mut Filter) -> Result<(), FilterError>,
    ) -> Result<Changed, TracingError> {
        let index = self.find(name)?;
        let session = self.at(index)?;
        let (id, mut filter) = (session.started()?, session.filter.clone());
        edit(&mut filter)?;
        let image = Arc::clone(&self.shared.image);
        let selection = self.at(index)?.select(&filter, &image)?;
        self.change(guest, index, id, filter, selection)
    }
}

fn each_glob(
    globs: &Globs,
    mut edit: impl FnMut(Side, &str) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    globs
        .filter
        .iter()
        .try_for_each(|glob| edit(Side::Include, glob))?;
    globs
        .notrace
        .iter()
        .try_for_each(|glob| edit(Side::Notrace, glob))
}
