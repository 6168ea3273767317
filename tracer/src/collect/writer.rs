//! Who writes what was read, with a lock of its own: a disk that takes nothing holds up what comes after on that disk,
//! and nothing else. What it tells of itself is copied to where it can be asked for at any time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::backlog::Backlog;
use super::drain::Drain;
use super::looks::lock;
use super::output::{Output, Written};
use super::ring_clock::TraceTime;
use super::rooms::Rooms;
use crate::guest::SharedMemory;
use trace::crew::Crew;
use trace::doubt::TimeDoubts;
use trace::export::budget::Steps;
use trace::export::uftrace::{AnomalyNote, ExportError};

/// So long what was taken may wait for its file: whoever is killed loses that, and who reads a trace that is being written does not
/// see it yet.
const FLUSH_PERIOD: Duration = Duration::from_secs(1);

/// What is known of an output, as of the last write.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Why not everything was written.
    pub error: Option<String>,
    /// What did not fit in a graph trace so far.
    pub anomalies: Vec<AnomalyNote>,
    /// Where it is, if it is kept.
    pub(super) directory: Option<PathBuf>,
    /// Since when something is being written.
    pub(super) busy_since: Option<Duration>,
    /// The steps that are made meanwhile.
    pub(super) steps: Steps,
}

impl Told {
    /// How long what is being written takes until `now`.
    #[must_use]
    pub fn busy_for(&self, now: Duration) -> Duration {
        let since = self.busy_since;
        since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// What is being written, and how far it is: if it moves at all, this is another one at the next look.
    pub(super) fn busy(&self) -> Option<(Duration, u64)> {
        self.busy_since.map(|since| (since, self.steps.count()))
    }
}

/// An output, and what it has not taken yet.
#[derive(Debug)]
pub(super) struct Writer {
    output: Option<Output>,
    /// Why the one before is not complete.
    error: Option<ExportError>,
    backlog: Backlog,
    rooms: Rooms,
    time: TraceTime,
    flushed: Duration,
    memory: Arc<dyn SharedMemory>,
}

impl Writer {
    /// Of what `drain` reads.
    pub fn new(output: Option<Output>, drain: &Drain) -> Self {
        let time = drain.time().clone();
        let mut writer = Self {
            output: None,
            error: None,
            backlog: Backlog::default(),
            rooms: drain.calls().rooms.clone(),
            flushed: (time.rings.host().now)(),
            time,
            memory: Arc::clone(drain.rings().memory()),
        };
        if let Some(output) = output {
            writer.begin(output);
        }
        writer
    }

    fn now(&self) -> Duration {
        (self.time.rings.host().now)()
    }

    /// What was read goes there from now on.
    pub fn begin(&mut self, mut output: Output) {
        output.name_threads(&self.memory, self.time.clone());
        self.output = Some(output);
    }

    /// Whether nobody wants what is read any more.
    pub fn is_idle(&mut self) -> bool {
        self.output.as_mut().is_some_and(Output::is_idle)
    }

    /// What was read goes nowhere from now on.
    pub fn end(&mut self) {
        let error = self.output.take().and_then(Output::into_error);
        self.error = self.error.take().or(error);
    }

    /// Where what was read goes before it is written.
    pub const fn backlog(&mut self) -> &mut Backlog {
        &mut self.backlog
    }

    /// Writes it; at the end of a round (`is_over`) also the calls whose place is certain by then. This crew
    /// works on it. Once a second all of that goes to the files.
    pub fn write(&mut self, told: &Mutex<Told>, is_over: bool, crew: &dyn Crew) {
        let now = self.now();
        let Some(output) = &mut self.output else {
            self.backlog = Backlog::default();
            return;
        };
        begins(output, told, now);
        output.take(&mut self.backlog, crew);
        if is_over {
            output.settle(crew);
            if now.saturating_sub(self.flushed) >= FLUSH_PERIOD {
                output.flush();
                self.flushed = now;
            }
        }
        output.leave_room(&self.rooms);
        let (error, anomalies) = (output.error().map(ToString::to_string), output.anomalies());
        let mut told = lock(told);
        (told.error, told.anomalies) = (error, anomalies);
        told.busy_since = None;
    }

    /// Completes the trace, if there is one: in which times may be wrong, and up to when something would have been recorded.
    pub fn finish(
        &mut self,
        told: &Mutex<Told>,
        (doubts, until_ns): (&TimeDoubts, u64),
    ) -> Result<Option<Written>, ExportError> {
        let finished = match self.output.take() {
            Some(output) => {
                begins(&output, told, self.now());
                let finished = output.finish(doubts, until_ns);
                lock(told).busy_since = None;
                finished
            }
            None => Ok(None),
        };
        match self.error.take() {
            Some(error) => Err(error),
            None => finished,
        }
    }
}

/// Something is about to be written.
fn begins(output: &Output, told: &Mutex<Told>, now: Duration) {
    let mut told = lock(told);
    told.busy_since = Some(now);
    told.directory = output.directory().map(Path::to_owned);
    told.steps = output.steps();
}
