//! One run of a guest: the machine, its tracing, and how it is to end. Everything that events and
//! control requests do is done here, on the main thread.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;
use tracer::target::StoppedTarget;

use crate::black_box::scratch;
use crate::closing::ClosingLine;
use crate::control::events::EventChange;
use crate::control::probes::{ProbeCall, SomeProbes};
use crate::control::protocol::{
    self, Call, CreateSession, FilterChange, Response, RpcError, Start,
};
use crate::control::status::{GuestStatus, Pauses, Spread, Status, VcpuStatus};
use crate::exit_status::ExitStatus;
use crate::explain::explain;
use crate::failure::Failure;
use crate::host::clock_page::check_cpu;
use crate::layout;
use crate::machine::{Machine, PATIENCE};
use crate::panic_watch::{self, PanicWatch};
use crate::vcpu::{VcpuEvent, VcpuEventKind, VcpuState};
use tracer::tracing::filters::{FilterEdit, Globs};
use tracer::tracing::probes;
use tracer::tracing::status::{Changed, Deleted, EventsChanged, ProbesChanged, Switched};
use tracer::tracing::{Finished, Tracing, TracingError, WINDOW_PERIOD};

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// The guest wrote this status to its exit port.
    GuestExit(u8),
    /// The guest reset itself.
    Reset,
    /// The guest has switched the machine off.
    PowerOff,
    /// The guest could not go on.
    Crashed(String),
    /// The guest's kernel said that it cannot go on, on this vCPU.
    Panicked(u16),
    /// The time limit passed.
    TimedOut {
        /// What was given.
        limit: Duration,
        /// What the vCPUs executed then, as text.
        places: Option<String>,
    },
    /// A signal told us to stop.
    Interrupted,
    /// A control client told us to stop.
    Shutdown,
    /// The run could not go on.
    Failed(Failure),
}

impl Outcome {
    /// Whether the guest died, so that its last calls may tell why.
    #[must_use]
    pub const fn is_death(&self) -> bool {
        matches!(
            self,
            Self::Crashed(_) | Self::Panicked(_) | Self::TimedOut { .. }
        )
    }
}

/// A guest that runs.
#[derive(Debug)]
pub struct Run {
    machine: Machine,
    tracing: Tracing,
    kernel: String,
    started: Instant,
    outcome: Option<Outcome>,
    panic: Option<PanicWatch>,
}

impl Run {
    /// A run of a machine that has just been started.
    #[must_use]
    pub fn new(machine: Machine, tracing: Tracing, kernel: String) -> Self {
        Self {
            panic: PanicWatch::of(&machine, tracing.image()),
            machine,
            tracing,
            kernel,
            started: Instant::now(),
            outcome: None,
        }
    }

    /// The machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The run is to end. The first reason counts: what follows is its consequence. A guest that resets
    /// itself, or does nothing more, because it panicked, has panicked.
    pub fn end(&mut self, outcome: Outcome) {
        let is_consequence = matches!(
            outcome,
            Outcome::Reset | Outcome::PowerOff | Outcome::TimedOut { .. } | Outcome::Crashed(_)
        );
        if is_consequence {
            self.look_for_panic();
        }
        let panicked = self.panic.as_ref().and_then(PanicWatch::vcpu);
        let outcome = match panicked {
            Some(vcpu) if is_consequence => Outcome::Panicked(vcpu),
            _ => outcome,
        };
        self.outcome.get_or_insert(outcome);
    }

    /// The time limit has passed.
    pub fn time_out(&mut self, limit: Duration) {
        let places = self.tracing.places(&self.machine);
        self.end(Outcome::TimedOut { limit, places });
    }

    /// Whether the guest's kernel says somewhere that it panics.
    #[must_use]
    pub fn can_see_panic(&self) -> bool {
        self.panic.is_some()
    }

