//! vCPUs that wait for a reader, because the ring that they would write to is full: a session that loses nothing
//! has a *waiting room*. The thread that runs the vCPU enters it, and leaves when the reader has been at that ring.
//! Nothing in the guest's memory is asked: a guest that comes without need waits for one round of its own reader, and
//! keeps nobody else.

#[cfg(test)]
pub(crate) mod tests;
mod told;

use std::fmt::{self, Debug};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use terms::addr::Gpa;

use crate::clock::{Hold, VcpuClocks};
use crate::ring::turnstile::{Rings, Turnstile};
use told::Told;
pub(crate) use told::{WaitCounts, Waited};

/// Who has the threads that wait in a room. Wakes every one: each looks whether its wait is over.
pub trait Wake: Debug + Send + Sync {
    /// Does it.
    fn wake(&self);

    /// Takes every vCPU out of the guest; it does not wait for them.
    fn take_out(&self);

    /// The run is to end, for this reason: what vCPUs wait for will never come.
    fn end_run(&self, why: &str);
}

/// The waiting rooms of a guest.
#[derive(Debug)]
pub struct Waits {
    clocks: Arc<VcpuClocks>,
    wake: Arc<dyn Wake>,
    rooms: RwLock<Rooms>,
}

#[derive(Debug, Default)]
struct Rooms {
    turnstile: Gpa,
    /// By the number of the session.
    of: Vec<Option<Arc<WaitingRoom>>>,
}

impl Waits {
    /// None yet. These show the guest's time, and threads that wait are woken like that.
    #[must_use]
    pub fn new(clocks: Arc<VcpuClocks>, wake: Arc<dyn Wake>) -> Self {
        Self {
            clocks,
            wake,
            rooms: RwLock::default(),
        }
    }

    /// A room for who finds one of the `rings` rings of a session full, or as many of its events. `hides` when the guest is
    /// to see nothing of it, as far as that can be.
    pub(crate) fn open(
        &self,
        turnstile: Gpa,
        session: u8,
        rings: u16,
        hides: bool,
    ) -> Arc<WaitingRoom> {
        let (clocks, wake) = (Arc::clone(&self.clocks), Arc::clone(&self.wake));
        let room = Arc::new(WaitingRoom::new(clocks, wake, rings, hides));
        let mut rooms = self.rooms.write().unwrap_or_else(PoisonError::into_inner);
        rooms.turnstile = turnstile;
        let index = usize::from(session);
        if rooms.of.len() <= index {
            rooms.of.resize_with(index + 1, || None);
        }
        if let Some(place) = rooms.of.get_mut(index) {
            *place = Some(Arc::clone(&room));
        }
        room
    }

    /// A vCPU has read what is no memory: where it waits, if that is a turnstile. Called by the thread that runs it.
    #[must_use]
    pub fn enter(&self, at: Gpa, vcpu: u16) -> Option<Wait> {
        let rooms = self.rooms.read().unwrap_or_else(PoisonError::into_inner);
        let (session, rings) = Turnstile::whose(rooms.turnstile, at)?;
        let room = rooms.of.get(usize::from(session))?.as_ref()?;
        WaitingRoom::enter(room, rings, vcpu)
    }
}

/// Where vCPUs wait for the reader of one session.
pub(crate) struct WaitingRoom {
    clocks: Arc<VcpuClocks>,
    wake: Arc<dyn Wake>,
    rings: u16,
    /// All vCPUs write to the first ring.
    is_shared: AtomicBool,
    hides: bool,
    /// How often the reader has been at each ring: those of calls, then those of events.
    rounds: Vec<AtomicU64>,
    /// How often a vCPU has begun to wait for each.
    entered: Vec<Arc<AtomicU64>>,
    /// How often the reader has found news in each.
    news: Vec<AtomicU64>,
    /// The same, when a vCPU began to wait there last.
    known: Vec<AtomicU64>,
    waiting: AtomicUsize,
    is_closed: AtomicBool,
    told: Mutex<Told>,
    knock: Mutex<Option<Knock>>,
}

/// Tells a reader that rests that somebody waits.
pub type Knock = Box<dyn Fn() + Send + Sync>;

impl Debug for WaitingRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingRoom")
            .field("rings", &self.rings)
            .field("waiting", &self.waiting)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}

impl WaitingRoom {
    fn new(clocks: Arc<VcpuClocks>, wake: Arc<dyn Wake>, rings: u16, hides: bool) -> Self {
        Self {
            clocks,
            wake,
            rings,
            is_shared: AtomicBool::new(false),
            hides,
            rounds: (0..2 * rings).map(|_| AtomicU64::new(0)).collect(),
            entered: (0..2 * rings).map(|_| Arc::default()).collect(),
            news: (0..2 * rings).map(|_| AtomicU64::new(0)).collect(),
            known: (0..2 * rings).map(|_| AtomicU64::new(u64::MAX)).collect(),
            waiting: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            told: Mutex::default(),
            knock: Mutex::default(),
        }
    }

    /// All vCPUs write to the first ring from now on.
    pub fn share(&self) {
        self.is_shared.store(true, SeqCst);
    }

    /// Where a vCPU waits: for its own ring, or for the one that all share.
    fn place_of(&self, rings: Rings, vcpu: u16) -> usize {
        let is_shared = self.is_shared.load(SeqCst);
        self.place(rings, if is_shared { 0 } else { vcpu })
    }

