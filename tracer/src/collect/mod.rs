//! From rings to traces: readers of what the guest records, which are polled. Whoever uses this crate does that with
//! threads of its own ([`Pollers`]).

mod awaited;
pub(crate) mod backlog;
mod call_ring;
mod call_rings;
mod call_sink;
mod copied_points;
pub(crate) mod counters;
#[cfg(not(feature = "internals"))]
pub(crate) mod drain;
#[cfg(feature = "internals")]
pub mod drain;
mod encoder;
pub(crate) mod event_drain;
mod hands;
mod host_drain;
mod kept;
#[cfg(not(feature = "internals"))]
pub(crate) mod looks;
#[cfg(feature = "internals")]
pub mod looks;
pub mod only_vcpus;
#[cfg(not(feature = "internals"))]
pub(crate) mod output;
#[cfg(feature = "internals")]
pub mod output;
mod point_sink;
mod recording;
#[cfg(not(feature = "internals"))]
pub(crate) mod ring_clock;
#[cfg(feature = "internals")]
pub mod ring_clock;
#[cfg(not(feature = "internals"))]
pub(crate) mod rings;
#[cfg(feature = "internals")]
pub mod rings;
mod rooms;
mod round_lock;
mod source;
mod stall_drain;
mod standing;
#[cfg(test)]
mod tests;
mod thread_names;
pub mod wait_drain;
pub(crate) mod writer;
mod writing;

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use awaited::{LOOKS, rounds_of_others};
use call_ring::{Continues, SharedCallRing};
use drain::Drain;
use hands::Hands;
#[cfg(test)]
use looks::lock_free;
use looks::{AllLooks, lock};
use output::{Output, Written};
use round_lock::{Round, RoundLock};
use standing::StandingWrite;
use status::WaitStatus;
use wait_drain::WaitDrain;
use writer::{Told, Writer};
use writing::Writing;

use crate::ring::reader::{Patience, RingReader};
use crate::waits::Knock;
use trace::export::uftrace::ExportError;

/// So often vCPUs that wait at the end are given room, and the rest after each time: a thread that was woken may have to wait
/// for a processor of the host.
pub(crate) const LET_GO_ROUNDS: Rounds = 0..500;
/// Those that are left.
pub(crate) type Rounds = std::ops::Range<u32>;
const LET_GO_REST: Duration = Duration::from_millis(1);

/// A session's reader, for who polls it and who asks it. Who asks comes next, however much there is to read, and never
/// waits for what is being written. Several threads can read, each a ring of its own.
///
/// Locks are taken in the order of the fields, those of rings of calls after that of the reader: who writes reads
/// meanwhile, who reads does not write. Under that of the hands nothing else is locked.
#[derive(Debug)]
pub struct SharedDrain {
    rounds: RoundLock,
    hands: Hands,
    writer: Mutex<Writer>,
    drain: Mutex<Drain>,
    calls: Vec<SharedCallRing>,
    told: Mutex<Told>,
    looks: AllLooks,
    standing: Mutex<StandingWrite>,
    asking: AtomicUsize,
    asked: Condvar,
    /// Who writes stands, and was abandoned.
    is_left: AtomicBool,
}

impl SharedDrain {
    /// What `drain` reads is written to `output`.
    #[must_use]
    pub fn new(drain: Drain, output: Option<Output>) -> Self {
        let calls = drain.calls().shared().to_vec();
        let looks = drain.looks();
        Self {
            rounds: RoundLock::default(),
            hands: Hands::default(),
            writer: Mutex::new(Writer::new(output, &drain)),
            drain: Mutex::new(drain),
            calls,
            told: Mutex::default(),
            looks,
            standing: Mutex::default(),
            asking: AtomicUsize::new(0),
            asked: Condvar::new(),
            is_left: AtomicBool::new(false),
        }
    }

    /// One round: reads after everybody who asks, and writes. Returns how many events there were.
    pub fn round(&self) -> usize {
        self.round_with(None)
    }

    /// Looks at the heads of all rings, so that records have times however long it takes to write them; and whether what is
    /// being written stands, so that nobody waits for that.
    pub fn look(&self) {
        self.looks.make();
        let busy = lock(&self.told).busy();
        if lock(&self.standing).look(busy) {
            let why = self.stood().to_string();
            log::error!("{why}; the guest goes on");
            self.ask().change_waits(|waits| waits.give_up(&why));
        }
    }

