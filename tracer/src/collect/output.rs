//! Where records go: through one stream, which makes events of them, into what keeps the trace. A disk that is full or
//! gone ends neither the guest nor the run: the first error is kept and shown, what was written before stays readable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::event_formats::EventFormats;
use crate::session::CallMoments;
use image::Image;
use trace::doubt::TimeDoubts;
use trace::export::call_formats::CallFormats;
use trace::export::probes::ProbeNote;
use trace::export::store::{Ending, News, Store};
use trace::export::uftrace::layout::Text;
use trace::export::uftrace::{AnomalyNote, ExportError, Metadata, Tally, UftraceWriter};
use trace::stream::Stream;

use super::backlog::{Backlog, Batch};
use super::thread_names::ThreadNames;
use crate::clock::HostClock;
use crate::guest::SharedMemory;
use crate::guest_kind;

/// A trace being written.
#[derive(Debug)]
pub struct Output {
    stream: Stream,
    store: Box<dyn Store>,
    directory: PathBuf,
    image: Arc<Image>,
    /// Whose stack is whose.
    names: ThreadNames,
    /// When values of calls are captured.
    captures: CallMoments,
    /// It was said that not everything is written.
    has_failed: bool,
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
    /// Makes the directory for what this stream has; with `force` an older trace there is replaced.
    ///
    /// # Errors
    /// [`ExportError`] names the file in the way.
    pub fn create(
        directory: &Path,
        force: bool,
        image: &Arc<Image>,
        metadata: Metadata,
        stream: Stream,
    ) -> Result<Self, ExportError> {
        let store = UftraceWriter::create(directory, text(image), metadata, force)?;
        Ok(Self {
            stream,
            store: Box::new(store),
            directory: directory.to_owned(),
            image: Arc::clone(image),
            names: ThreadNames::default(),
            captures: CallMoments::default(),
            has_failed: false,
        })
    }

    /// The same where values of calls are captured.
    #[must_use]
    pub fn with_values(self, captures: CallMoments) -> Self {
        Self { captures, ..self }
    }

    /// Takes what has been read, and leaves nothing there. It is written when its place is certain: [`Self::settle`].
    pub fn take(&mut self, backlog: &mut Backlog) {
        let news = backlog.take_news();
        if let Some(image) = news.image {
            self.extend(&image);
        }
        if let Some(formats) = news.formats {
            self.know_points(&formats);
        }
        if let Some(probes) = news.probes {
            self.describe_probes(&probes);
        }
        if let Some(metadata) = news.metadata {
            self.store.learn(News::Metadata(Box::new(metadata)));
        }
        backlog.drain().for_each(|batch| self.append(batch));
        if !self.stream.is_ordered(&*self.store) {
            self.store.take(&mut self.stream, false);
        }
    }

    /// Adds what was read.
    pub fn append(&mut self, batch: Batch) {
        let origin = batch.origin;
        self.stream.push(origin, batch.records, batch.until_ns);
        if let Some(time_ns) = batch.looked_ns {
            self.stream.looked(origin, time_ns);
        }
    }

    /// What has been written leaves its room.
    pub fn leave_room(&mut self, backlog: &mut Backlog) {
        while let Some(room) = self.stream.take_room() {
            backlog.keep_room(room);
        }
    }

    /// The guest's threads are to be named, by what is in its memory when they are first seen.
    pub fn name_threads(&mut self, memory: &Arc<dyn SharedMemory>, host: HostClock) {
        self.names.ask(memory, host);
    }

    fn name_threads_at(&mut self, now_ns: u64) {
        let store = &mut self.store;
        let name = |thread, name| store.learn(News::Thread(thread, name));
        let fresh = self.stream.take_fresh();
        let deaths = self.names.look(&self.image, fresh, now_ns, name);
        deaths.into_iter().for_each(|death| self.stream.died(death));
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Arc<Image>) {
        self.image = Arc::clone(image);
        self.stream.extend(&image.functions);
        self.store.learn(News::Functions(text(image)));
    }

    /// What points and the values of calls are, from now on.
    pub fn know_points(&mut self, formats: &EventFormats) {
        self.stream.expect_points();
        self.store.learn(News::Points(formats.points()));
        if !self.stream.has_threads() || self.captures.is_empty() {
            return;
        }
        let known = formats.calls();
        let wanted = known.filter(|(_, moment, _)| self.captures.has(*moment));
        let wanted: Vec<_> = wanted.collect();
        for (function, moment, _) in &wanted {
            self.stream.expect_values(*function, *moment);
        }
        let described = CallFormats::of(&self.image.functions, wanted.into_iter());
        self.store.learn(News::Values(described));
    }

    /// What is known of the probes of the session.
    pub fn describe_probes(&mut self, probes: &[ProbeNote]) {
        self.store.learn(News::Probes(probes));
    }

    /// Writes what is certain of its place by now, which is `now_ns`.
    pub fn settle(&mut self, now_ns: u64) {
        self.store.take(&mut self.stream, false);
        if self.names.is_due(self.stream.has_fresh()) {
            self.name_threads_at(now_ns);
        }
        if let Some(error) = self.store.error()
            && !std::mem::replace(&mut self.has_failed, true)
        {
            log::error!("{error} so far; the guest goes on, the trace up to there stays readable");
        }
    }

    /// Why not everything was written.
    #[must_use]
    pub fn error(&self) -> Option<&ExportError> {
        self.store.error()
    }

    /// What did not fit in a graph trace so far.
    #[must_use]
    pub fn anomalies(&self) -> Vec<AnomalyNote> {
        let anomalies = self.stream.anomalies();
        anomalies.map_or_else(Vec::new, |anomalies| {
            AnomalyNote::list(anomalies, &self.image.functions)
        })
    }

    /// Completes the trace, in which times may be wrong. Returns where it is, and what is in it.
    ///
    /// # Errors
    /// The first [`ExportError`] since it was made.
    pub fn finish(mut self, doubts: &TimeDoubts) -> Result<Written, ExportError> {
        self.store.take(&mut self.stream, true);
        // Whose records have all come: nothing more is told of its end.
        if self.stream.has_threads() {
            self.name_threads_at(u64::MAX);
        }
        let tally = self.store.finish(Ending {
            doubts: doubts.notes(),
            anomalies: self.anomalies(),
            strays: self.stream.strays(),
        })?;
        let directory = self.directory;
        Ok(Written { directory, tally })
    }
}

/// What a directory is told of the text of this image.
fn text(image: &Image) -> Text<'_> {
    Text {
        functions: &image.functions,
        limit: guest_kind::of(image).text_limit(),
    }
}
