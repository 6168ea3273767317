//! One run of a guest: the machine, its tracing, and how it is to end. Everything that events and control requests do is
//! done to it, on the main thread.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tracer::target::StoppedTarget;

use crate::black_box::scratch;
use crate::control::method::Served;
use crate::control::protocol::RpcError;
use crate::control::status::{GuestStatus, Pauses, Spread, Status, VcpuStatus};
use crate::exit_status::ExitStatus;
use crate::explain::explain;
use crate::failure::Failure;
use crate::layout;
use crate::machine::{Machine, PATIENCE};
use crate::panic_watch::{self, PanicWatch};
use crate::vcpu::{VcpuEvent, VcpuEventKind, VcpuState};
use tracer::tracing::{Finished, Tracing, WINDOW_PERIOD};

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// The guest wrote this status to its exit port.
    GuestExit(u8),
    /// The guest reset itself.
    Reset,
    /// The guest has switched the machine off.
    PowerOff,
    /// The guest could not continue.
    Crashed(String),
    /// The guest's kernel said that it cannot continue, on this vCPU.
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
    /// The run could not continue.
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
}

impl Served for Run {
    type Guest = Machine;

    fn look(&mut self) {
        self.look_for_modules();
    }

    fn tracing(&mut self) -> (&mut Tracing, &Machine) {
        (&mut self.tracing, &self.machine)
    }

    fn pause(&mut self) -> Result<bool, RpcError> {
        self.machine.pause(PATIENCE).map_err(RpcError::failed)
    }

    fn resume(&mut self) -> bool {
        self.machine.resume()
    }

    fn shut_down(&mut self) {
        self.end(Outcome::Shutdown);
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