    /// Looks whether it does. Then nothing more is recorded, so that the rings keep what came before, and the
    /// guest has some time to print and to reset itself.
    pub fn look_for_panic(&mut self) {
        let Some(watch) = &mut self.panic else { return };
        if let Some(vcpu) = watch.look(self.machine.memory()) {
            let is_ours = self.machine.quiesce(PATIENCE).map(|quiesced| {
                let vcpus = StoppedTarget::vcpus(&quiesced);
                watch.is_of(vcpus, self.machine.memory())
            });
            if is_ours.is_ok_and(|is_ours| !is_ours) {
                log::warn!("another kernel runs in the guest now: whether it panics is not seen");
                self.panic = None;
                return;
            }
            log::warn!("the guest's kernel panics on vCPU {vcpu}");
            self.tracing.stop_recording();
        }
        if let Some(vcpu) = watch.vcpu().filter(|_| watch.is_over()) {
            self.outcome.get_or_insert(Outcome::Panicked(vcpu));
        }
    }

    /// How the run is to end, once it is.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// Sees to one thing that vCPU threads have reported; the bell rings on when there may be more. A guest that has
    /// all its vCPUs ring the doorbell all the time has as much of this thread as the control socket has, and no more.
    pub fn vcpu_event(&mut self) {
        if let Some(event) = self.machine.events().next() {
            self.see_to(event);
        }
    }

    fn see_to(&mut self, event: VcpuEvent) {
        match event.kind {
            VcpuEventKind::GuestExit(status) => self.end(Outcome::GuestExit(status)),
            VcpuEventKind::Reset => self.end(Outcome::Reset),
            VcpuEventKind::PowerOff => self.end(Outcome::PowerOff),
            VcpuEventKind::Crashed(details) => {
                self.end(Outcome::Crashed(format!("vCPU {}: {details}", event.vcpu)));
            }
            VcpuEventKind::Panicked => {
                let message = format!("the thread of vCPU {} panicked", event.vcpu);
                self.end(Outcome::Failed(Failure::new(ExitStatus::Bug, message)));
            }
            VcpuEventKind::Breakpoint(_) => self.breakpoint(),
            VcpuEventKind::Announcement => {
                self.tracing.announcement(&self.machine, event.vcpu);
                self.machine.acknowledge(event.vcpu);
            }
        }
    }

    /// The attach point was reached. Other vCPUs may have reached it as well: the first one counts.
    fn breakpoint(&mut self) {
        if self.machine.breakpoint().is_some() {
            // In this order: on some hosts the breakpoint stands in the text. The vCPU stays there.
            let disarmed = self.machine.set_breakpoint(None);
            let attached = disarmed
                .map_err(Failure::tracing)
                .and_then(|()| Ok(self.tracing.at_breakpoint(&self.machine)?));
            if let Err(failure) = attached {
                self.end(Outcome::Failed(failure));
            }
        }
        self.machine.leave_breakpoint();
    }

    /// Finishes the trace and ends the vCPUs. Returns how tracing has ended, and of a guest that died where its last
    /// calls are.
    ///
    /// # Errors
    /// When the trace could not be finished.
    pub fn finish(&mut self, is_dead: bool) -> Result<Finished, Failure> {
        if let Some(at) = self.machine.breakpoint() {
            let place = self.tracing.place(at);
            log::warn!(
                "the guest did not get to the attach point {place}: tracing did not begin there"
            );
            if let Err(why) = self.tracing.check_place(&self.machine) {
                log::warn!("{}", explain(&why));
            }
        }
        let finished = self
            .tracing
            .finish(&self.machine, is_dead.then_some(&scratch));
        let late = self.machine.stop(PATIENCE);
        if !late.is_empty() {
            log::error!("vCPU threads {late:?} did not end within {PATIENCE:?}");
        }
        Ok(finished?)
    }

