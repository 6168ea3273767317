//! Changing what a session traces while it does.

use std::sync::Arc;

use tracer::filter::{Filter, FilterError, Side};

use super::{Tracing, TracingError};
use crate::control::protocol::{FilterChange, SessionName};
use crate::control::status::Changed;
use crate::machine::Machine;

impl Tracing {
    /// `filter.add`: traces these too, or excludes these too.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_add(
        &mut self,
        machine: &Machine,
        change: &FilterChange,
    ) -> Result<Changed, TracingError> {
        self.refilter(machine, &change.session, |filter| {
            each_glob(change, |side, glob| filter.add(side, glob))
        })
    }

    /// `filter.remove`: takes globs out of the filter.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_remove(
        &mut self,
        machine: &Machine,
        change: &FilterChange,
    ) -> Result<Changed, TracingError> {
        self.refilter(machine, &change.session, |filter| {
            each_glob(change, |side, glob| filter.remove(side, glob))
        })
    }

    /// `filter.set`: exactly these globs; with none it is `filter.clear`.
    ///
    /// # Errors
    /// A [`TracingError`]; then everything is as before.
    pub fn filter_set(
        &mut self,
        machine: &Machine,
        change: &FilterChange,
    ) -> Result<Changed, TracingError> {
        self.refilter(machine, &change.session, |filter| {
            *filter = Filter::new(&change.filter, &change.notrace)?;
            Ok(())
        })
    }

    fn refilter(
        &mut self,
        machine: &Machine,
        name: &SessionName,
        edit: impl FnOnce(&mut Filter) -> Result<(), FilterError>,
    ) -> Result<Changed, TracingError> {
        let index = self.find(&name.0)?;
        let session = self.at(index)?;
        let (id, mut filter) = (session.started()?, session.filter.clone());
        edit(&mut filter)?;
        let image = Arc::clone(&self.shared.image);
        let selection = self.at(index)?.select(&filter, &image)?;
        self.change(machine, index, id, filter, selection)
    }
}

fn each_glob(
    change: &FilterChange,
    mut edit: impl FnMut(Side, &str) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    change
        .filter
        .iter()
        .try_for_each(|glob| edit(Side::Include, glob))?;
    change
        .notrace
        .iter()
        .try_for_each(|glob| edit(Side::Notrace, glob))
}
