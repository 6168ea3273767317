//! Where goes what a session records: into its trace, to who listens, and into dumps.

use std::path::Path;
use std::time::Duration;

use super::{Found, Reader, Shared, TraceSession};
use crate::collect::output::Output;
use crate::tracing::checks::check_occasion;
use crate::tracing::options::{SessionOptions, StoreKind, Tracer};
use crate::tracing::{TracingError, WantedDump};
use status::Dumped;
use trace::export::uftrace::{ExportError, Metadata};
use trace::live::Listener;
use trace::stream::{Stream, StreamOptions, WAITING_MAX};

impl TraceSession {
    pub(super) fn open_output(&mut self, force: bool, shared: &Shared) -> Result<(), TracingError> {
        let has_points = !self.events.is_empty() || !self.options.probe.is_empty();
        let has_records = self.options.output.is_some() || has_points;
        if self.tracer == Tracer::Profile && has_records {
            return Err(self.no_records());
        }
        if let Some(directory) = &self.options.output {
            let metadata = self.metadata(shared, Found::default());
            let output = match self.options.store {
                StoreKind::Uftrace => {
                    self.create_output(directory, force, metadata, WAITING_MAX, shared)
                }
                StoreKind::Compact => self.record_output(directory, force, metadata, shared),
            };
            let output = output.map_err(|error| match error {
                TracingError::Output(ExportError::Exists(directory)) => {
                    TracingError::OutputExists { directory }
                }
                other => other,
            })?;
            self.output = Some(output);
        }
        Ok(())
    }

    /// A trace directory for what the session records; `waiting` as [`Stream::of_functions`] takes it.
    fn create_output(
        &self,
        directory: &Path,
        force: bool,
        metadata: Metadata,
        waiting: usize,
        shared: &Shared,
    ) -> Result<Output, TracingError> {
        let stream = stream(&self.options, &metadata, waiting, shared)?;
        let output = Output::create(directory, force, &shared.image, metadata, stream)?;
        let output = output.within(&shared.budget);
        Ok(output.with_values(self.options.captures()))
    }

    /// A compact trace of what the session records.
    fn record_output(
        &self,
        directory: &Path,
        force: bool,
        metadata: Metadata,
        shared: &Shared,
    ) -> Result<Output, TracingError> {
        let options = stream_options(&self.options, &metadata)?;
        let stream = Stream::of(&options, &shared.image.functions, WAITING_MAX)?;
        let output = Output::record(directory, force, &shared.image, metadata, &options, stream)?;
        let output = output.within(&shared.budget);
        Ok(output.with_values(self.options.captures()))
    }

    /// One more listens to what is recorded from now on, or from its first start on.
    ///
    /// # Errors
    /// [`TracingError::NoRecords`], or why there can be no such occasion.
    pub fn listen(
        &mut self,
        listener: Listener,
        shared: &Shared,
        found: Found,
    ) -> Result<(), TracingError> {
        if self.tracer == Tracer::Profile {
            return Err(self.no_records());
        }
        if let Some(occasion) = listener.occasion() {
            check_occasion(occasion, self.tracer, &self.options, &shared.image)?;
        }
        let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader) else {
            self.listeners.push(listener);
            return Ok(());
        };
        let metadata = self.metadata(shared, found);
        drain.lock().listen(listener, |live| {
            let stream = stream(&self.options, &metadata, WAITING_MAX, shared)?;
            let output = Output::told(&shared.image, stream, live);
            Ok(output.with_values(self.options.captures()))
        })
    }

    /// Writes what the rings hold now into a new trace directory, as it is asked for. Unless that is live, nothing is recorded meanwhile, and
    /// `leave_stubs` is called afterwards: it waits until no vCPU is in a stub, and returns how many still are.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`] when it never was, or [`TracingError::Output`].
    pub fn dump(
        &self,
        wanted: &WantedDump<'_>,
        shared: &Shared,
        found: Found,
        leave_stubs: impl FnOnce() -> usize,
    ) -> Result<Dumped, TracingError> {
        let live = self.live.as_ref().ok_or_else(|| self.not_started())?;
        let Reader::Rings(drain) = &live.reader else {
            return Err(self.no_records());
        };
        let metadata = self.metadata(shared, found);
        let directory = wanted.directory;
        // Nothing is late in a copy: what waits there for other rings waits however much it is.
        let output = self.create_output(directory, false, metadata, usize::MAX, shared)?;
        // In one: who waits for the rings in between has the time go on.
        let mut rings = drain.lock();
        let dump = rings.dumping().begin(output, wanted.is_live, |until_ns| {
            wanted.begin.time_ns(until_ns)
        });
        // Not until it is written: whoever reads the rings would wait for a disk.
        drop(rings);
        // Who rests may have more to do.
        let (written, held) = dump.write(|| (shared.host.rest)(Duration::ZERO));
        let (mut in_stubs, mut missed) = (0, 0);
        // Also for a dump that could not be written.
        if let Some(held) = held {
            in_stubs = leave_stubs() as u64;
            missed = drain.lock().dumping().lost_since(&held);
        }
        self.missed.update(|before| before.saturating_add(missed));
        let dumped = written?;
        self.has_told.set(true);
        Ok(Dumped {
            in_stubs,
            missed,
            ..dumped
        })
    }

    /// Lets those in who have been waiting for the rings.
    ///
    /// # Errors
    /// As of [`Self::listen`].
    pub fn let_in(&mut self, shared: &Shared, found: Found) -> Result<(), TracingError> {
        let mut waiting = std::mem::take(&mut self.listeners).into_iter();
        waiting.try_for_each(|listener| self.listen(listener, shared, found))
    }
}

/// The events of what a session with these options records; `waiting` as [`Stream::of_functions`] takes it.
fn stream(
    options: &SessionOptions,
    metadata: &Metadata,
    waiting: usize,
    shared: &Shared,
) -> Result<Stream, TracingError> {
    let options = stream_options(options, metadata)?;
    Ok(Stream::of(&options, &shared.image.functions, waiting)?)
}

/// What that stream goes by.
fn stream_options(
    options: &SessionOptions,
    metadata: &Metadata,
) -> Result<StreamOptions, TracingError> {
    Ok(StreamOptions {
        rings: metadata.vcpus,
        stack_bytes: metadata.is_graph().then_some(metadata.stack_bytes),
        has_values: !options.captures().is_empty(),
        rules: options.graph.rules()?,
    })
}
