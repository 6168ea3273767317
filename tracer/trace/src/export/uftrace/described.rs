//! What describes a trace: it is written anew each time that more is known, or once, at the end.
//!
//! A session learns something now and then, and who looks at its directory then finds it. A file that a trace is put together from may say
//! a hundred thousand times that there is nothing new, in some bytes each, and all symbols would be written as often.

use super::directory::replace;
use super::entries::Entries;
use super::layout::{Extent, Text};
use super::{ExportError, Metadata, UftraceWriter, module_name};
use crate::export::call_formats::CallFormats;
use crate::export::probes::{self, ProbeNote};

/// What is to be written at the end; of each the newest.
#[derive(Debug, Default)]
pub(super) struct Later {
    values: Option<CallFormats>,
    probes: Option<Vec<ProbeNote>>,
}

impl UftraceWriter {
    /// What is known from now on is kept in memory, until [`Self::describe_all`].
    pub(crate) fn describe_later(&mut self) {
        self.later.get_or_insert_default();
        if let Some(threads) = &mut self.threads {
            threads.lanes.list_later();
        }
    }

    /// Writes what was kept, with these functions where others are not written yet.
    pub(crate) fn describe_all(&mut self, text: Option<Text<'_>>) {
        let Later { values, probes } = self.later.take().unwrap_or_default();
        let outcomes = [
            text.map_or(Ok(()), |text| self.write_symbols(text)),
            values.map_or(Ok(()), |values| self.describe_values(values)),
            probes.map_or(Ok(()), |probes| self.describe_probes(&probes)),
        ];
        let errors = outcomes.into_iter().filter_map(Result::err);
        errors.for_each(|error| self.note(error));
    }

    /// Functions have come: `text` has those of before, and more.
    ///
    /// # Errors
    /// An [`ExportError`] that names the file.
    pub fn extend(&mut self, text: Text<'_>) -> Result<(), ExportError> {
        if self.later.is_some() {
            // Else each of many that come one by one would be a table of all.
            let mut entries = std::mem::take(&mut self.entries);
            self.use_entries(Entries::default());
            entries.grow(text.functions);
            self.use_entries(entries);
            return Ok(());
        }
        self.write_symbols(text)?;
        self.use_entries(Entries::of(text.functions));
        Ok(())
    }

    fn use_entries(&mut self, entries: Entries) {
        if let Some(threads) = &mut self.threads {
            threads.lanes.extend(entries.clone());
        }
        self.entries = entries;
    }

    fn write_symbols(&self, text: Text<'_>) -> Result<(), ExportError> {
        let module = module_name(&self.side.metadata.image);
        let symbols = Extent::of(text).symbols(text.functions);
        replace(
            &self.directory,
            &format!("{module}.sym"),
            symbols.as_bytes(),
        )
    }

    /// Writes into the side file what was not known when the trace was created, or has changed
    /// since. The number of vCPUs, the tracer and whether there are callers stay what they were.
    ///
    /// # Errors
    /// [`ExportError`] when the file cannot be written; the old one stays then.
    pub fn describe(&mut self, metadata: Metadata) -> Result<(), ExportError> {
        let before = &self.side.metadata;
        self.side.metadata = Metadata {
            vcpus: before.vcpus,
            tracer: before.tracer.clone(),
            callers: before.callers,
            ..metadata
        };
        // At the end it is written in any case.
        match self.later {
            Some(_) => Ok(()),
            None => self.write_side(),
        }
    }

    /// What is known of the probes whose events the trace has.
    ///
    /// # Errors
    /// [`ExportError::Io`]; an older table stays then.
    pub fn describe_probes(&mut self, probes: &[ProbeNote]) -> Result<(), ExportError> {
        if let Some(later) = &mut self.later {
            later.probes = Some(probes.to_vec());
            return Ok(());
        }
        let outcome = probes::write(&self.directory, probes);
        outcome.map_err(|(path, error)| ExportError::io("write", &path)(error))
    }

    /// What the values of calls are, from now on.
    ///
    /// # Errors
    /// [`ExportError::Io`].
    pub fn describe_values(&mut self, mut values: CallFormats) -> Result<(), ExportError> {
        if let Some(threads) = &self.threads {
            values.stay_as(threads.lanes.values());
        }
        match &mut self.later {
            Some(later) => later.values = Some(values.clone()),
            None => {
                let written = values.write(&self.directory);
                written.map_err(|(path, error)| ExportError::io("write", &path)(error))?;
            }
        }
        match &mut self.threads {
            Some(threads) => threads.lanes.describe_values(values),
            None => Ok(()),
        }
    }
}
