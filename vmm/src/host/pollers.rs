//! The threads that read rings: one takes records out, and where there is much to read others help, each with a ring of its
//! own; one only looks at heads, so that records have times however long it takes to write them.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, available_parallelism};
use std::time::Duration;

use crate::confine::{self, Role};
use tracer::collect::{AllLooks, Poller, Pollers, SharedDrain};

/// Pause between two rounds over the rings when there was nothing to read.
const IDLE: Duration = Duration::from_millis(2);
/// Between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// So many threads read the rings of a session, if it has so many and the host so many processors. One at a time writes what
/// they have read; the others do parts of that while they wait for it.
const READERS_MAX: usize = 4;

/// Two threads for each session, and those that help.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// So many read, at most.
    readers: usize,
}

impl Threads {
    /// As many as this host has processors for.
    #[must_use]
    pub fn of_this_host() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self {
            readers: processors.min(READERS_MAX),
        }
    }
}

impl Pollers for Threads {
    fn start(&self, drain: Arc<SharedDrain>, looks: AllLooks) -> io::Result<Box<dyn Poller>> {
        let look = StoppedThread::start(Role::Look, move |stopped| look(&looks, stopped))?;
        let helpers = helpers(&drain, self.readers)?;
        let read = Arc::clone(&drain);
        let read = StoppedThread::start(Role::Drain, move |said| self::read(&read, said))?;
        let knock = read.said.clone();
        drain.on_knock(Box::new(move || {
            // It fails when the thread has ended: then nobody waits for it any more.
            let _ = knock.send(Said::Knock);
        }));
        Ok(Box::new(Readers {
            _drain: read,
            _helpers: helpers,
            _look: look,
        }))
    }
}

/// Threads that help where there is much to read.
fn helpers(drain: &Arc<SharedDrain>, readers: usize) -> io::Result<Vec<StoppedThread>> {
    let readers = readers.min(drain.rings());
    let start = |_| {
        let drain = Arc::clone(drain);
        StoppedThread::start(Role::Drain, move |said| {
            while said.recv() == Ok(Said::Knock) {
                drain.help();
            }
        })
    };
    let helpers: Vec<_> = (1..readers).map(start).collect::<io::Result<_>>()?;
    let said: Vec<_> = helpers.iter().map(|helper| helper.said.clone()).collect();
    drain.on_much(Box::new(move || {
        for helper in &said {
            // As below.
            let _ = helper.send(Said::Knock);
        }
    }));
    Ok(helpers)
}

/// They end when this is dropped, the one that makes rounds first.
#[derive(Debug)]
struct Readers {
    _drain: StoppedThread,
    _helpers: Vec<StoppedThread>,
    _look: StoppedThread,
}

impl Poller for Readers {}

/// What such a thread is told while it rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// Somebody waits for it.
    Knock,
    /// It is to end.
    Stop,
}

/// A thread that is told to end, and waited for, when this is dropped.
#[derive(Debug)]
struct StoppedThread {
    role: Role,
    said: Sender<Said>,
    thread: Option<JoinHandle<()>>,
}

impl StoppedThread {
    fn start(role: Role, run: impl FnOnce(&Receiver<Said>) + Send + 'static) -> io::Result<Self> {
        let (said, hears) = channel();
        let thread = std::thread::Builder::new().name(role.name().to_owned());
        Ok(Self {
            role,
            said,
            thread: Some(thread.spawn(move || {
                confine::enter(role);
                run(&hears);
            })?),
        })
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = self.said.send(Said::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!(
                "the {} thread has failed: the trace may be incomplete",
                self.role.name()
            );
        }
    }
}

fn look(looks: &AllLooks, said: &Receiver<Said>) {
    while said.recv_timeout(LOOK_PERIOD) == Err(RecvTimeoutError::Timeout) {
        looks.make();
    }
}

fn read(drain: &SharedDrain, said: &Receiver<Said>) {
    loop {
        let count = drain.round();
        let wait = if count == 0 { IDLE } else { Duration::ZERO };
        let mut heard = said.recv_timeout(wait);
        // One round is for all who have knocked.
        while heard == Ok(Said::Knock) {
            heard = said.recv_timeout(Duration::ZERO);
        }
        if heard != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
