//! From rings to traces: readers of what the guest records, which are polled. Whoever uses this crate does that with
//! threads of its own ([`Pollers`]).

pub mod counters;
pub mod drain;
pub mod event_drain;
pub mod looks;
pub mod output;
pub mod rings;
mod source;
pub mod status;
mod thread_names;

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use drain::Drain;
use looks::AllLooks;

/// A session's reader, for who polls it and who asks it. Who asks comes next, however much there is to read.
#[derive(Debug)]
pub struct SharedDrain {
    drain: Mutex<Drain>,
    asking: AtomicUsize,
    asked: Condvar,
}

impl SharedDrain {
    fn new(drain: Drain) -> Self {
        Self {
            drain: Mutex::new(drain),
            asking: AtomicUsize::new(0),
            asked: Condvar::new(),
        }
    }

    /// One round, after everybody who asks. Returns how many events there were.
    pub fn round(&self) -> usize {
        let drain = looks::lock(&self.drain);
        let turn = self
            .asked
            .wait_while(drain, |_| self.asking.load(SeqCst) > 0);
        let mut drain = turn.unwrap_or_else(PoisonError::into_inner);
        let patience = drain.patience();
        drain.round(patience)
    }

    fn ask(&self) -> Asking<'_> {
        self.asking.fetch_add(1, SeqCst);
        Asking {
            drain: looks::lock(&self.drain),
            _turn: Turn(self),
        }
    }
}

/// Who asks a reader, for as long as it lives.
#[derive(Debug)]
pub struct Asking<'a> {
    // Dropped in this order: who polls is woken when the lock is free.
    drain: MutexGuard<'a, Drain>,
    _turn: Turn<'a>,
}

impl Deref for Asking<'_> {
    type Target = Drain;

    fn deref(&self) -> &Drain {
        &self.drain
    }
}

impl DerefMut for Asking<'_> {
    fn deref_mut(&mut self) -> &mut Drain {
        &mut self.drain
    }
}

/// One who asks; who polls waits for the last one.
#[derive(Debug)]
struct Turn<'a>(&'a SharedDrain);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Under the lock: who polls looks under it, too, and then sleeps at once.
        let locked = looks::lock(&self.0.drain);
        self.0.asking.fetch_sub(1, SeqCst);
        drop(locked);
        self.0.asked.notify_all();
    }
}

/// Who polls.
pub trait Pollers: Debug {
    /// From now on, and until what is returned is dropped, has rounds of `drain` made ([`SharedDrain::round`]): one after
    /// the other while there is something to read. Has `looks` made a few times a second, whatever a round takes.
    ///
    /// # Errors
    /// When the system gives no threads.
    fn start(&self, drain: Arc<SharedDrain>, looks: AllLooks) -> std::io::Result<Box<dyn Poller>>;
}

/// Something that polls for as long as it lives.
pub trait Poller: Debug {}

/// A reader that is polled.
#[derive(Debug)]
pub struct Polled {
    drain: Arc<SharedDrain>,
    poller: Option<Box<dyn Poller>>,
}

impl Polled {
    /// Has `drain` polled.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start(drain: Drain, pollers: &dyn Pollers) -> std::io::Result<Self> {
        let looks = drain.looks();
        let drain = Arc::new(SharedDrain::new(drain));
        let poller = pollers.start(Arc::clone(&drain), looks)?;
        Ok(Self {
            drain,
            poller: Some(poller),
        })
    }

    /// The reader, between two rounds.
    pub fn lock(&self) -> Asking<'_> {
        self.drain.ask()
    }

    /// Nobody polls it any more.
    pub fn stop(&mut self) {
        self.poller = None;
    }
}
