//! The threads that read rings: one takes records out, and where there is much to read others help, each with a ring of its
//! own; one only looks at heads, so that records have times however long it takes to write them.

use std::convert::Infallible;
use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, available_parallelism};
use std::time::Duration;

use crate::confine::{self, Role};
use tracer::collect::{Poller, Pollers, SharedDrain};

/// Pause between two rounds over the rings when there was nothing to read.
const IDLE: Duration = Duration::from_millis(2);
/// Between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// So many threads read the rings of a session, if it has so many and the host so many processors. One at a time writes what
/// they have read; the others do parts of that while they wait for it.
const READERS_MAX: usize = 4;

/// How somebody waits who has more to do meanwhile: at most so long, by what waits for a part of that and says whether it is over.
pub type Waits = fn(Duration, &mut dyn FnMut(Duration) -> bool) -> bool;

/// Two threads for each session, and those that help.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// So many read, at most.
    readers: usize,
    /// How who ends them waits for them.
    waits: Waits,
}

impl Threads {
    /// As many as this host has processors for.
    #[must_use]
    pub fn of_this_host() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self {
            readers: processors.min(READERS_MAX),
            waits: |at_most, wait| wait(at_most),
        }
    }

    /// The same; who ends them has more to do while he waits for them.
    #[must_use]
    pub fn waited_for(self, waits: Waits) -> Self {
        Self { waits, ..self }
    }
}

impl Pollers for Threads {
    fn start(&self, drain: Arc<SharedDrain>) -> io::Result<Box<dyn Poller>> {
        let looks = Arc::clone(&drain);
        let look = StoppedThread::start(Role::Look, move |stopped| look(&looks, stopped))?;
        let helpers = helpers(&drain, self.readers)?;
        let read = Arc::clone(&drain);
        let read = StoppedThread::start(Role::Drain, move |said| {
            rounds(|| read.round(), said);
        })?;
        let knock = read.said.clone();
        drain.on_knock(Box::new(move || {
            // It fails when the thread has ended: then nobody waits for it any more.
            let _ = knock.send(Said::Knock);
        }));
        Ok(Box::new(Readers {
            drain: read,
            helpers,
            look,
            waits: self.waits,
        }))
    }
}