    /// What is said of an output that takes nothing.
    fn stood(&self) -> ExportError {
        ExportError::Stands(self.told().directory.unwrap_or_default())
    }

    /// Whether what is being written stands.
    fn stands(&self) -> bool {
        lock(&self.standing).is_so()
    }

    /// How many rings of calls there are: so many threads can read at a time.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.calls.len()
    }

    /// Whenever there is much to read, `knock` is called, by a thread that reads: others come to [help](Self::help).
    pub fn on_much(&self, knock: Knock) {
        self.hands.on_much(knock);
    }

    /// Reads rings of the round that is being made, as long as there are some that nobody has taken.
    pub fn help(&self) {
        self.read_rings();
    }

    fn round_with(&self, patience: Option<Patience>) -> usize {
        let round = self.rounds.begin();
        let mut count = 0;
        loop {
            let (read, is_left) = self.part_of_round(&round, patience);
            count += read;
            if !is_left {
                return count;
            }
        }
    }

    /// Reads the rings of calls, and then of the events that were found when the round began as many as may be kept at a time;
    /// writes that. Returns how many events there were, and whether some are left.
    fn part_of_round(&self, _round: &Round<'_>, patience: Option<Patience>) -> (usize, bool) {
        self.hands.begin(self.rings(), patience);
        self.read_rings();
        let count = self.hands.end();
        let mut drain = self.turn();
        let patience = patience.unwrap_or_else(|| drain.patience());
        let rest = drain.read_rest(patience);
        drop(drain);
        self.write_when_free(true);
        (count + rest.count, rest.is_left)
    }

    /// Reads rings that nobody has taken, and then writes what others read, until they have.
    fn read_rings(&self) {
        while let Some(mut hand) = self.hands.take() {
            let (ring, patience) = (hand.ring(), hand.patience());
            let mut continues = Continues::No;
            loop {
                hand.has_read(self.read_some(ring, patience, &mut continues));
                self.write_some(ring);
                if continues == Continues::No {
                    break;
                }
                hand.has_much();
            }
        }
        let mut parts = 0;
        while let Some(more) = self.hands.more_than(parts) {
            parts = more;
            self.write_when_free(false);
        }
    }

    /// Writes what was read, unless somebody else is writing, and not much of this ring waits.
    fn write_some(&self, ring: u16) {
        let calls = self.calls.get(usize::from(ring));
        let waits_much = || calls.is_some_and(|calls| lock(calls).waits_much());
        if let Some(writing) = Writing::when_free(&self.writer, &self.hands, waits_much) {
            self.write(writing, false);
        }
    }

    /// Writes what was read, when nobody else does.
    fn write_when_free(&self, is_over: bool) {
        if let Some(writing) = Writing::when_free(&self.writer, &self.hands, || true) {
            self.write(writing, is_over);
        }
    }

    fn read_some(&self, ring: u16, patience: Option<Patience>, continues: &mut Continues) -> usize {
        let Some(calls) = self.calls.get(usize::from(ring)) else {
            return 0;
        };
        // Under the lock of the reader: who asks, and has come to a ring, has it to itself for as long as it asks.
        let drain = self.turn();
        let patience = patience.unwrap_or_else(|| drain.patience());
        let mut calls = lock(calls);
        drop(drain);
        let count = calls.read_some(patience, continues);
        let at = calls.progress();
        drop(calls);
        self.turn().has_read(ring, at);
        count
    }

    /// Writes what was read, as far as it is certain; when the round is over, what else there is, too.
    fn write(&self, mut writer: Writing<'_>, is_over: bool) {
        let mut drain = self.turn();
        let output = drain.hand_over(writer.backlog());
        drop(drain);
        if let Some(output) = output {
            writer.begin(*output);
        }
        writer.write(&self.told, is_over, &self.hands);
        if is_over {
            self.end_round(&mut writer);
        }
    }

    /// All of a round is written, as far as it is certain.
    fn end_round(&self, writer: &mut Writer) {
        if let Some(why) = self.told().error {
            self.turn().change_waits(|waits| waits.give_up(&why));
        }
        if writer.is_idle() && self.turn().end_idle() {
            writer.end();
        }
    }

    /// Whenever a vCPU begins to wait for this reader, `knock` is called: by the thread that runs the vCPU.
    pub fn on_knock(&self, knock: Knock) {
        if let Some(waits) = lock(&self.drain).waits() {
            waits.room().on_knock(knock);
        }
    }

    /// The reader, when nobody asks it.
    fn turn(&self) -> MutexGuard<'_, Drain> {
        let turn = self
            .asked
            .wait_while(lock(&self.drain), |_| self.asking.load(SeqCst) > 0);
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) -> DrainGuard<'_> {
        self.asking.fetch_add(1, SeqCst);
        DrainGuard {
            drain: lock(&self.drain),
            _turn: Turn(self),
        }
    }

    /// Who records now has room for it, and time to write it, until nobody waits and that is so of each ring: what is called now
    /// was called before the end. A guest that is paused, or comes again and again, is not waited for longer than that.
    fn let_go(&self, rounds: &mut Rounds, is_over: impl Fn(&RingReader) -> bool) {
        while rounds.next().is_some() {
            let mut drain = self.ask();
            drain.refresh();
            let is_left = |waits: &WaitDrain| waits.room().waiting() == 0;
            if drain.waits().is_none_or(is_left)
                && drain.calls().all(&is_over)
                && drain.events().is_none_or(|events| events.all(&is_over))
            {
                return;
            }
            let rest = drain.time().rings.host().rest;
            drop(drain);
            rest(LET_GO_REST);
        }
    }

    /// Nobody is led to the rings any more: who waits has some time, then nobody does.
    pub(crate) fn dismiss(&self) {
        if lock(&self.drain).waits().is_some() {
            // Threads that the guest took a vCPU away from while they waited come when nobody waits any more: into rings
            // with room.
            let mut rounds = LET_GO_ROUNDS;
            self.let_go(&mut rounds, RingReader::has_room);
        }
        self.attend(false);
    }

    /// The guest is about to be stopped for good, and nothing is recorded any more: what was begun is written.
    pub(crate) fn complete(&self, rounds: &mut Rounds) {
        if lock(&self.drain).is_written() {
            self.let_go(rounds, RingReader::is_complete);
        }
    }

    /// vCPUs that find a ring full are waited for, or not.
    pub(crate) fn attend(&self, is_attended: bool) {
        self.ask().change_waits(|waits| waits.attend(is_attended));
    }

    /// Whether nobody reads or asks just now.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        lock_free(&self.drain).is_some()
    }

    fn told(&self) -> Told {
        lock(&self.told).clone()
    }

    /// Who writes stands, and is abandoned: should it ever go on, it reads no ring any more, and completes nothing.
    fn leave(&self) -> ExportError {
        let mut drain = self.ask();
        self.is_left.store(true, SeqCst);
        drain.leave();
        let room = drain.waits().map(|waits| Arc::clone(waits.room()));
        drop(drain);
        // Who had come to a ring before that has read it.
        self.calls.iter().for_each(|calls| drop(lock(calls)));
        if let Some(room) = room {
            room.close();
        }
        self.stood()
    }

    /// The last round: no writer of records can still come. Completes the trace, if there is one. Takes as long as the disk does.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun.
    pub fn finish(&self) -> Result<Option<Written>, ExportError> {
        self.round_with(Some(Patience::Over));
        let mut writer = Writing::alone(&self.writer, &self.hands);
        let mut drain = self.ask();
        if self.is_left.load(SeqCst) {
            // What was the session's may be somebody else's by now.
            return Err(self.stood());
        }
        drain.is_over = true;
        drain.end_output();
        let (doubts, until_ns) = (drain.doubts(), drain.recorded_until_ns());
        let room = drain.waits().map(|waits| Arc::clone(waits.room()));
        drop(drain);
        if let Some(room) = room {
            room.close();
        }
        writer.finish(&self.told, (&doubts, until_ns))
    }
}

