//! Where records go: through one stream, which makes events of them, into what keeps the trace. A disk that is full or
//! gone ends neither the guest nor the run: the first error is kept and shown, what was written before stays readable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::event_formats::EventFormats;
use crate::session::CallMoments;
use image::Image;
use terms::addr::Gva;
use trace::columns::Part;
use trace::crew::{Alone, Crew};
use trace::doubt::TimeDoubts;
use trace::event::Record;
use trace::export::budget::{Budget, Steps};
use trace::export::call_formats::CallFormats;
use trace::export::compact;
use trace::export::probes::ProbeNote;
use trace::export::store::{Ending, News, Store};
use trace::export::uftrace::layout::Text;
use trace::export::uftrace::{AnomalyNote, ExportError, Metadata, Tally, UftraceWriter};
use trace::live::{Heard, Live};
use trace::stream::{Origin, Pass, Stream, StreamOptions};

use super::backlog::{Backlog, Batch, Records};
use super::encoder::Encoding;
use super::kept::{Keeper, Kept};
use super::recording::Recording;
use super::ring_clock::TraceTime;
use super::rooms::Rooms;
use super::thread_names::ThreadNames;
use crate::guest::SharedMemory;
use crate::guest_kind;

/// A trace being written, or told to who listens, or both.
#[derive(Debug)]
pub struct Output {
    stream: Stream,
    kept: Option<Kept>,
    live: Live,
    /// Somebody listened when what was read was taken last. Who leaves in the middle of it leaves it its way: calls that go to
    /// their file at once would come before those that wait there.
    is_heard: bool,
    image: Arc<Image>,
    /// Whose stack is whose.
    names: ThreadNames,
    /// When values of calls are captured.
    captures: CallMoments,
    /// It was said that not everything is written.
    has_failed: bool,
    /// Records that are kept as they are have gone through the stream, too.
    is_fed: bool,
    /// The threads of these.
    heard: Vec<(u32, Gva)>,
    /// Up to when each ring was looked at last: of calls, or not.
    looked: BTreeMap<(u16, bool), u64>,
}

/// A trace that is complete.
#[derive(Debug)]
pub struct Written {
    /// Where it is.
    pub directory: PathBuf,
    /// What is in it.
    pub holds: Holds,
}

impl Written {
    /// What is in it, as far as calls were put together.
    #[cfg(test)]
    pub fn tally(&self) -> Tally {
        match self.holds {
            Holds::Events(tally) => tally,
            Holds::Records(_) => Tally::default(),
        }
    }
}