/// Threads that help where there is much to read.
fn helpers(drain: &Arc<SharedDrain>, readers: usize) -> io::Result<Vec<StoppedThread>> {
    let readers = readers.min(drain.rings());
    let start = |_| {
        let drain = Arc::clone(drain);
        StoppedThread::start(Role::Drain, move |said| {
            while matches!(said.recv(), Ok(Said::Knock)) {
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
    drain: StoppedThread,
    helpers: Vec<StoppedThread>,
    look: StoppedThread,
    waits: Waits,
}

impl Poller for Readers {
    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, stands: &dyn Fn() -> bool) -> bool {
        let Self {
            drain,
            helpers,
            look,
            waits,
        } = *self;
        drain.tell(Said::Last(last));
        helpers.iter().for_each(StoppedThread::stop);
        let writers: Vec<StoppedThread> = [drain].into_iter().chain(helpers).collect();
        let has_ended = writers.iter().all(|thread| thread.ends(stands, waits));
        if !has_ended {
            writers.into_iter().for_each(StoppedThread::leave);
        }
        // It says whether they stand, until here.
        drop(look);
        has_ended
    }
}

/// What such a thread is told while it rests.
enum Said {
    /// Somebody waits for it.
    Knock,
    /// It is to do this, and to end.
    Last(Box<dyn FnOnce() + Send>),
    /// It is to end.
    Stop,
}

/// A thread that is told to end, and waited for, when this is dropped.
#[derive(Debug)]
struct StoppedThread {
    role: Role,
    said: Sender<Said>,
    /// Nobody can send when it has ended.
    ended: Receiver<Infallible>,
    thread: Option<JoinHandle<()>>,
}

impl StoppedThread {
    fn start(role: Role, run: impl FnOnce(&Receiver<Said>) + Send + 'static) -> io::Result<Self> {
        let (said, hears) = channel();
        let (runs, ended) = channel();
        let thread = std::thread::Builder::new().name(role.name().to_owned());
        Ok(Self {
            role,
            said,
            ended,
            thread: Some(thread.spawn(move || {
                let _runs = runs;
                confine::enter(role);
                run(&hears);
            })?),
        })
    }

    fn tell(&self, what: Said) {
        // It fails when the thread has ended already.
        let _ = self.said.send(what);
    }

    /// Tells it to end.
    fn stop(&self) {
        self.tell(Said::Stop);
    }

    /// Waits until it has ended, or has something to do that does not end. Whether it has. That can take as long as a disk takes, and
    /// who waits here may have threads of a VMM to let go.
    fn ends(&self, stands: &dyn Fn() -> bool, waits: Waits) -> bool {
        let mut has_ended = |part| self.ended.recv_timeout(part) != Err(RecvTimeoutError::Timeout);
        while !waits(LOOK_PERIOD, &mut has_ended) {
            if stands() {
                return false;
            }
        }
        true
    }

    /// Nobody waits for it any more: it ends by itself, or with the process.
    fn leave(mut self) {
        self.thread = None;
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        self.stop();
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

fn look(drain: &SharedDrain, said: &Receiver<Said>) {
    while matches!(
        said.recv_timeout(LOOK_PERIOD),
        Err(RecvTimeoutError::Timeout)
    ) {
        drain.look();
    }
}

/// One round after the other, which says how much there was to read.
fn rounds(round: impl Fn() -> usize, said: &Receiver<Said>) {
    loop {
        let count = round();
        let wait = if count == 0 { IDLE } else { Duration::ZERO };
        let mut heard = said.recv_timeout(wait);
        // One round is for all who have knocked.
        while matches!(heard, Ok(Said::Knock)) {
            heard = said.recv_timeout(Duration::ZERO);
        }
        match heard {
            Err(RecvTimeoutError::Timeout) | Ok(Said::Knock) => {}
            Ok(Said::Last(last)) => return last(),
            Ok(Said::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;

    use super::*;
    use crate::foreign::stuck::Stuck;
    use crate::foreign::wait_and_let_go;

    fn readers(round: impl Fn() -> usize + Send + 'static) -> Readers {
        let start = |role, run| StoppedThread::start(role, run).unwrap();
        let waits = |said: &Receiver<Said>| while matches!(said.recv(), Ok(Said::Knock)) {};
        Readers {
            drain: StoppedThread::start(Role::Drain, move |said| rounds(round, said)).unwrap(),
            helpers: vec![start(Role::Drain, waits)],
            look: start(Role::Look, waits),
            waits: wait_and_let_go,
        }
    }

    #[test]
    fn who_makes_the_rounds_makes_the_last_one_too() {
        let count = Arc::new(AtomicUsize::new(0));
        let made = Arc::clone(&count);
        let readers = readers(move || made.fetch_add(1, SeqCst));
        let (tell, told) = channel();
        let last = move || {
            let name = thread::current().name().map(str::to_owned);
            tell.send((name, count.load(SeqCst))).unwrap();
        };
        assert!(Box::new(readers).end(Box::new(last), &|| false));
        let (name, rounds) = told.recv().unwrap();
        assert_eq!(name.as_deref(), Some(Role::Drain.name()));
        assert!(rounds > 0);
    }

    #[test]
    fn what_does_not_end_is_abandoned_when_it_stands() {
        let (lets_go, goes_on) = channel();
        let (tell, told) = channel();
        let last = move || {
            goes_on.recv().unwrap();
            tell.send(()).unwrap();
        };
        assert!(!Box::new(readers(|| 0)).end(Box::new(last), &|| true));
        told.try_recv().unwrap_err();
        lets_go.send(()).unwrap();
        told.recv().unwrap();
    }

    /// It was once let go when the trace was complete: a slow disk takes seconds for that.
    #[test]
    fn who_waits_for_the_last_round_lets_go_who_was_late() {
        let stuck = Stuck::late();
        stuck.is_to_go_on();
        // Of a disk that is done when it goes on.
        let last = move || stuck.goes_on();
        let looks = AtomicUsize::new(0);
        let stands = || looks.fetch_add(1, SeqCst) > 240;
        assert!(Box::new(readers(|| 0)).end(Box::new(last), &stands));
    }
}