    /// Whether functions of the guest can come and go.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        self.tracing.has_modules()
    }

    /// Looks which functions of the guest have come and gone, unless it panics.
    pub fn look_for_modules(&mut self) {
        if self.panic.as_ref().and_then(PanicWatch::vcpu).is_none() {
            self.tracing.look(&self.machine);
        }
    }

    /// Looks whether the window is still where it was put, unless the guest panics.
    pub fn look_at_window(&mut self) {
        if self.panic.as_ref().and_then(PanicWatch::vcpu).is_none() {
            self.tracing.look_at_window(&self.machine);
        }
    }

    /// How often to look at the guest.
    #[must_use]
    pub fn watch_period(&self) -> Duration {
        match self.can_see_panic() || self.has_modules() {
            true => panic_watch::PERIOD,
            false => WINDOW_PERIOD,
        }
    }

    /// Answers one request line; `None` for a notification.
    pub fn answer(&mut self, line: &[u8]) -> Option<String> {
        let parsed = protocol::parse(line);
        let outcome = parsed.call.and_then(|call| self.perform(call));
        parsed.id.map(|id| Response::new(id, outcome).line())
    }

    fn perform(&mut self, call: Call) -> Result<Value, RpcError> {
        self.look_for_modules();
        let machine = &self.machine;
        match call {
            Call::Status => to_value(self.status()),
            Call::Functions(query) => to_value(self.tracing.functions(query.glob.as_deref())?),
            Call::Start(start) => to_value(self.start(start)?),
            Call::Stop(of) => to_value(self.tracing.stop(machine, &of.session.0)?),
            Call::CreateSession(create) => self.create(&create),
            Call::DeleteSession(of) => to_value(self.delete(&of.session.0)?),
            Call::ListSessions => to_value(self.tracing.list()),
            Call::Profile(of) => to_value(self.tracing.profile(&of.session.0)?),
            Call::SwitchLocks(switch) => {
                to_value(self.tracing.switch_locks(machine, switch.state)?)
            }
            Call::Thaw => to_value(self.tracing.thaw()),
            Call::FilterAdd(change) => {
                let (session, globs) = session_and_globs(change);
                to_value(
                    self.tracing
                        .change_filter(machine, &session, FilterEdit::Add, &globs)?,
                )
            }
            Call::FilterRemove(change) => {
                let (session, globs) = session_and_globs(change);
                to_value(self.tracing.change_filter(
                    machine,
                    &session,
                    FilterEdit::Remove,
                    &globs,
                )?)
            }
            Call::FilterSet(change) => {
                let (session, globs) = session_and_globs(change);
                to_value(
                    self.tracing
                        .change_filter(machine, &session, FilterEdit::Set, &globs)?,
                )
            }
            Call::FilterClear(of) => {
                let none = Globs::default();
                to_value(self.tracing.change_filter(
                    machine,
                    &of.session.0,
                    FilterEdit::Set,
                    &none,
                )?)
            }
            Call::TracingOn(of) => to_value(self.tracing.switch(&of.session.0, true)?),
            Call::TracingOff(of) => to_value(self.tracing.switch(&of.session.0, false)?),
            Call::Dump(dump) => {
                let directory = dump.dir.as_ref();
                let (session, is_live) = (&dump.session.0, dump.live);
                to_value(self.tracing.dump(machine, session, directory, is_live)?)
            }
            Call::Digest => to_value(self.tracing.digest(machine)?),
            Call::ListEvents => to_value(self.tracing.events()),
            Call::EnableEvents(change) => to_value(self.change_events(&change, true)?),
            Call::DisableEvents(change) => to_value(self.change_events(&change, false)?),
            Call::Probe(ProbeCall::List) => to_value(self.tracing.probes(machine)),
            Call::Probe(call) => to_value(self.change_probes(call)?),
            Call::ListDynamic => to_value(self.tracing.dynamic_functions(machine)?),
            Call::SetDynamic(set) => to_value(self.tracing.set_dynamic(machine, &set.changes)?),
            Call::ResetDynamic(reset) => {
                to_value(self.tracing.reset_dynamic(machine, &reset.names)?)
            }
            Call::Pause => {
                let changed = machine.pause(PATIENCE).map_err(RpcError::failed)?;
                to_value(Switched { changed })
            }
            Call::Resume => to_value(Switched {
                changed: machine.resume(),
            }),
            Call::Shutdown => {
                self.end(Outcome::Shutdown);
                to_value(Switched { changed: true })
            }
        }
    }

    fn start(&mut self, start: Start) -> Result<Changed, TracingError> {
        let globs = Globs {
            filter: start.filter,
            notrace: start.notrace,
        };
        self.tracing
            .start(&self.machine, &start.session.0, start.tracer, &globs)
    }

    fn create(&mut self, create: &CreateSession) -> Result<Value, RpcError> {
        let CreateSession {
            name,
            tracer,
            options,
        } = create;
        if let Some(cpu) = options.clock_cpu {
            check_cpu(cpu).map_err(RpcError::failed)?;
        }
        let sessions = self.tracing.create(name, *tracer, options.to_session());
        to_value(sessions?)
    }

    fn delete(&mut self, session: &str) -> Result<Deleted, TracingError> {
        let (deleted, closing) = self.tracing.delete(&self.machine, session)?;
        if let Some(closing) = closing {
            log::info!("{}", ClosingLine(&closing));
        }
        Ok(deleted)
    }

    fn change_events(
        &mut self,
        change: &EventChange,
        on: bool,
    ) -> Result<EventsChanged, TracingError> {
        let EventChange {
            session,
            events,
            callbacks,
        } = change;
        self.tracing
            .change_events(&self.machine, &session.0, events, callbacks, on)
    }

    fn change_probes(&mut self, call: ProbeCall) -> Result<ProbesChanged, TracingError> {
        let (tracing, machine) = (&mut self.tracing, &self.machine);
        match call {
            ProbeCall::List => Ok(ProbesChanged::default()),
            ProbeCall::Add(add) => {
                tracing.add_probes(machine, &add.session.0, &add.probes, add.tactic)
            }
            ProbeCall::Remove(some) => tracing.remove_probes(machine, &some_probes(some)),
            ProbeCall::Enable(some) => tracing.enable_probes(machine, &some_probes(some), true),
            ProbeCall::Disable(some) => tracing.enable_probes(machine, &some_probes(some), false),
        }
    }

    fn status(&mut self) -> Status {
        let states = self.machine.vcpu_states();
        let guest = GuestStatus {
            state: guest_state(&states, self.machine.is_paused_by_user()).to_owned(),
            kernel: self.kernel.clone(),
            memory_mib: self.machine.memory().ram_bytes() / layout::MIB,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let vcpus = (0..).zip(&states).map(|(vcpu, state)| VcpuStatus {
            vcpu,
            state: vcpu_state(*state).to_owned(),
        });
        let pauses = self.machine.with_pause_times(|times| Pauses {
            parked: spread(&times.parked),
            released: spread(&times.released),
        });
        Status {
            guest,
            vcpus: vcpus.collect(),
            tracing: self.tracing.status(),
            pauses,
        }
    }
}

