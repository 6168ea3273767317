//! One run of a guest: where it comes from, its tracing, and how it is to end. Everything that events and control requests do is
//! done to it, on the main thread.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tracer::target::StoppedTarget;
use tracer::tracing::{Finished, Tracing, WINDOW_PERIOD};

use crate::bell::Bell;
use crate::black_box::{Scratch, scratch};
use crate::control::errors::ErrorLog;
use crate::control::method::Served;
use crate::control::outputs::Outputs;
use crate::control::protocol::RpcError;
use crate::control::status::{GuestStatus, MemoryStatus, Pauses, Status};
use crate::control::subscription::Subscriptions;
use crate::failure::Failure;
use crate::layout;
use crate::memory::resident_bytes;
use crate::options::trigger::Trigger;
use crate::outcome::Outcome;
use crate::panic_watch::{self, PanicWatch};
use crate::provider::Provider;
use crate::triggers::Triggers;

/// A guest that runs.
#[derive(Debug)]
pub struct Run<P> {
    guest: P,
    tracing: Tracing,
    kernel: String,
    started: Instant,
    outcome: Option<Outcome>,
    panic: Option<PanicWatch>,
    subscriptions: Subscriptions,
    triggers: Triggers,
    errors: ErrorLog,
    places: Places,
}

/// Where a run writes what nobody has named when it began.
#[derive(Debug)]
pub struct Places {
    /// What clients name.
    pub outputs: Outputs,
    /// The last calls of sessions that have no output.
    pub scratch: PathBuf,
}

impl<P: Provider> Run<P> {
    /// A run of a guest that has just been started, or found.
    #[must_use]
    pub fn new(
        guest: P,
        tracing: Tracing,
        kernel: String,
        triggers: Triggers,
        places: Places,
    ) -> Self {
        Self {
            panic: PanicWatch::of(&guest, tracing.image()),
            guest,
            tracing,
            kernel,
            started: Instant::now(),
            outcome: None,
            subscriptions: Subscriptions::new(triggers.bell().clone()),
            triggers,
            places,
            errors: ErrorLog::default(),
        }
    }

    /// What rings when who listens, or waits, has been told something.
    #[must_use]
    pub const fn news(&self) -> &Bell {
        self.triggers.bell()
    }

    /// Does what triggers are for.
    pub fn see_to_triggers(&mut self) {
        self.triggers.see_to(&self.guest, &mut self.tracing);
    }

    /// Looks whether the guest has ended recording, and nobody has read why.
    pub fn look_at_triggers(&mut self) {
        self.triggers.look(&self.guest, &mut self.tracing);
    }

    /// The guest.
    #[must_use]
    pub fn guest(&self) -> &P {
        &self.guest
    }

    /// Begins to trace a guest that was found running.
    ///
    /// # Errors
    /// Why tracing cannot begin; then the guest is let go.
    pub fn begin(&mut self) -> Result<(), Failure> {
        let begun = self.tracing.reached(&self.guest).map(drop);
        if begun.is_err() {
            // Why it did not begin is worth more; but what stays in the guest has to be said, too.
            if let Err(error) = self.finish(false) {
                log::error!("and what was begun is not undone: {}", error.message);
            }
        }
        Ok(begun?)
    }