    fn place(&self, rings: Rings, ring: u16) -> usize {
        let ring = usize::from(ring.min(self.rings.saturating_sub(1)));
        match rings {
            Rings::Calls => ring,
            Rings::Events => usize::from(self.rings) + ring,
        }
    }

    /// How often a vCPU has begun to wait for the reader of a ring.
    pub fn entered(&self, rings: Rings, ring: u16) -> u64 {
        let entered = self.entered.get(self.place(rings, ring));
        entered.map_or(0, |entered| entered.load(SeqCst))
    }

    /// The same, for who reads that ring.
    pub fn asks(&self, rings: Rings, ring: u16) -> Option<Arc<AtomicU64>> {
        self.entered.get(self.place(rings, ring)).map(Arc::clone)
    }

    fn rounds(&self, place: usize) -> u64 {
        self.rounds
            .get(place)
            .map_or(u64::MAX, |rounds| rounds.load(SeqCst))
    }

    fn enter(room: &Arc<Self>, rings: Rings, vcpu: u16) -> Option<Wait> {
        if room.is_closed.load(SeqCst) {
            return None;
        }
        let place = room.place_of(rings, vcpu);
        // Who waits is counted before the reader's rounds are looked at: it looks the other way round.
        room.waiting.fetch_add(1, SeqCst);
        if let Some(entered) = room.entered.get(place) {
            entered.fetch_add(1, SeqCst);
        }
        let wait = Wait {
            room: Arc::clone(room),
            place,
            round: room.rounds(place),
            vcpu,
            begin: (room.clocks.host().counter)(),
            hold: room.hold(place),
        };
        if let Some(knock) = &*room.knock.lock().unwrap_or_else(PoisonError::into_inner) {
            knock();
        }
        Some(wait)
    }

    /// Holds the guest's time, if the guest is to see nothing of a wait. Not for a vCPU that comes back to a ring of which
    /// nothing new was read: that waits for a thread of the guest's to write, which must run for that.
    fn hold(&self, place: usize) -> Option<Hold> {
        let news = self.news.get(place)?.load(SeqCst);
        let known = self.known.get(place)?.swap(news, SeqCst);
        if !self.hides || news == known {
            return None;
        }
        let hold = self.clocks.time().hold();
        self.wake.take_out();
        Some(hold)
    }

    /// Whether the guest is to see nothing of waits.
    pub const fn hides(&self) -> bool {
        self.hides
    }

    /// Ticks that the guest has not seen so far, in whichever session.
    pub fn hidden(&self) -> u64 {
        self.clocks.time().hidden()
    }

    /// How often a vCPU's counter could not be set back by some of them, which the guest has seen after all.
    pub fn not_set_back(&self) -> u64 {
        self.clocks.not_set_back()
    }

    /// The reader is about to say that it [has been](Self::read) at a ring, and has found something new.
    pub fn has_news(&self, rings: Rings, ring: u16) {
        if let Some(news) = self.news.get(self.place(rings, ring)) {
            news.fetch_add(1, SeqCst);
        }
    }

    /// Whoever begins to wait does this.
    pub fn on_knock(&self, knock: Knock) {
        *self.knock.lock().unwrap_or_else(PoisonError::into_inner) = Some(knock);
    }

    /// The reader has been at a ring: who waits for it looks again, in the guest. There may be room now; if there is
    /// none because a writer has not written yet, that may be a thread of the same vCPU.
    pub fn read(&self, rings: Rings, ring: u16) {
        if let Some(rounds) = self.rounds.get(self.place(rings, ring)) {
            rounds.fetch_add(1, SeqCst);
        }
        if self.waiting.load(SeqCst) > 0 {
            self.wake.wake();
        }
    }

    /// Nobody waits for a ring any more that the reader has been at until now: limits were changed.
    pub fn read_all(&self) {
        for rounds in &self.rounds {
            rounds.fetch_add(1, SeqCst);
        }
        self.wake.wake();
    }

    /// No reader comes any more: nobody waits here from now on.
    pub fn close(&self) {
        self.is_closed.store(true, SeqCst);
        self.read_all();
    }

    /// The run is to end, for this reason.
    pub fn end_run(&self, why: &str) {
        self.wake.end_run(why);
    }

    /// How many vCPUs wait now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// The waits that have ended since the first `seen` ones.
    pub fn since(&self, seen: u64) -> (Vec<Waited>, u64) {
        self.told().since(seen)
    }

    /// How many there were, and how long.
    pub fn counts(&self) -> WaitCounts {
        self.told().counts()
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A vCPU that waits, until this is dropped.
#[derive(Debug)]
pub struct Wait {
    room: Arc<WaitingRoom>,
    place: usize,
    round: u64,
    vcpu: u16,
    begin: u64,
    /// The guest's time is held meanwhile.
    hold: Option<Hold>,
}

impl Wait {
    /// Whether the reader has been there since it began, or comes no more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.room.rounds(self.place) != self.round || self.room.is_closed.load(SeqCst)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let end = (self.room.clocks.host().counter)();
        if self.hold.take().is_some() {
            self.room.wake.wake();
        }
        self.room.told().note(Waited {
            vcpu: self.vcpu,
            begin: self.begin,
            end,
            at: self.room.clocks.time().counter(),
        });
        self.room.waiting.fetch_sub(1, SeqCst);
    }
}
