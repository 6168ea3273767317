//! The main thread's loop: vCPU events, signals, console input, the time limit, the control socket.
//!
//! One subscriber owns the machine and everything that works on it, so nothing is shared and no
//! order of locks exists. Whatever happens ends in an [`Outcome`]; the finish is the same for all.

use std::os::fd::AsRawFd;
use std::time::Duration;

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::timerfd::TimerFd;

use crate::machine::{Machine, PATIENCE};
use crate::signals::Signals;
use crate::terminal::{ConsoleInput, ConsoleStdin};
use crate::vcpu::{VcpuEvent, VcpuEventKind};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The guest wrote this status to its exit port.
    GuestExit(u8),
    /// The guest reset itself.
    Reset,
    /// The guest could not go on.
    Crashed(String),
    /// The time limit passed.
    TimedOut(Duration),
    /// A signal told us to stop.
    Interrupted,
    /// A control client told us to stop.
    Shutdown,
}

/// Why the loop could not be set up or go on.
#[derive(Debug, thiserror::Error)]
pub enum EventLoopError {
    /// epoll.
    #[error("the event loop failed: {0}")]
    Events(event_manager::Error),
    /// The time limit.
    #[error("--timeout cannot be set: {0}")]
    Timer(#[source] std::io::Error),
}

const VCPU_BELL: u32 = 1;
const SIGNAL: u32 = 2;
const STDIN: u32 = 3;
const TIMER: u32 = 4;

/// Everything that the loop works on.
#[derive(Debug)]
pub struct EventLoop {
    machine: Machine,
    signals: Signals,
    stdin: Option<ConsoleStdin>,
    timer: Option<(TimerFd, Duration)>,
    outcome: Option<Outcome>,
}

impl EventLoop {
    /// A loop for a started `machine`.
    ///
    /// # Errors
    /// When the time limit cannot be set.
    pub fn new(
        machine: Machine,
        signals: Signals,
        stdin: Option<ConsoleStdin>,
        limit: Option<Duration>,
    ) -> Result<Self, EventLoopError> {
        let refused = |error: vmm_sys_util::errno::Error| {
            EventLoopError::Timer(std::io::Error::from_raw_os_error(error.errno()))
        };
        let timer = match limit {
            None => None,
            Some(limit) => {
                let mut timer = TimerFd::new().map_err(refused)?;
                timer.reset(limit, None).map_err(refused)?;
                Some((timer, limit))
            }
        };
        Ok(Self {
            machine,
            signals,
            stdin,
            timer,
            outcome: None,
        })
    }

    /// Runs until there is an outcome, then stops the vCPUs.
    ///
    /// # Errors
    /// When epoll fails.
    pub fn run(self) -> Result<Outcome, EventLoopError> {
        let mut events = EventManager::new().map_err(EventLoopError::Events)?;
        let subscriber = events.add_subscriber(self);
        loop {
            events.run().map_err(EventLoopError::Events)?;
            let this = events
                .subscriber_mut(subscriber)
                .map_err(EventLoopError::Events)?;
            if let Some(outcome) = this.outcome.take() {
                this.finish();
                return Ok(outcome);
            }
        }
    }

    fn finish(&mut self) {
        let late = self.machine.stop(PATIENCE);
        if !late.is_empty() {
            log::error!("vCPU threads {late:?} did not end within {PATIENCE:?}");
        }
    }

    fn end(&mut self, outcome: Outcome) {
        // The first reason counts: what follows is the consequence.
        self.outcome.get_or_insert(outcome);
    }

    fn vcpu_event(&mut self, event: VcpuEvent) {
        match event.kind {
            VcpuEventKind::GuestExit(status) => self.end(Outcome::GuestExit(status)),
            VcpuEventKind::Reset => self.end(Outcome::Reset),
            VcpuEventKind::Crashed(details) => {
                self.end(Outcome::Crashed(format!("vCPU {}: {details}", event.vcpu)));
            }
            VcpuEventKind::Breakpoint(_) => {}
        }
    }

    fn console_input(&mut self, ops: &mut EventOps<'_>) {
        let Some(stdin) = &mut self.stdin else { return };
        let mut bytes = [0; 4096];
        match stdin.read(&mut bytes) {
            ConsoleInput::Bytes(count) => {
                self.machine
                    .ports()
                    .console_input(bytes.get(..count).unwrap_or_default());
            }
            ConsoleInput::Nothing => {}
            ConsoleInput::End => {
                let _ = ops.remove(Events::empty(stdin));
                self.stdin = None;
            }
        }
    }
}

impl MutEventSubscriber for EventLoop {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        let mut add = |fd: &dyn AsRawFd, source| {
            let events = Events::with_data_raw(fd.as_raw_fd(), source, EventSet::IN);
            ops.add(events)
        };
        let mut refused = Vec::new();
        refused.extend(add(self.machine.events().bell(), VCPU_BELL).err());
        refused.extend(add(&self.signals, SIGNAL).err());
        if let Some((timer, _)) = &self.timer {
            refused.extend(add(timer, TIMER).err());
        }
        if let Some(error) = refused.first() {
            log::error!("the event loop cannot listen: {error}");
            self.end(Outcome::Interrupted);
        }
        // epoll refuses regular files and /dev/null: they are read to their end at once.
        if let Some(stdin) = &self.stdin
            && add(stdin, STDIN).is_err()
        {
            while self.stdin.is_some() {
                self.console_input(ops);
            }
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        match events.data() {
            VCPU_BELL => {
                self.machine.events().silence();
                while let Some(event) = self.machine.events().next() {
                    self.vcpu_event(event);
                }
            }
            SIGNAL => {
                if self.signals.take() {
                    self.end(Outcome::Interrupted);
                }
            }
            STDIN => self.console_input(ops),
            TIMER => {
                if let Some((_, limit)) = &self.timer {
                    self.end(Outcome::TimedOut(*limit));
                }
            }
            other => log::error!("event of an unknown source {other}"),
        }
    }
}
