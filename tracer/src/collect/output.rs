//! The trace directory that records go to. A disk that is full or gone ends neither the guest nor the
//! run: the first error is kept and shown, what was written before stays readable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::event_formats::EventFormats;
use crate::session::CallMoments;
use image::Image;
use trace::doubt::TimeDoubts;
use trace::event::{Event, EventKind, PointEvent, PointKind};
use trace::export::call_formats::CallFormats;
use trace::export::probes::ProbeNote;
use trace::export::uftrace::layout::Text;
use trace::export::uftrace::{AnomalyNote, ExportError, Metadata, Tally, UftraceWriter};
use trace::graph::pipeline::Pipeline;
use trace::graph::{CallEvent, CallSink};

use super::backlog::{Backlog, Batch, Calls};
use super::thread_names::ThreadNames;
use crate::clock::HostClock;
use crate::guest::SharedMemory;
use crate::guest_kind;

/// A trace directory being written.
#[derive(Debug)]
pub struct Output {
    sink: Sink,
    image: Arc<Image>,
    /// Of a graph trace: puts calls together.
    pipeline: Option<Pipeline>,
    /// Whose stack is whose.
    names: ThreadNames,
    /// When values of calls are captured.
    captures: CallMoments,
}

/// The writer, and what became of it.
#[derive(Debug)]
struct Sink {
    writer: UftraceWriter,
    directory: PathBuf,
    error: Option<ExportError>,
}

/// A trace that is complete.
#[derive(Debug)]
pub struct Written {
    /// Where it is.
    pub directory: PathBuf,
    /// What is in it.
    pub tally: Tally,
}

impl Output {
    /// Makes the directory; with `force` an older trace there is replaced. A graph trace needs a
    /// pipeline.
    ///
    /// # Errors
    /// [`ExportError`] names the file in the way.
    pub fn create(
        directory: &Path,
        force: bool,
        image: &Arc<Image>,
        metadata: Metadata,
        pipeline: Option<Pipeline>,
    ) -> Result<Self, ExportError> {
        let writer = UftraceWriter::create(directory, text(image), metadata, force)?;
        Ok(Self {
            sink: Sink {
                writer,
                directory: directory.to_owned(),
                error: None,
            },
            image: Arc::clone(image),
            pipeline,
            names: ThreadNames::default(),
            captures: CallMoments::default(),
        })
    }

    /// The same where values of calls are captured.
    #[must_use]
    pub fn with_values(self, captures: CallMoments) -> Self {
        Self { captures, ..self }
    }

    /// Writes what has been read, and leaves nothing there. Calls of a graph are written when their place is certain:
    /// [`Self::settle`].
    pub fn take(&mut self, backlog: &mut Backlog) {
        let news = backlog.take_news();
        if let Some(image) = news.image {
            self.extend(&image);
        }
        if let Some(formats) = news.formats {
            self.know_values(&formats);
        }
        if let Some(probes) = news.probes {
            self.describe_probes(&probes);
        }
        if let Some(metadata) = news.metadata {
            self.describe(metadata);
        }
        backlog.drain(|batch| self.append(batch));
    }

    /// Adds what was read.
    pub fn append(&mut self, batch: &Batch) {
        match batch {
            Batch::Calls(calls) => self.append_calls(calls),
            Batch::Points(points) => {
                self.append_points(&points.events, &points.formats);
                for (ring, time_ns) in &points.looked {
                    self.looked_at_values(*ring, *time_ns);
                }
            }
            Batch::Gap(time_ns) => self.gap(*time_ns),
            Batch::Stall(stall) => self.sink.writer.clock_stall(*stall),
        }
    }

    fn append_calls(&mut self, batch: &Calls) {
        let Some(pipeline) = &mut self.pipeline else {
            let outcome = self.sink.writer.append(&batch.events);
            return self.sink.note(outcome);
        };
        for (index, event) in batch.events.iter().enumerate() {
            pipeline.push(*event, batch.loss_until(index));
        }
        if let Some(time_ns) = batch.looked_ns {
            pipeline.looked(batch.ring, time_ns);
        }
    }

    /// The guest's threads are to be named, by what is in its memory when they are first seen.
    pub fn name_threads(&mut self, memory: &Arc<dyn SharedMemory>, host: HostClock) {
        self.names.ask(memory, host);
    }

