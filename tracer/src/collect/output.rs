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
use trace::live::{Heard, Live};
use trace::stream::Stream;

use super::backlog::{Backlog, Batch};
use super::thread_names::ThreadNames;
use crate::clock::HostClock;
use crate::guest::SharedMemory;
use crate::guest_kind;

/// A trace being written, or told to who listens, or both.
#[derive(Debug)]
pub struct Output {
    stream: Stream,
    kept: Option<Kept>,
    live: Live,
    image: Arc<Image>,
    /// Whose stack is whose.
    names: ThreadNames,
    /// When values of calls are captured.
    captures: CallMoments,
    /// It was said that not everything is written.
    has_failed: bool,
}

/// Where a trace is kept.
#[derive(Debug)]
struct Kept {
    store: Box<dyn Store>,
    directory: PathBuf,
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
        let kept = Kept {
            store: Box::new(store),
            directory: directory.to_owned(),
        };
        Ok(Self {
            kept: Some(kept),
            ..Self::told(image, stream)
        })
    }

    /// What this stream has is kept nowhere: it is for who listens.
    #[must_use]
    pub fn told(image: &Arc<Image>, stream: Stream) -> Self {
        Self {
            stream,
            kept: None,
            live: Live::default(),
            image: Arc::clone(image),
            names: ThreadNames::default(),
            captures: CallMoments::default(),
            has_failed: false,
        }
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
            self.learn(News::Metadata(Box::new(metadata)));
        }
        for listener in news.listeners {
            self.live.add(listener);
        }
        backlog.drain().for_each(|batch| self.append(batch));
        if !self.is_ordered() {
            self.pass_on(false);
        }
    }

    /// Whether what a ring brings has to wait for the others.
    fn is_ordered(&mut self) -> bool {
        let is_heard = self.live.is_heard();
        let store = self.kept.as_ref().map(|kept| &*kept.store);
        is_heard || store.is_none_or(|store| self.stream.is_ordered(store))
    }

    /// Whether nobody wants it: it is not kept, and nobody listens.
    pub fn is_idle(&mut self) -> bool {
        self.kept.is_none() && !self.live.is_heard()
    }

    /// Passes on what is certain by now, or when it is over, all that is left.
    fn pass_on(&mut self, is_over: bool) {
        let store = self.kept.as_mut().map(|kept| &mut *kept.store);
        match store {
            // Faster: it knows whom it calls.
            Some(store) if !self.live.is_heard() => store.take(&mut self.stream, is_over),
            store => {
                let mut heard = Heard {
                    store,
                    live: &mut self.live,
                    functions: &self.image.functions,
                    has_returns: self.stream.has_threads(),
                };
                self.stream.pass_on(is_over, &mut heard);
            }
        }
    }

    /// Something is known from now on.
    fn learn(&mut self, news: News<'_>) {
        self.live.learn(&news);
        if let Some(kept) = &mut self.kept {
            kept.store.learn(news);
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
        let fresh = self.stream.take_fresh();
        let mut named = Vec::new();
        let name = |thread, name| named.push(News::Thread(thread, name));
        let deaths = self.names.look(&self.image, fresh, now_ns, name);
        named.into_iter().for_each(|news| self.learn(news));
        deaths.into_iter().for_each(|death| self.stream.died(death));
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Arc<Image>) {
        self.image = Arc::clone(image);
        self.stream.extend(&image.functions);
        self.learn(News::Functions(text(image)));
    }

    /// What points and the values of calls are, from now on.
    pub fn know_points(&mut self, formats: &EventFormats) {
        self.stream.expect_points();
        self.learn(News::Points(formats.points()));
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
        self.learn(News::Values(described));
    }

    /// What is known of the probes of the session.
    pub fn describe_probes(&mut self, probes: &[ProbeNote]) {
        self.learn(News::Probes(probes));
    }

    /// Writes what is certain of its place by now, which is `now_ns`.
    pub fn settle(&mut self, now_ns: u64) {
        self.pass_on(false);
        if self.names.is_due(self.stream.has_fresh()) {
            self.name_threads_at(now_ns);
        }
        if !self.has_failed
            && let Some(error) = self.error()
        {
            log::error!("{error} so far; the guest goes on, the trace up to there stays readable");
            self.has_failed = true;
        }
    }

    /// Why not everything was written.
    #[must_use]
    pub fn error(&self) -> Option<&ExportError> {
        self.kept.as_ref()?.store.error()
    }

    /// What did not fit in a graph trace so far.
    #[must_use]
    pub fn anomalies(&self) -> Vec<AnomalyNote> {
        let anomalies = self.stream.anomalies();
        anomalies.map_or_else(Vec::new, |anomalies| {
            AnomalyNote::list(anomalies, &self.image.functions)
        })
    }

    /// Completes the trace, in which times may be wrong. Returns where it is, and what is in it, if it is kept.
    ///
    /// # Errors
    /// The first [`ExportError`] since it was made.
    pub fn finish(mut self, doubts: &TimeDoubts) -> Result<Option<Written>, ExportError> {
        self.pass_on(true);
        // Whose records have all come: nothing more is told of its end.
        if self.stream.has_threads() {
            self.name_threads_at(u64::MAX);
        }
        let anomalies = self.anomalies();
        let Some(mut kept) = self.kept else {
            return Ok(None);
        };
        let tally = kept.store.finish(Ending {
            doubts: doubts.notes(),
            anomalies,
            strays: self.stream.strays(),
        })?;
        let directory = kept.directory;
        Ok(Some(Written { directory, tally }))
    }
}

/// What a directory is told of the text of this image.
fn text(image: &Image) -> Text<'_> {
    Text {
        functions: &image.functions,
        limit: guest_kind::of(image).text_limit(),
    }
}
