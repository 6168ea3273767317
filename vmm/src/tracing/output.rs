//! The trace directory that records go to. A disk that is full or gone ends neither the guest nor the
//! run: the first error is kept and shown, what was written before stays readable.

use std::path::{Path, PathBuf};

use tracer::event::Event;
use tracer::export::uftrace::{ExportError, Metadata, UftraceWriter};
use tracer::image::Image;

/// A trace directory being written.
#[derive(Debug)]
pub struct Output {
    writer: UftraceWriter,
    directory: PathBuf,
    error: Option<ExportError>,
}

impl Output {
    /// Makes the directory; with `force` an older trace there is replaced.
    ///
    /// # Errors
    /// [`ExportError`] names the file in the way.
    pub fn create(
        directory: &Path,
        force: bool,
        image: &Image,
        metadata: Metadata,
    ) -> Result<Self, ExportError> {
        let writer = UftraceWriter::create(directory, image, metadata, force)?;
        Ok(Self {
            writer,
            directory: directory.to_owned(),
            error: None,
        })
    }

    /// Adds events.
    pub fn append(&mut self, events: &[Event]) {
        let outcome = self.writer.append(events);
        self.note(outcome);
    }

    /// Writes what is still buffered.
    pub fn flush(&mut self) {
        let outcome = self.writer.flush();
        self.note(outcome);
    }

    fn note(&mut self, outcome: Result<(), ExportError>) {
        let Err(error) = outcome else { return };
        if self.error.is_none() {
            log::error!("{error}; the guest goes on, the trace up to there stays readable");
            self.error = Some(error);
        }
    }

    /// Why not everything was written.
    #[must_use]
    pub fn error(&self) -> Option<&ExportError> {
        self.error.as_ref()
    }

    /// Completes the trace. Returns where it is.
    ///
    /// # Errors
    /// The first [`ExportError`] since it was made.
    pub fn finish(self) -> Result<PathBuf, ExportError> {
        let finished = self.writer.finish();
        match self.error {
            Some(error) => Err(error),
            None => finished.map(|_| self.directory),
        }
    }
}