    fn name_threads_at(&mut self, now_ns: u64) {
        if let Some(pipeline) = &mut self.pipeline {
            let writer = &mut self.sink.writer;
            let name = |thread, name| writer.name_thread(thread, name);
            let fresh = pipeline.take_fresh();
            let deaths = self.names.look(&self.image, fresh, now_ns, name);
            deaths.into_iter().for_each(|death| pipeline.died(death));
        }
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Arc<Image>) {
        self.image = Arc::clone(image);
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.extend(&image.functions);
        }
        let outcome = self.sink.writer.extend(text(image));
        self.sink.note(outcome);
    }

    /// What the trace says of itself has changed.
    pub fn describe(&mut self, metadata: Metadata) {
        let outcome = self.sink.writer.describe(metadata);
        self.sink.note(outcome);
    }

    /// Nothing was recorded for some time up to now.
    fn gap(&mut self, time_ns: u64) {
        if let Some(pipeline) = &mut self.pipeline {
            let (vcpu, kind) = (0, EventKind::Lost(0));
            let event = Event {
                time_ns,
                vcpu,
                kind,
            };
            pipeline.push(event, time_ns);
        }
    }

    /// Adds events of the guest's own, those of one vCPU in the order of time.
    fn append_points(&mut self, events: &[PointEvent], formats: &EventFormats) {
        for event in events {
            let format = match &event.kind {
                PointKind::Call(call) => {
                    if let Some(pipeline) = &mut self.pipeline {
                        pipeline.push_values(event.time_ns, event.vcpu, call.clone());
                    }
                    continue;
                }
                PointKind::Passed(id, _) => formats.get(*id),
                PointKind::Lost(_) => None,
            };
            let outcome = self.sink.writer.append_point(event, format);
            self.sink.note(outcome);
        }
    }

    /// A ring of events brings no more values of calls that were reserved before this time.
    fn looked_at_values(&mut self, ring: u16, time_ns: u64) {
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.looked_at_values(ring, time_ns);
        }
    }

    /// What is captured of calls, from now on.
    pub fn know_values(&mut self, formats: &EventFormats) {
        let Some(pipeline) = self.pipeline.as_mut().filter(|_| !self.captures.is_empty()) else {
            return;
        };
        let known = formats.calls();
        let wanted = known.filter(|(_, moment, _)| self.captures.has(*moment));
        let wanted: Vec<_> = wanted.collect();
        for (function, moment, _) in &wanted {
            pipeline.expect_values(*function, *moment);
        }
        let described = CallFormats::of(&self.image.functions, wanted.into_iter());
        let outcome = self.sink.writer.describe_values(described);
        self.sink.note(outcome);
    }

    /// What is known of the probes of the session.
    pub fn describe_probes(&mut self, probes: &[ProbeNote]) {
        let outcome = self.sink.writer.describe_probes(probes);
        self.sink.note(outcome);
    }

    /// Writes the calls whose place is certain by now, which is `now_ns`.
    pub fn settle(&mut self, now_ns: u64) {
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.run(&mut self.sink);
            if self.names.is_due(pipeline.has_fresh()) {
                self.name_threads_at(now_ns);
            }
        }
    }

    /// Why not everything was written.
    #[must_use]
    pub fn error(&self) -> Option<&ExportError> {
        self.sink.error.as_ref()
    }

    /// What did not fit in a graph trace so far.
    #[must_use]
    pub fn anomalies(&self) -> Vec<AnomalyNote> {
        let pipeline = self.pipeline.as_ref();
        pipeline.map_or_else(Vec::new, |pipeline| {
            AnomalyNote::list(pipeline.anomalies(), &self.image.functions)
        })
    }

    /// Completes the trace, in which times may be wrong. Returns where it is, and what is in it.
    ///
    /// # Errors
    /// The first [`ExportError`] since it was made.
    pub fn finish(mut self, doubts: &TimeDoubts) -> Result<Written, ExportError> {
        self.sink.writer.set_doubts(doubts.notes());
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.finish(&mut self.sink);
            let anomalies = pipeline.anomalies();
            self.sink
                .writer
                .set_anomalies(anomalies, &self.image.functions);
        }
        // Whose records have all come: nothing more is told of its end.
        self.name_threads_at(u64::MAX);
        let closed = self.sink.writer.close();
        let dropped = self.sink.writer.dropped();
        match self.sink.error.or(closed.err()) {
            Some(error) => Err(error.with_dropped(dropped)),
            None => Ok(Written {
                directory: self.sink.directory,
                tally: self.sink.writer.tally(),
            }),
        }
    }
}

impl Sink {
    fn note(&mut self, outcome: Result<(), ExportError>) {
        let Err(error) = outcome else { return };
        if self.error.is_none() {
            log::error!("{error} so far; the guest goes on, the trace up to there stays readable");
        }
        let first = self.error.take().unwrap_or(error);
        self.error = Some(first.with_dropped(self.writer.dropped()));
    }
}

impl CallSink for Sink {
    fn call(&mut self, event: CallEvent) {
        let outcome = self.writer.append_call(event);
        self.note(outcome);
    }
}

/// What a directory is told of the text of this image.
fn text(image: &Image) -> Text<'_> {
    Text {
        functions: &image.functions,
        limit: guest_kind::of(image).text_limit(),
    }
}
