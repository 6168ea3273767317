//! What a session tells of itself: in its trace, when it is asked, and at its end.

use std::path::Path;
use std::time::Duration;

use image::Image;
use terms::function::FunctionId;

use super::{Found, LastCalls, Live, Reader, Scratch, Shared, TraceSession};
use crate::clock::RunClock;
use crate::collect::counters::Counters;
use crate::collect::drain::Drain;
use crate::collect::output::{Holds, Written};
use crate::filter::{Filter, Side};
use crate::guest::{Paused, Pauses};
use crate::guest_kind;
use crate::ring::reader::Mode;
use crate::session::TracerKind;
use crate::tracing::closing::Closing;
use crate::tracing::options::Tracer;
use crate::tracing::{TracingError, WantedDump};
use status::{OnlyStatus, Profile, ProfiledFunction, SessionStatus, TaskStatus};
use trace::export::uftrace::{Fired, InitCallList, Metadata, NO_CLOCK, NOP, Pause};

/// Triggers that have fired of which a trace tells.
const FIRED_MAX: usize = 4096;
/// A write that takes longer is told of.
const STALL: Duration = Duration::from_secs(1);

impl TraceSession {
    /// How it ended.
    pub(super) fn closing(&self, written: Option<Written>, drain: &Drain) -> Option<Closing> {
        let (records, held) = (drain.records(), lost_while_held(self, drain));
        let is_news = records > 0 && !self.has_told.get();
        match written {
            Some(Written { directory, holds }) => Some(match holds {
                Holds::Events(tally) => Closing::Written {
                    directory,
                    tally,
                    held,
                },
                Holds::Records(kept) => Closing::Recorded {
                    directory,
                    kept,
                    held,
                },
            }),
            None => is_news.then(|| Closing::Unkept {
                session: self.name.clone(),
                records,
            }),
        }
    }

    /// What it has counted, if nobody has asked for it.
    pub fn unasked(
        &self,
        image: &Image,
        clock: Option<RunClock>,
        knows_vcpus: bool,
    ) -> Option<Closing> {
        let is_counter = |live: &&Live| matches!(live.reader, Reader::Counters(_));
        self.live.as_ref().filter(is_counter)?;
        let is_news = !self.has_told.get();
        let profile = self.profile(image, clock, knows_vcpus).ok()?;
        let has_hits = !profile.functions.is_empty();
        (is_news && has_hits).then_some(Closing::Unasked(profile))
    }

    /// Where its last calls are, or will be once it is closed: in its output, or in a directory that is
    /// made for them at `scratch`. None when it has recorded nothing, or that cannot be read.
    pub fn last_calls(
        &self,
        scratch: &Scratch,
        shared: &Shared,
        found: Found,
    ) -> Option<LastCalls> {
        let Reader::Rings(_) = self.live.as_ref()?.reader else {
            return None;
        };
        let (session, room) = (self.name.clone(), scratch(&self.name));
        if let Some(output) = &self.options.output {
            return Some(LastCalls {
                session,
                directory: output.clone(),
                is_scratch: false,
                room,
            });
        }
        let directory = room.clone();
        // Nothing runs any more that could write.
        let wanted = WantedDump::whole(&directory, true);
        match self.dump(&wanted, shared, found, || 0) {
            Ok(_) => Some(LastCalls {
                session,
                directory,
                is_scratch: true,
                room,
            }),
            Err(error) => {
                log::warn!(
                    "the last calls of session '{}' are lost: {error}",
                    self.name
                );
                None
            }
        }
    }

    /// What a profile session has counted so far. `knows_vcpus` when self times are known.
    ///
    /// # Errors
    /// [`TracingError::NoProfile`] for another session, [`TracingError::NotStarted`].
    pub fn profile(
        &self,
        image: &Image,
        clock: Option<RunClock>,
        knows_vcpus: bool,
    ) -> Result<Profile, TracingError> {
        let counters = match self.live.as_ref().map(|live| &live.reader) {
            Some(Reader::Counters(counters)) => counters,
            None if self.tracer == Tracer::Profile => return Err(self.not_started()),
            _ => {
                let is = TracerKind::from(self.tracer).name();
                let session = self.name.clone();
                return Err(TracingError::NoProfile { session, is });
            }
        };
        let ns = |ticks| clock.map_or(0, |clock| clock.duration_ns(ticks));
        let counted = (0u32..)
            .zip(&image.functions)
            .filter_map(|(number, function)| {
                let counted = counters.of(FunctionId(number));
                (counted != Counters::default()).then(|| ProfiledFunction {
                    address: function.address.to_string(),
                    name: function.display.to_string(),
                    hits: counted.hits,
                    total_ns: ns(counted.total),
                    self_ns: knows_vcpus.then(|| ns(counted.own)),
                    clamped: counted.clamped,
                })
            });
        self.has_told.set(true);
        Ok(Profile {
            session: self.name.clone(),
            clock_period_ns: self.beat().map(|beat| beat.period_ns),
            functions: counted.collect(),
        })
    }

    /// Bytes of a stack of the guest, by which its threads are told apart.
    pub(super) fn stack_bytes(&self, image: &Image) -> u64 {
        let usual = || guest_kind::of(image).stack_bytes(image);
        self.options.stack_bytes.unwrap_or_else(usual)
    }

    /// It traces by this filter from now on; its trace says so.
    pub fn set_filter(&mut self, filter: Filter, shared: &Shared, found: Found) {
        self.filter = filter;
        self.describe(shared, found);
    }