fn to_value(result: impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(result).map_err(RpcError::failed)
}

fn session_and_globs(change: FilterChange) -> (String, Globs) {
    let globs = Globs {
        filter: change.filter,
        notrace: change.notrace,
    };
    (change.session.0, globs)
}

fn some_probes(some: SomeProbes) -> probes::SomeProbes {
    probes::SomeProbes {
        ids: some.ids,
        all_of: some.all_of.map(|session| session.0),
    }
}

fn guest_state(vcpus: &[VcpuState], paused_by_user: bool) -> &'static str {
    let any = |wanted| vcpus.contains(&wanted);
    if any(VcpuState::Exited) || any(VcpuState::Stopped) {
        "ended"
    } else if paused_by_user {
        "paused"
    } else if any(VcpuState::Trapped) {
        "trapped"
    } else {
        "running"
    }
}

fn vcpu_state(state: VcpuState) -> &'static str {
    match state {
        VcpuState::Running => "running",
        VcpuState::Parked | VcpuState::Announcing => "paused",
        VcpuState::Trapped => "trapped",
        VcpuState::Exited | VcpuState::Stopped => "ended",
    }
}

/// Nanoseconds as microseconds with the precision that the histogram has.
fn spread(times: &Histogram<u64>) -> Spread {
    #[expect(
        clippy::cast_precision_loss,
        reason = "pauses have far fewer than 53 bits of ns"
    )]
    let microseconds = |ns: u64| ns as f64 / 1000.0;
    Spread {
        count: times.len(),
        p50_us: microseconds(times.value_at_quantile(0.5)),
        p99_us: microseconds(times.value_at_quantile(0.99)),
        max_us: microseconds(times.max()),
    }
}