    /// The run is to end. The first reason counts: what follows is its consequence. A guest that resets
    /// itself, or does nothing more, because it panicked, has panicked.
    pub fn end(&mut self, outcome: Outcome) {
        let is_consequence = matches!(
            outcome,
            Outcome::Reset
                | Outcome::PowerOff
                | Outcome::Replaced
                | Outcome::TimedOut { .. }
                | Outcome::Crashed(_)
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
        let places = self.tracing.places(&self.guest);
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
        if let Some(vcpu) = watch.look(self.guest.memory()) {
            let is_anothers = self.guest.stop().map(|stopped| {
                let vcpus = StoppedTarget::vcpus(&stopped);
                watch.is_anothers(vcpus, self.guest.memory())
            });
            if is_anothers.is_ok_and(|is_anothers| is_anothers) {
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

    /// Sees to one thing that has happened to the guest. A guest that has all its vCPUs ring the doorbell all the time has
    /// as much of this thread as the control socket has, and no more.
    pub fn guest_event(&mut self) {
        if let Some(outcome) = self.guest.see_to_event(&mut self.tracing) {
            self.end(outcome);
        }
    }

    /// What was asked for and could not be done, though nothing has failed.
    #[must_use]
    pub fn not_done(&self) -> Option<Failure> {
        self.guest.not_done(&self.tracing)
    }

    /// Finishes the trace, and ends the guest or lets it go. Returns how tracing has ended, and of a guest that died where
    /// its last calls are.
    ///
    /// # Errors
    /// When the trace could not be finished.
    pub fn finish(&mut self, is_dead: bool) -> Result<Finished, Failure> {
        self.triggers.see_to_last(&self.guest, &mut self.tracing);
        let folder = self.places.scratch.clone();
        let last: &Scratch = &move |session| scratch(&folder, session);
        let last = is_dead.then_some(last);
        let finished = self.guest.finish(&mut self.tracing, last);
        self.triggers.end();
        finished
    }

    /// Whether functions of the guest can come and go.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        self.tracing.has_modules()
    }

    /// Looks which functions of the guest have come and gone, unless it panics.
    pub fn look_for_modules(&mut self) {
        if self.panic.as_ref().and_then(PanicWatch::vcpu).is_none() {
            self.tracing.look(&self.guest);
        }
    }

    /// Looks whether the window is still where it was put, and whether the kernel that is traced still runs, unless the
    /// guest panics.
    pub fn look_at_window(&mut self) {
        if self.panic.as_ref().and_then(PanicWatch::vcpu).is_some() {
            return;
        }
        let is_lost = self.tracing.look_at_window(&self.guest);
        let ends = match is_lost {
            true => self.guest.lost_window(),
            false => self.guest.look(),
        };
        if let Some(outcome) = ends {
            self.end(outcome);
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

impl<P: Provider> Served for Run<P> {
    type Guest = P;

    fn look(&mut self) {
        self.look_for_modules();
    }

    fn tracing(&mut self) -> (&mut Tracing, &P) {
        (&mut self.tracing, &self.guest)
    }

    fn pause(&mut self) -> Result<bool, RpcError> {
        self.guest.pause().map_err(RpcError::failed)
    }

    fn resume(&mut self) -> bool {
        self.guest.resume()
    }

    fn shut_down(&mut self) {
        self.end(Outcome::Shutdown);
    }

    fn outputs(&self) -> &Outputs {
        &self.places.outputs
    }

    fn subscriptions(&mut self) -> &mut Subscriptions {
        &mut self.subscriptions
    }

    fn errors(&mut self) -> &mut ErrorLog {
        &mut self.errors
    }

    fn arm(&mut self, session: &str, triggers: &[Trigger]) -> Result<(), RpcError> {
        let armed = self.triggers.arm(session, triggers, &mut self.tracing);
        armed.map_err(RpcError::from)
    }

    fn disarm(&mut self, session: &str) {
        self.triggers.disarm(session);
    }

    fn status(&mut self) -> Status {
        let guest = GuestStatus {
            state: self.guest.state().to_owned(),
            kernel: self.kernel.clone(),
            memory_mib: self.guest.ram_bytes() / layout::MIB,
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let mapped = self.guest.mapped();
        let memory = MemoryStatus {
            ram_bytes: self.guest.ram_bytes(),
            window_bytes: mapped.window().bytes,
            window_backed_bytes: mapped.backed_window(),
            resident_bytes: resident_bytes(),
        };
        let mut pauses = Pauses::from(self.guest.pauses());
        pauses.kernel_looks = self.guest.kernel_looks().map(Into::into);
        Status {
            guest,
            memory,
            vcpus: self.guest.vcpu_states(),
            tracing: self.tracing.status(),
            pauses,
            triggers: self.triggers.status(),
        }
    }
}