    pub(super) fn tracer_name(&self) -> &'static str {
        match self.tracer {
            Tracer::Nop => NOP,
            other => TracerKind::from(other).name(),
        }
    }

    /// What a trace says of itself.
    pub(super) fn metadata(&self, shared: &Shared, found: Found) -> Metadata {
        let tasks = TaskStatus::from(&self.tasks);
        Metadata {
            command_line: shared.command_line.clone(),
            image: shared.kernel.clone(),
            vcpus: shared.vcpus,
            mode: self.options.mode.name().to_owned(),
            wait_time: match self.options.mode {
                Mode::Lossless => self.options.wait_time.name().to_owned(),
                Mode::Overwrite | Mode::Discard => String::new(),
            },
            clock: self.options.clock.name().to_owned(),
            clock_period_ns: self.beat().map(|beat| beat.period_ns),
            tsc_khz: found.clock.map_or(0, |clock| clock.khz()).into(),
            tracer: self.tracer_name().to_owned(),
            callers: self.options.callers,
            stack_bytes: self.stack_bytes(&shared.image),
            ring_strategy: found.strategy.unwrap_or("unknown").to_owned(),
            filter: globs(&self.filter, Side::Include),
            notrace: globs(&self.filter, Side::Notrace),
            only_vcpus: self.only.numbers().to_vec(),
            only_tasks: tasks.only,
            not_tasks: tasks.not,
            follow_forks: tasks.follow_forks,
            init_calls: InitCallList::new(&shared.image.functions, &shared.image.init_calls),
            late_modules: self.late.clone(),
            waiting_modules: self.waiting_modules,
            pauses: self.pauses,
            paused: self.paused.clone(),
            fired: self.fired.clone(),
        }
    }

    /// So the guest stood still until now. In a trace without times nothing can be said of when.
    pub fn stood_still(&mut self, pauses: &Pauses, clock: Option<RunClock>) {
        self.pauses = pauses.released;
        let has_times = self.options.clock.name() != NO_CLOCK;
        let Some(clock) = clock.filter(|_| has_times) else {
            return;
        };
        let pause = |paused: &Paused| Pause {
            begin_ns: clock.nanoseconds(paused.counter),
            length_ns: u64::try_from(paused.length.as_nanos()).unwrap_or(u64::MAX),
        };
        self.paused = pauses.each.iter().map(pause).collect();
    }

    /// A trigger has fired because of something that it has recorded.
    pub fn has_fired(&mut self, fired: Fired) {
        fired.add_to(&mut self.fired, FIRED_MAX);
    }

    /// Its trace says of itself what is known now.
    pub fn describe(&self, shared: &Shared, found: Found) {
        if let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader) {
            drain.lock().describe(self.metadata(shared, found));
        }
    }

    /// Part of `status`, and a line of `session list`. `traced` functions lead to it.
    pub fn status(&self, traced: u64) -> SessionStatus {
        let state = match (self.started, self.switched_on) {
            (true, true) => "tracing",
            (true, false) => "switched-off",
            (false, _) if self.waiting => "waiting",
            (false, _) => "off",
        };
        let mut status = SessionStatus {
            name: self.name.clone(),
            tracer: self.tracer_name().to_owned(),
            state: state.to_owned(),
            traced,
            filter: globs(&self.filter, Side::Include),
            notrace: globs(&self.filter, Side::Notrace),
            only_vcpus: (!self.only.is_all()).then(|| OnlyStatus {
                vcpus: self.only.numbers().to_vec(),
                by: "stub".to_owned(),
            }),
            tasks: (!self.tasks.is_all()).then(|| TaskStatus::from(&self.tasks)),
            mode: self.options.mode.name().to_owned(),
            clock: self.options.clock.name().to_owned(),
            clock_period_ns: self.beat().map(|beat| beat.period_ns),
            ring_bytes: match self.tracer {
                Tracer::Profile => 0,
                Tracer::Function | Tracer::Nop | Tracer::Graph => self.geometry.bytes(),
            },
            output: self.options.output.as_deref().map(show_path),
            late_modules: self.late.clone(),
            waiting_modules: self.waiting_modules,
            ..SessionStatus::default()
        };
        if let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader) {
            let mut reader = drain.lock();
            reader.look();
            status.rings = reader.status();
            status.event_rings = reader.event_status();
            status.doubts = reader.doubts().notes();
            let now = (reader.time().rings.host().now)();
            drop(reader);
            status.waits = drain.wait_status();
            let told = drain.told();
            let busy = told.busy_for(now);
            status.output_stalled_ms = (busy >= STALL).then(|| whole_ms(busy));
            status.output_error = told.error;
            status.anomalies = told.anomalies;
        }
        status
    }
}

/// Records that were lost because dumps had the rings keep what they held: not for want of room.
fn lost_while_held(session: &TraceSession, drain: &Drain) -> u64 {
    match session.options.mode {
        // Rings that are written over refuse nothing else.
        Mode::Overwrite => {
            let rings = [drain.status(), drain.event_status()];
            let refused = rings.iter().flatten().map(|ring| ring.discarded);
            refused.fold(0, u64::saturating_add)
        }
        // Full rings refuse, too.
        Mode::Discard => session.missed.get(),
        Mode::Lossless => 0,
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn show_path(path: &Path) -> String {
    path.display().to_string()
}

fn globs(filter: &Filter, side: Side) -> Vec<String> {
    filter.globs(side).map(str::to_owned).collect()
}
