//! From rings to traces: readers of what the guest records, which are polled. Whoever uses this crate does that with
//! threads of its own ([`Pollers`]).

pub(crate) mod backlog;
mod call_sink;
pub(crate) mod counters;
#[cfg(not(feature = "internals"))]
pub(crate) mod drain;
#[cfg(feature = "internals")]
pub mod drain;
pub(crate) mod event_drain;
mod host_drain;
#[cfg(not(feature = "internals"))]
pub(crate) mod looks;
#[cfg(feature = "internals")]
pub mod looks;
#[cfg(not(feature = "internals"))]
pub(crate) mod output;
#[cfg(feature = "internals")]
pub mod output;
mod recording;
#[cfg(not(feature = "internals"))]
pub(crate) mod rings;
#[cfg(feature = "internals")]
pub mod rings;
mod source;
mod stall_drain;
pub mod status;
#[cfg(test)]
mod tests;
mod thread_names;
pub(crate) mod writer;

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use drain::{Continues, Drain};
pub use looks::AllLooks;
use looks::lock;
use output::{Output, Written};
use writer::{Told, Writer};

use crate::ring::reader::Patience;
use trace::export::uftrace::ExportError;

/// A session's reader, for who polls it and who asks it. Who asks comes next, however much there is to read, and never
/// waits for what is being written.
///
/// Locks are taken in the order of the fields: who writes reads meanwhile, who reads does not write.
#[derive(Debug)]
pub struct SharedDrain {
    writer: Mutex<Writer>,
    drain: Mutex<Drain>,
    told: Mutex<Told>,
    asking: AtomicUsize,
    asked: Condvar,
}

impl SharedDrain {
    /// What `drain` reads is written to `output`.
    #[must_use]
    pub fn new(drain: Drain, output: Option<Output>) -> Self {
        Self {
            writer: Mutex::new(Writer::new(output, &drain)),
            drain: Mutex::new(drain),
            told: Mutex::default(),
            asking: AtomicUsize::new(0),
            asked: Condvar::new(),
        }
    }

    /// One round: reads after everybody who asks, and writes. Returns how many events there were.
    pub fn round(&self) -> usize {
        let mut writer = lock(&self.writer);
        self.rounds(&mut writer, None)
    }

    fn rounds(&self, writer: &mut Writer, patience: Option<Patience>) -> usize {
        let mut count = 0;
        let mut part = 0;
        let parts = self.turn().parts();
        let mut continues = Continues::No;
        while part < parts {
            let mut drain = self.turn();
            let patience = patience.unwrap_or_else(|| drain.patience());
            count += drain.read_some(part, patience, &mut continues);
            part += usize::from(continues == Continues::No);
            let output = drain.hand_over(writer.backlog());
            let now_ns = (part == parts).then(|| drain.now_ns());
            drop(drain);
            if let Some(output) = output {
                writer.begin(*output);
            }
            writer.write(&self.told, now_ns);
        }
        if writer.is_idle() && self.turn().end_idle() {
            writer.end();
        }
        count
    }

    /// The reader, when nobody asks it.
    fn turn(&self) -> MutexGuard<'_, Drain> {
        let turn = self
            .asked
            .wait_while(lock(&self.drain), |_| self.asking.load(SeqCst) > 0);
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> Asking<'_> {
        self.asking.fetch_add(1, SeqCst);
        Asking {
            drain: lock(&self.drain),
            _turn: Turn(self),
        }
    }

    fn told(&self) -> Told {
        lock(&self.told).clone()
    }

    /// The last round: no writer of records can still come. Completes the trace, if there is one.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun.
    pub fn finish(&self) -> Result<Option<Written>, ExportError> {
        let mut writer = lock(&self.writer);
        self.rounds(&mut writer, Some(Patience::Over));
        let mut drain = self.ask();
        drain.end_output();
        let doubts = drain.doubts();
        drop(drain);
        writer.finish(&doubts)
    }
}

/// Who asks a reader, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
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
        let locked = lock(&self.0.drain);
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
pub(crate) struct Polled {
    drain: Arc<SharedDrain>,
    poller: Option<Box<dyn Poller>>,
}

impl Polled {
    /// Has `drain` polled; what it reads is written to `output`.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start(
        drain: Drain,
        output: Option<Output>,
        pollers: &dyn Pollers,
    ) -> std::io::Result<Self> {
        let looks = drain.looks();
        let drain = Arc::new(SharedDrain::new(drain, output));
        let poller = pollers.start(Arc::clone(&drain), looks)?;
        Ok(Self {
            drain,
            poller: Some(poller),
        })
    }

    /// The reader, between two parts of a round.
    pub fn lock(&self) -> Asking<'_> {
        self.drain.ask()
    }

    /// Makes a round out of turn: who listens has been told of what was recorded by now. Waits for what is being written.
    pub fn round(&self) {
        self.drain.round();
    }

    /// What is known of the output.
    #[must_use]
    pub fn told(&self) -> Told {
        self.drain.told()
    }

    /// Nobody polls it any more: reads what the rings still hold, and completes the trace, if there is one. Waits for
    /// what is being written.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun.
    pub fn finish(&mut self) -> Result<Option<Written>, ExportError> {
        self.poller = None;
        self.drain.finish()
    }
}