/// Who asks a reader, for as long as it lives.
#[derive(Debug)]
pub(crate) struct DrainGuard<'a> {
    // Dropped in this order: who polls is woken when the lock is free.
    drain: MutexGuard<'a, Drain>,
    _turn: Turn<'a>,
}

impl Deref for DrainGuard<'_> {
    type Target = Drain;

    fn deref(&self) -> &Drain {
        &self.drain
    }
}

impl DerefMut for DrainGuard<'_> {
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
    /// the other while there is something to read, and others may [help](SharedDrain::help). Has somebody
    /// [look](SharedDrain::look) four times a second, whatever a round takes.
    ///
    /// # Errors
    /// When the system gives no threads.
    fn start(&self, drain: Arc<SharedDrain>) -> std::io::Result<Box<dyn Poller>>;
}

/// Something that polls for as long as it lives.
pub trait Poller: Debug {
    /// Whether it makes rounds at all: who wants one waits for it then.
    fn makes_rounds(&self) -> bool {
        true
    }

    /// Ends it, when the rounds are made that were begun and then the `last` one, by the thread that has made those: somebody
    /// looks until then. What stands, by what `stands` says, is abandoned. Whether all have ended.
    fn end(self: Box<Self>, last: Box<dyn FnOnce() + Send>, stands: &dyn Fn() -> bool) -> bool;
}

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
        let drain = Arc::new(SharedDrain::new(drain, output));
        let poller = pollers.start(Arc::clone(&drain))?;
        Ok(Self {
            drain,
            poller: Some(poller),
        })
    }

    /// The reader, between two parts of a round.
    pub fn lock(&self) -> DrainGuard<'_> {
        self.drain.ask()
    }

    /// Has a whole round of each made: who listens there has been told of what was recorded by now, if that is so. Waits five seconds for all of
    /// them, and not for a disk that stands. Where nobody polls one it makes the round itself.
    pub fn rounds(all: &[&Self]) -> Vec<bool> {
        let polled = all.iter().filter(|one| one.is_polled());
        let polled: Vec<_> = polled.map(|one| &*one.drain).collect();
        let mut made = rounds_of_others(&polled, LOOKS).into_iter();
        let each = all.iter().map(|one| match one.is_polled() {
            true => made.next().unwrap_or(false),
            false => {
                let stands = one.drain.stands();
                if !stands {
                    one.drain.round();
                }
                !stands
            }
        });
        each.collect()
    }

    /// Whether somebody makes its rounds.
    fn is_polled(&self) -> bool {
        self.poller.as_ref().is_some_and(|one| one.makes_rounds())
    }

    /// The same as [`Self::rounds`] of this one.
    #[cfg(test)]
    pub fn round(&self) -> bool {
        Self::rounds(&[self]) == [true]
    }

    /// Nobody is led to the rings any more.
    pub fn dismiss(&self) {
        self.drain.dismiss();
    }

    /// Nothing is recorded any more: what was begun is written, in so many rounds at most.
    pub fn complete(&self, rounds: &mut Rounds) {
        self.drain.complete(rounds);
    }

    /// All vCPUs write to the ring of the first one from now on: that is the one that they wait for.
    pub fn share_rings(&self) {
        if let Some(waits) = lock(&self.drain.drain).waits() {
            waits.room().share();
        }
    }

    /// Something leads to the rings again.
    pub fn attend(&self) {
        self.drain.attend(true);
    }

    /// How vCPUs have waited for it, if they are to.
    pub fn wait_status(&self) -> Option<WaitStatus> {
        lock(&self.drain.drain).waits().map(WaitDrain::status)
    }

    /// What is known of the output.
    #[must_use]
    pub fn told(&self) -> Told {
        self.drain.told()
    }

    /// Nobody polls it any more: what the rings still hold is read, and the trace completed, if there is one. Waits for
    /// that, unless it stands.
    ///
    /// # Errors
    /// The first [`ExportError`] since the trace was begun.
    pub fn finish(&mut self) -> Result<Option<Written>, ExportError> {
        let stands = || self.drain.stands();
        let (tell, told) = channel();
        let drain = Arc::clone(&self.drain);
        // Nobody hears it who has abandoned this.
        let last = Box::new(move || drop(tell.send(drain.finish())));
        let poller = self.poller.take();
        let has_ended = poller.is_none_or(|poller| poller.end(last, &stands));
        match told.try_recv() {
            Ok(finished) => finished,
            Err(_) if has_ended => self.drain.finish(),
            Err(_) => Err(self.drain.leave()),
        }
    }
}