/// What is in a trace that is complete.
#[derive(Debug, Clone, Copy)]
pub enum Holds {
    /// Calls and events.
    Events(Tally),
    /// Records that are put together when they are read.
    Records(compact::Kept),
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
        let store = Keeper::Events(Box::new(store));
        Ok(Self::kept(store, directory, image, stream))
    }

    /// The same for what the rings bring, of which this stream can be made later.
    ///
    /// # Errors
    /// As of [`Self::create`].
    pub fn record(
        directory: &Path,
        force: bool,
        image: &Arc<Image>,
        metadata: Metadata,
        options: &StreamOptions,
        stream: Stream,
    ) -> Result<Self, ExportError> {
        let recording = Recording::create(directory, text(image), metadata, options, force)?;
        let store = Keeper::Records(Box::new(recording));
        Ok(Self::kept(store, directory, image, stream))
    }

    fn kept(store: Keeper, directory: &Path, image: &Arc<Image>, stream: Stream) -> Self {
        let kept = Kept {
            store,
            directory: directory.to_owned(),
            steps: Steps::default(),
        };
        let output = Self {
            kept: Some(kept),
            ..Self::told(image, stream, Live::default())
        };
        output.within(&Budget::default())
    }

    /// The same, of which records and events take from a budget.
    #[must_use]
    pub fn within(mut self, budget: &Budget) -> Self {
        if let Some(kept) = &mut self.kept {
            let budget = budget.for_one();
            match &mut kept.store {
                Keeper::Events(store) => store.set_budget(&budget),
                Keeper::Records(store) => store.set_budget(&budget),
                Keeper::Nothing(_) => {}
            }
            kept.steps = budget.steps().clone();
        }
        self
    }

    /// The steps of who writes it.
    #[must_use]
    pub fn steps(&self) -> Steps {
        let kept = self.kept.as_ref();
        kept.map_or_else(Steps::default, |kept| kept.steps.clone())
    }

    /// How records of calls are wanted, if it is not as rows.
    #[must_use]
    pub fn encodes(&self) -> Option<Encoding> {
        let steps = || self.stream.stack_bytes().map(Encoding::Columns);
        match self.kept.as_ref().map(|kept| &kept.store) {
            Some(Keeper::Records(recording)) => Some(Encoding::Compact(recording.stack_bytes())),
            Some(Keeper::Events(store)) => {
                let entries = || store.entries().cloned();
                steps().or_else(|| entries().map(Encoding::DataFile))
            }
            Some(Keeper::Nothing(_)) | None => steps(),
        }
    }

    /// What this stream has is kept nowhere: it is for who listens.
    #[must_use]
    pub fn told(image: &Arc<Image>, stream: Stream, live: Live) -> Self {
        Self {
            stream,
            kept: None,
            live,
            is_heard: false,
            image: Arc::clone(image),
            names: ThreadNames::default(),
            captures: CallMoments::default(),
            has_failed: false,
            is_fed: false,
            heard: Vec::new(),
            looked: BTreeMap::new(),
        }
    }

    /// The same where values of calls are captured.
    #[must_use]
    pub fn with_values(self, captures: CallMoments) -> Self {
        Self { captures, ..self }
    }

    /// Takes what has been read, and leaves nothing there. It is written when its place is certain: [`Self::settle`].
    pub fn take(&mut self, backlog: &mut Backlog, crew: &dyn Crew) {
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
        self.is_heard = self.live.is_heard();
        if !self.is_ordered() {
            // What waited for others while somebody listened comes before what goes to the store at once.
            self.pass_on(Pass::Round, crew);
        }
        backlog.drain().for_each(|batch| self.append(batch));
        let pass = match self.is_ordered() {
            true => Pass::Certain,
            false => Pass::Round,
        };
        self.pass_on(pass, crew);
    }

    /// Whether what a ring brings has to wait for the others.
    fn is_ordered(&self) -> bool {
        match self.kept.as_ref().map(|kept| &kept.store) {
            Some(Keeper::Events(store)) => self.is_heard || self.stream.is_ordered(&**store),
            Some(Keeper::Records(_) | Keeper::Nothing(_)) | None => true,
        }
    }

    /// Whether nobody wants it: it is not kept, or not any more, and nobody listens.
    pub fn is_idle(&mut self) -> bool {
        let is_kept = |kept: &Kept| !matches!(kept.store, Keeper::Nothing(_));
        !self.kept.as_ref().is_some_and(is_kept) && !self.live.is_heard()
    }

    /// Why not everything of it was written, when nobody wants it any more.
    #[must_use]
    pub fn into_error(self) -> Option<ExportError> {
        match self.kept?.store {
            Keeper::Nothing(why) => Some(why),
            Keeper::Events(_) | Keeper::Records(_) => None,
        }
    }

    /// Passes on so much of what waits.
    fn pass_on(&mut self, pass: Pass, crew: &dyn Crew) {
        let is_heard = self.live.is_heard();
        let store = match self.kept.as_mut().map(|kept| &mut kept.store) {
            Some(Keeper::Records(_)) if !is_heard => {
                if std::mem::take(&mut self.is_fed) {
                    self.stream.forget();
                }
                return;
            }
            Some(Keeper::Events(store)) => Some(&mut **store),
            Some(Keeper::Records(_) | Keeper::Nothing(_)) | None => None,
        };
        match store {
            // Faster: it knows whom it calls.
            Some(store) if !is_heard => store.take(&mut self.stream, pass, crew),
            store => {
                let mut heard = Heard {
                    store,
                    live: &mut self.live,
                    functions: self.image.by_number(),
                    has_returns: self.stream.stack_bytes().is_some(),
                };
                self.stream.pass_on(pass, &mut heard);
            }
        }
    }

    /// Something is known from now on.
    fn learn(&mut self, news: News<'_>) {
        self.live.learn(&news);
        match self.kept.as_mut().map(|kept| &mut kept.store) {
            Some(Keeper::Events(store)) => store.learn(news),
            Some(Keeper::Records(recording)) => recording.learn(&news),
            Some(Keeper::Nothing(_)) | None => {}
        }
    }

    /// Adds what was read.
    pub fn append(&mut self, batch: Batch) {
        let batch = match self.kept.as_mut().map(|kept| &mut kept.store) {
            Some(Keeper::Records(recording)) => {
                let room = self.is_heard.then(|| rows_room(&mut self.stream));
                let Some(batch) = recording.take(batch, room) else {
                    return;
                };
                if !std::mem::replace(&mut self.is_fed, true) {
                    self.stream.resume();
                }
                batch
            }
            Some(Keeper::Events(store)) if !self.is_heard => keep_coded(&mut **store, batch),
            Some(Keeper::Events(_) | Keeper::Nothing(_)) | None => batch,
        };
        let (origin, until_ns) = (batch.origin, batch.until_ns);
        match batch.records {
            Records::Columns(columns) => self.stream.rings().push(origin, columns, until_ns),
            Records::Rows(rows) => self.stream.rings().push(origin, rows, until_ns),
            coded => {
                let room = rows_room(&mut self.stream);
                self.stream
                    .rings()
                    .push(origin, coded.into_rows(room), until_ns);
            }
        }
        if let Some(time_ns) = batch.looked_ns {
            self.stream.rings().looked(origin, time_ns);
            if let Origin::Calls(ring) | Origin::Points(ring) = origin {
                let is_of_calls = matches!(origin, Origin::Calls(_));
                self.looked.insert((ring, is_of_calls), time_ns);
            }
        }
    }

    /// What has been written leaves its room, where that is what the next comes into: what is made into rows here comes
    /// into it here.
    pub(super) fn leave_room(&mut self, to: &Rooms) {
        if let Some(Encoding::Compact(_) | Encoding::DataFile(_)) = self.encodes() {
            return;
        }
        while let Some(room) = self.stream.rings().take_room() {
            to.keep(room);
        }
    }

    /// The guest's threads are to be named, by what is in its memory when they are first seen.
    pub fn name_threads(&mut self, memory: &Arc<dyn SharedMemory>, time: TraceTime) {
        self.names.ask(memory, time);
    }

    fn look_at_threads(&mut self) {
        let fresh = self.take_fresh();
        let mut named = Vec::new();
        let name = |thread, name| named.push((thread, name));
        let deaths = self.names.look(&self.image, fresh, name);
        if let Some(recording) = self.recording() {
            recording.threads(named, deaths);
            return self.name_heard();
        }
        let named = named.into_iter();
        named.for_each(|(thread, name)| self.learn(News::Thread(thread, name)));
        deaths.into_iter().for_each(|death| self.stream.died(death));
    }

    fn recording(&mut self) -> Option<&mut Recording> {
        self.kept.as_mut().and_then(Kept::recording)
    }

    /// Who listens is told the names that are known of the threads of its stream.
    fn name_heard(&mut self) {
        self.heard.extend(self.stream.take_fresh());
        let recording = self.kept.as_mut().and_then(Kept::recording);
        let Some(recording) = recording else { return };
        for (thread, stack) in &self.heard {
            if let Some(name) = recording.name(*stack) {
                self.live.learn(&News::Thread(*thread, name.clone()));
            }
        }
    }

    /// Stacks that were seen for the first time, by whoever tells threads apart.
    fn take_fresh(&mut self) -> Vec<(u32, Gva)> {
        let recorded = self.recording().map(Recording::take_fresh);
        recorded.unwrap_or_else(|| self.stream.take_fresh())
    }

    fn has_fresh(&mut self) -> bool {
        let recorded = self.recording().map(|recording| recording.has_fresh());
        recorded.unwrap_or_else(|| self.stream.has_fresh())
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Arc<Image>) {
        self.image = Arc::clone(image);
        self.stream.extend(&image.functions);
        self.learn(News::Functions(text(image)));
    }

    /// What points and the values of calls are, from now on.
    pub fn know_points(&mut self, formats: &EventFormats) {
        self.stream.rings().expect_points();
        self.learn(News::Points(formats.points()));
        if self.stream.stack_bytes().is_none() || self.captures.is_empty() {
            return;
        }
        let known = formats.calls();
        let wanted = known.filter(|(_, moment, _)| self.captures.has(*moment));
        let wanted: Vec<_> = wanted.collect();
        for (function, moment, _) in &wanted {
            self.stream.expect_values(*function, *moment);
        }
        if let Some(recording) = self.kept.as_mut().and_then(Kept::recording) {
            recording.values(&wanted);
        }
        let described = CallFormats::of(&self.image.functions, wanted.into_iter());
        self.learn(News::Values(described));
    }

    /// What is known of the probes of the session.
    pub fn describe_probes(&mut self, probes: &[ProbeNote]) {
        self.learn(News::Probes(probes));
    }

    /// Writes what is certain of its place by now.
    pub fn settle(&mut self, crew: &dyn Crew) {
        self.end_round(crew);
        if let Some(passed_ns) = self.looked.values().min() {
            self.live.tell_overdue(*passed_ns, self.image.by_number());
        }
        let has_fresh = self.has_fresh();
        if self.names.is_due(has_fresh) {
            self.look_at_threads();
        }
        if self.error().is_some() && !self.has_failed {
            self.miss();
            self.say_failed();
        }
    }

    /// What is certain of its place goes on.
    pub(super) fn end_round(&mut self, crew: &dyn Crew) {
        self.pass_on(Pass::Round, crew);
        if let Some(recording) = self.recording() {
            recording.end_round();
        }
    }

    /// Says once that not everything is written.
    fn say_failed(&mut self) {
        if self.has_failed {
            return;
        }
        match self.error() {
            None => return,
            Some(error @ ExportError::Gone(_)) => log::error!("{error}; the guest goes on"),
            Some(error) => log::error!(
                "{error} so far; the guest goes on, the trace up to there stays readable"
            ),
        }
        self.has_failed = true;
    }

    /// What was written and waits to go to a file goes there, if there still is one: a file that has no name any more takes
    /// everything, and it is gone when it is closed.
    pub fn flush(&mut self) {
        self.miss();
        let Some(kept) = &mut self.kept else { return };
        match &mut kept.store {
            Keeper::Events(store) => store.flush(),
            // It writes what it is given at once.
            Keeper::Records(_) | Keeper::Nothing(_) => {}
        }
    }

    /// Keeps nothing any more where what was kept is gone.
    fn miss(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| kept.is_gone()) {
            kept.store = Keeper::Nothing(ExportError::Gone(kept.directory.clone()));
            self.say_failed();
        }
    }

    /// Where it is kept, if it is.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.kept.as_ref().map(|kept| &*kept.directory)
    }

    /// Why not everything was written.
    #[must_use]
    pub fn error(&self) -> Option<&ExportError> {
        self.kept.as_ref()?.error()
    }

    /// What did not fit in a graph trace so far.
    #[must_use]
    pub fn anomalies(&self) -> Vec<AnomalyNote> {
        let anomalies = self.stream.anomalies();
        anomalies.map_or_else(Vec::new, |anomalies| {
            AnomalyNote::list(&anomalies, &self.image.functions)
        })
    }

    /// Completes the trace, in which times may be wrong; something would have been recorded up to `until_ns`, if that is not 0. Returns where
    /// it is, and what is in it, if it is kept.
    ///
    /// # Errors
    /// The first [`ExportError`] since it was made.
    pub fn finish(
        mut self,
        doubts: &TimeDoubts,
        until_ns: u64,
    ) -> Result<Option<Written>, ExportError> {
        self.stream.lasts_until(until_ns);
        self.pass_on(Pass::All, &Alone);
        // Whose records have all come: nothing more is told of its end.
        if self.stream.stack_bytes().is_some() {
            self.look_at_threads();
        }
        let anomalies = self.anomalies();
        let Some(kept) = self.kept else {
            return Ok(None);
        };
        let is_gone = kept.is_gone();
        let Kept {
            store, directory, ..
        } = kept;
        if is_gone {
            return Err(ExportError::Gone(directory));
        }
        let doubts = doubts.notes();
        let holds = match store {
            Keeper::Nothing(why) => return Err(why),
            Keeper::Records(mut recording) => Holds::Records(recording.finish(&doubts, until_ns)?),
            Keeper::Events(mut store) => Holds::Events(store.finish(Ending {
                doubts,
                anomalies,
                strays: self.stream.rings().strays(),
                is_cut: false,
                until_ns,
            })?),
        };
        Ok(Some(Written { directory, holds }))
    }
}

/// Has calls that were put into bytes for this store kept there. What is left goes through the stream.
fn keep_coded(store: &mut dyn Store, batch: Batch) -> Batch {
    match (batch.records, batch.origin) {
        (Records::DataFile(calls), Origin::Calls(vcpu)) => {
            store.coded(vcpu, calls);
            let records = Records::Rows(Vec::new());
            Batch { records, ..batch }
        }
        (records, _) => Batch { records, ..batch },
    }
}

/// Room for rows: that of what has been passed on, if there is some.
fn rows_room(stream: &mut Stream) -> Vec<Record> {
    stream
        .rings()
        .take_room()
        .map_or_else(Vec::new, Part::into_rows)
}

/// What a directory is told of the text of this image.
fn text(image: &Image) -> Text<'_> {
    Text {
        functions: &image.functions,
        limit: guest_kind::of(image).text_limit(),
    }
}
