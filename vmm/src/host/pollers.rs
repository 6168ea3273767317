//! The threads that read rings: one takes records out, one only looks at heads, so that records have times however
//! long it takes to write them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tracer::collect::{AllLooks, Poller, Pollers, SharedDrain};

/// Pause between two rounds over the rings when there was nothing to read.
const IDLE: Duration = Duration::from_millis(2);
/// Between two looks.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// Two threads for each session.
#[derive(Debug, Clone, Copy, Default)]
pub struct Threads;

impl Pollers for Threads {
    fn start(&self, drain: Arc<SharedDrain>, looks: AllLooks) -> io::Result<Box<dyn Poller>> {
        let look = StoppedThread::start("look", move |stopped| look(&looks, stopped))?;
        let drain = StoppedThread::start("drain", move |stopped| read(&drain, stopped))?;
        Ok(Box::new(Readers {
            _drain: drain,
            _look: look,
        }))
    }
}

/// They end when this is dropped, the one that reads first.
#[derive(Debug)]
struct Readers {
    _drain: StoppedThread,
    _look: StoppedThread,
}

impl Poller for Readers {}

/// A thread that is told to end, and waited for, when this is dropped.
#[derive(Debug)]
struct StoppedThread {
    name: &'static str,
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl StoppedThread {
    fn start(
        name: &'static str,
        run: impl FnOnce(&Receiver<()>) + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned());
        Ok(Self {
            name,
            stop,
            thread: Some(thread.spawn(move || run(&stopped))?),
        })
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!(
                "the {} thread has failed: the trace may be incomplete",
                self.name
            );
        }
    }
}

fn look(looks: &AllLooks, stopped: &Receiver<()>) {
    while stopped.recv_timeout(LOOK_PERIOD) == Err(RecvTimeoutError::Timeout) {
        looks.make();
    }
}

fn read(drain: &SharedDrain, stopped: &Receiver<()>) {
    loop {
        let count = drain.round();
        let wait = if count == 0 { IDLE } else { Duration::ZERO };
        match stopped.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
