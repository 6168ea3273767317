//! The main thread's loop: vCPU events, signals, console input, the time limit, the control socket.
//!
//! One subscriber owns the run and everything that works on it, so nothing is shared and no order
//! of locks exists. Whatever happens ends in an [`Outcome`]; the finish is the same for all.

use std::os::fd::AsRawFd;
use std::time::Duration;

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::timerfd::TimerFd;

use crate::control::connection::Answer;
use crate::control::method::Served;
use crate::control::methods::answer;
use crate::control::server::Server;
use crate::devices::serial::INPUT_LIMIT;
use crate::failure::Failure;
use crate::outcome::Outcome;
use crate::provider::Provider;
use crate::run::Run;
use crate::signals::Signals;
use crate::terminal::{ConsoleInput, ConsoleStdin};
use crate::watchdog::{Watchdog, request};
use tracer::tracing::Finished;

/// Why the loop could not be set up or continue.
#[derive(Debug, thiserror::Error)]
pub enum EventLoopError {
    /// epoll.
    #[error("the event loop failed: {0}")]
    Events(event_manager::Error),
    /// The time limit.
    #[error("--timeout cannot be set: {0}")]
    Timer(#[source] std::io::Error),
    /// The look at the guest.
    #[error("no timer to look at the guest: {0}")]
    Watch(#[source] std::io::Error),
}

const GUEST_BELL: u32 = 1;
const SIGNAL: u32 = 2;
const STDIN: u32 = 3;
const TIMER: u32 = 4;
const WATCH: u32 = 5;
const NEWS: u32 = 6;
/// What epoll says of a client that has closed both ways: it will read no reply.
const GONE: EventSet = EventSet::HANG_UP.union(EventSet::ERROR);
/// Bytes of console input that are read at a time.
const INPUT_STEP: usize = 4096;
/// Tokens from here on are the control server's.
pub const CONTROL: u32 = 16;

/// The time limit of a run.
#[derive(Debug)]
pub struct Limit {
    timer: TimerFd,
    limit: Duration,
    /// Whether the run is to last so long, and no longer; else it must not.
    is_wanted: bool,
}

impl Limit {
    /// A limit that passes `limit` from now, once.
    ///
    /// # Errors
    /// When the timer cannot be made.
    pub fn start(limit: Duration) -> Result<Self, EventLoopError> {
        let timer = timer(limit, None).map_err(EventLoopError::Timer)?;
        Ok(Self {
            timer,
            limit,
            is_wanted: false,
        })
    }

    /// The same for a run that is to last so long.
    ///
    /// # Errors
    /// When the timer cannot be made.
    pub fn wanted(limit: Duration) -> Result<Self, EventLoopError> {
        let limit = Self::start(limit)?;
        Ok(Self {
            is_wanted: true,
            ..limit
        })
    }
}

/// A timer that fires after `first`, and then each `period`.
fn timer(first: Duration, period: Option<Duration>) -> std::io::Result<TimerFd> {
    let refused =
        |error: vmm_sys_util::errno::Error| std::io::Error::from_raw_os_error(error.errno());
    let mut timer = TimerFd::new().map_err(refused)?;
    timer.reset(first, period).map_err(refused)?;
    Ok(timer)
}

/// When to look whether the guest has panicked, which modules it has, what its clocks say, whether
/// our window is where it was, and whose the terminal is.
#[derive(Debug)]
pub struct Watch(TimerFd);

impl Watch {
    /// Looks each `period` from now on.
    ///
    /// # Errors
    /// When the timer cannot be made.
    pub fn start(period: Duration) -> Result<Self, EventLoopError> {
        let timer = timer(period, Some(period));
        timer.map(Self).map_err(EventLoopError::Watch)
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// How tracing ended.
    pub finished: Finished,
}

/// Everything that the loop works on.
#[derive(Debug)]
pub struct EventLoop<P> {
    /// The guest.
    pub run: Run<P>,
    /// The signals that end a run.
    pub signals: Signals,
    /// Console input, if there is any.
    pub stdin: Option<ConsoleStdin>,
    /// The time limit, if there is one.
    pub limit: Option<Limit>,
    /// When to look at the guest.
    pub watch: Watch,
    /// The control socket, if there is one.
    pub control: Option<Server>,
    /// Says when the loop does not come back from something.
    pub watchdog: Watchdog,
}

impl<P: Provider> EventLoop<P> {
    /// Runs until there is an outcome, then finishes everything.
    ///
    /// # Errors
    /// When epoll fails.
    pub fn run(self) -> Result<Ended, EventLoopError> {
        let mut events = EventManager::new().map_err(EventLoopError::Events)?;
        let subscriber = events.add_subscriber(self);
        loop {
            let this = events
                .subscriber_mut(subscriber)
                .map_err(EventLoopError::Events)?;
            if let Some(outcome) = this.run.take_outcome() {
                return Ok(this.finish(outcome));
            }
            let rest = this.run.guest().let_late_go();
            let rest = rest.and_then(|rest| i32::try_from(rest.as_millis()).ok());
            let rung = match rest {
                Some(rest) => events.run_with_timeout(rest),
                None => events.run(),
            };
            rung.map_err(EventLoopError::Events)?;
        }
    }

    fn finish(&mut self, outcome: Outcome) -> Ended {
        self.watchdog.begin("the end of the run");
        let not_done = self.run.not_done();
        let finished = self.run.finish(outcome.is_death());
        self.watchdog.done();
        if let Some(server) = self.control.take() {
            server.close();
        }
        self.stdin = None;
        let (outcome, finished) = match (outcome, finished) {
            (outcome, Ok(finished)) => (outcome.unless(not_done), finished),
            // An earlier failure says more than its consequences.
            (outcome @ Outcome::Failed(_), Err(failure)) => {
                log::error!("and at the end: {}", failure.message);
                (outcome, Finished::default())
            }
            (_, Err(failure)) => (Outcome::Failed(failure), Finished::default()),
        };
        Ended { outcome, finished }
    }

    fn console_input(&mut self, ops: &mut EventOps<'_>) {
        let Some(stdin) = &mut self.stdin else { return };
        let mut bytes = [0; INPUT_STEP];
        match stdin.read(&mut bytes) {
            ConsoleInput::Bytes(count) => {
                let bytes = bytes.get(..count).unwrap_or_default();
                self.run.guest().console_input(bytes);
            }
            ConsoleInput::Nothing => {}
            ConsoleInput::Elsewhere => {
                let _ = ops.remove(Events::empty(stdin));
            }
            ConsoleInput::End => {
                let _ = ops.remove(Events::empty(stdin));
                self.stdin = None;
            }
        }
    }

    /// A terminal that was another process group's is listened to again once it is ours.
    fn look_at_terminal(&mut self, ops: &mut EventOps<'_>) {
        if let Some(stdin) = &mut self.stdin
            && stdin.has_come_back()
        {
            // It was listened to before.
            let _ = ops.add(Events::with_data(stdin, STDIN, EventSet::IN));
        }
    }

    fn listen(&self, ops: &mut EventOps<'_>) -> Result<(), event_manager::Error> {
        let mut add = |fd: &dyn AsRawFd, token| {
            ops.add(Events::with_data_raw(fd.as_raw_fd(), token, EventSet::IN))
        };
        add(&self.run.guest().bell(), GUEST_BELL)?;
        add(&self.signals, SIGNAL)?;
        if let Some(limit) = &self.limit {
            add(&limit.timer, TIMER)?;
        }
        add(&self.watch.0, WATCH)?;
        add(self.run.news(), NEWS)?;
        self.control
            .as_ref()
            .map_or(Ok(()), |server| server.register(ops))
    }
}

impl<P: Provider> MutEventSubscriber for EventLoop<P> {
    fn init(&mut self, ops: &mut EventOps<'_>) {
        if let Err(error) = self.listen(ops) {
            let message = format!("the event loop cannot listen: {error}");
            self.run.end(Outcome::Failed(Failure::bad_input(message)));
        }
        // epoll refuses regular files and /dev/null: they are read at once, as much as the guest's line takes.
        // Some of them (/dev/zero) have no end.
        if let Some(stdin) = &self.stdin
            && ops
                .add(Events::with_data(stdin, STDIN, EventSet::IN))
                .is_err()
        {
            for _ in 0..INPUT_LIMIT.div_ceil(INPUT_STEP) {
                self.console_input(ops);
            }
            self.stdin = None;
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        self.watchdog.begin(name(events.data()));
        self.see_to(events, ops);
        self.watchdog.done();
    }
}

/// What an event is called that takes too long.
fn name(token: u32) -> &'static str {
    match token {
        GUEST_BELL => "an event of the guest",
        SIGNAL => "a signal",
        STDIN => "input of the console",
        TIMER => "the time limit",
        WATCH => "the look at the guest",
        NEWS => "what was recorded",
        _ => "the control socket",
    }
}

impl<P: Provider> EventLoop<P> {
    fn see_to(&mut self, events: Events, ops: &mut EventOps<'_>) {
        match events.data() {
            GUEST_BELL => self.run.guest_event(),
            SIGNAL => {
                if self.signals.take() {
                    self.run.end(Outcome::Interrupted);
                }
            }
            STDIN => self.console_input(ops),
            TIMER => match self.limit.take() {
                Some(limit) if limit.is_wanted => self.run.end(Outcome::Elapsed),
                Some(limit) => self.run.time_out(limit.limit),
                None => {}
            },
            WATCH => {
                // How often it has fired does not matter; it must be read to fire again.
                let _ = self.watch.0.wait();
                self.run.look_for_panic();
                self.run.look_for_modules();
                self.run.look_at_window();
                self.run.look_at_triggers();
                self.run.guest().nudge_for_clocks();
                self.look_at_terminal(ops);
            }
            NEWS => {
                self.run.news().heard();
                self.run.see_to_triggers();
                if let Some(server) = &mut self.control {
                    server.tell(ops);
                }
            }
            token => {
                let Self {
                    run,
                    control,
                    watchdog,
                    ..
                } = self;
                if let Some(server) = control.as_mut().filter(|server| server.owns(token)) {
                    let is_gone = events.event_set().intersects(GONE);
                    server.serve(token, is_gone, ops, |line| {
                        watchdog.begin(request(line));
                        Answer {
                            reply: answer(line, run),
                            subscription: run.subscriptions().take(),
                        }
                    });
                }
            }
        }
    }
}
