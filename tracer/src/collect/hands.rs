//! Who reads which ring of a round. One thread makes the round; where there is much to read, others help: each takes a ring
//! that nobody has taken. The round is over when all that were taken have been read, so no ring is ever a round ahead of
//! another one. One at a time writes; who waits for that, or for more to write, does a part of the writing meanwhile.

use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use super::looks::lock;
use crate::ring::reader::Patience;
use crate::waits::Knock;
use trace::crew::{Crew, Job};

/// Fewer records are not left to others: on a busy host it takes as long to wake a thread as to put some thousand calls together.
const SHARED_MIN: usize = 1 << 12;

/// So often a thread tries whether there is something to do before it sleeps: some 10 to 25 us, for a pause of a processor takes
/// 20 to 50 ns. To wake it would take as long, and there is something to do every 200 us.
const TRIES: u32 = 512;

/// The rings of a round, for all who read.
#[derive(Default)]
pub(super) struct Hands {
    state: Mutex<State>,
    left: Condvar,
    /// How often something has changed for who waits.
    changes: AtomicU64,
    /// There was more to read than one has at once, in this round or the last.
    is_much: AtomicBool,
    knock: OnceLock<Knock>,
}

/// How far a round is, and who writes what it brings.
#[derive(Default)]
struct State {
    rings: usize,
    /// How long a slot that is reserved is waited for, if it is not what it is usually.
    patience: Option<Patience>,
    taken: usize,
    reading: usize,
    /// How often some of a ring was read.
    parts: usize,
    /// Events that were read.
    count: usize,
    /// What of the writing can be done by others, and nobody does yet.
    jobs: Vec<Job>,
    /// How many others do such.
    working: usize,
    /// How often somebody has written.
    writes: u64,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Hands").finish_non_exhaustive()
    }
}

impl Hands {
    /// `knock` is called when there is much to read. Who came first is called.
    pub fn on_much(&self, knock: Knock) {
        let _ = self.knock.set(knock);
    }

    /// A round over so many rings begins. There is one at a time.
    pub fn begin(&self, rings: usize, patience: Option<Patience>) {
        let mut state = lock(&self.state);
        // Who still reads a ring of a round that has failed is waited for in this one.
        (state.rings, state.patience, state.taken) = (rings, patience, 0);
        (state.parts, state.count) = (0, 0);
        drop(state);
        if self.is_much.swap(false, Relaxed) {
            self.call();
        }
    }

    /// All rings have been taken: waits until all have been read. Returns how many events there were.
    pub fn end(&self) -> usize {
        self.wait_while(|state| state.reading > 0).count
    }

    /// Waits until rings were read more often in this round than so many times, or nobody reads any more: then there is
    /// no answer. Works for who writes meanwhile.
    pub fn more_than(&self, parts: usize) -> Option<usize> {
        let state = self.work_while(|state| state.reading > 0 && state.parts <= parts);
        (state.reading > 0).then_some(state.parts)
    }

    /// How often somebody has written so far.
    pub fn writes(&self) -> u64 {
        lock(&self.state).writes
    }

    /// Somebody has written.
    pub fn has_written(&self) {
        let mut state = lock(&self.state);
        state.writes += 1;
        drop(state);
        self.has_changed();
    }

    /// Waits until somebody has written once more than so many times, and works for who writes meanwhile.
    pub fn written(&self, writes: u64) {
        drop(self.work_while(|state| state.writes == writes));
    }

    /// Waits as long as this is so, and works for who writes meanwhile.
    fn work_while(&self, waits: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let is_idle = |state: &State| state.jobs.is_empty() && waits(state);
        loop {
            let mut state = self.wait_while(is_idle);
            let Some(job) = state.jobs.pop() else {
                return state;
            };
            state.working += 1;
            drop(state);
            let working = Working(self);
            job();
            drop(working);
        }
    }

    /// Something has changed for who waits.
    fn has_changed(&self) {
        self.changes.fetch_add(1, Release);
        self.left.notify_all();
    }

    /// Waits as long as this is so, and sleeps only if that takes a while.
    fn wait_while(&self, waits: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut tries = TRIES;
        loop {
            let changes = self.changes.load(Acquire);
            let state = lock(&self.state);
            if !waits(&state) {
                return state;
            }
            if tries == 0 {
                let waited = self.left.wait_while(state, |state| waits(state));
                return waited.unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            while tries > 0 && self.changes.load(Relaxed) == changes {
                tries -= 1;
                spin_loop();
            }
        }
    }

    /// The next ring that nobody has taken.
    pub fn take(&self) -> Option<Hand<'_>> {
        let mut state = lock(&self.state);
        let ring = u16::try_from(state.taken).ok()?;
        if state.taken >= state.rings {
            return None;
        }
        state.taken += 1;
        state.reading += 1;
        Some(Hand {
            hands: self,
            ring,
            patience: state.patience,
            count: 0,
        })
    }

    /// Others are to help, in this round and the next.
    fn has_much(&self) {
        if !self.is_much.swap(true, Relaxed) {
            self.call();
        }
    }

    fn call(&self) {
        if let Some(knock) = self.knock.get() {
            knock();
        }
    }
}

/// Who writes shares its work with who waits for that.
impl Crew for Hands {
    fn run(&self, jobs: Vec<Job>) {
        let mut jobs = jobs.into_iter();
        let Some(own) = jobs.next() else { return };
        lock(&self.state).jobs.extend(jobs);
        self.has_changed();
        own();
        drop(self.work_while(|state| state.working > 0));
    }

    fn is_worth_sharing(&self, records: usize) -> bool {
        records >= SHARED_MIN
    }
}

/// Somebody works for who writes: until this is dropped, also by a thread that fails.
struct Working<'a>(&'a Hands);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).working -= 1;
        self.0.has_changed();
    }
}

/// A ring that somebody reads: until this is dropped, also by a thread that fails.
#[derive(Debug)]
pub(super) struct Hand<'a> {
    hands: &'a Hands,
    ring: u16,
    patience: Option<Patience>,
    count: usize,
}

impl Hand<'_> {
    /// Which.
    pub const fn ring(&self) -> u16 {
        self.ring
    }

    /// How long a slot that is reserved is waited for in this round, if that is not what it is usually.
    pub const fn patience(&self) -> Option<Patience> {
        self.patience
    }

    /// So many more events were read.
    pub fn has_read(&mut self, count: usize) {
        self.count = self.count.saturating_add(count);
        lock(&self.hands.state).parts += 1;
        self.hands.has_changed();
    }

    /// There is more than one has at once.
    pub fn has_much(&self) {
        self.hands.has_much();
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.hands.state);
        state.reading -= 1;
        state.count = state.count.saturating_add(self.count);
        drop(state);
        self.hands.has_changed();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_ring_of_a_round_is_taken_once_and_the_round_ends_with_the_last() {
        const RINGS: usize = 97;
        let hands = Hands::default();
        assert!(hands.take().is_none(), "there is no round");
        for _ in 0..20 {
            hands.begin(RINGS, None);
            let read = |hands: &Hands| {
                let mut taken = Vec::new();
                while let Some(mut hand) = hands.take() {
                    hand.has_read(usize::from(hand.ring()));
                    taken.push(hand.ring());
                }
                taken
            };
            let mut all = thread::scope(|scope| {
                let others = [(); 3].map(|()| scope.spawn(|| read(&hands)));
                let mut all = read(&hands);
                assert_eq!(hands.end(), RINGS * (RINGS - 1) / 2);
                let others = others.into_iter().flat_map(|other| other.join().unwrap());
                all.extend(others);
                all
            });
            all.sort_unstable();
            let expected: Vec<u16> = (0..97).collect();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn rings_that_are_read_at_a_time_are_different_ones() {
        let hands = Hands::default();
        hands.begin(3, None);
        let all: Vec<_> = std::iter::from_fn(|| hands.take()).take(9).collect();
        let rings: Vec<u16> = all.iter().map(Hand::ring).collect();
        assert_eq!(rings, [0, 1, 2]);
    }

    #[test]
    fn a_round_waits_for_a_ring_that_another_one_reads() {
        for _ in 0..20 {
            let hands = Hands::default();
            hands.begin(1, None);
            let mut hand = hands.take().unwrap();
            let ends = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !ends.load(SeqCst) {
                        thread::yield_now();
                    }
                    (0..100).for_each(|_| thread::yield_now());
                    hand.has_read(7);
                    drop(hand);
                });
                ends.store(true, SeqCst);
                assert_eq!(hands.end(), 7);
            });
        }
    }

    #[test]
    fn who_has_nothing_to_read_is_told_of_what_others_read_until_nobody_does() {
        let hands = Hands::default();
        assert_eq!(hands.more_than(0), None, "there is no round");
        hands.begin(1, None);
        let mut hand = hands.take().unwrap();
        hand.has_read(3);
        assert_eq!(hands.more_than(0), Some(1));
        thread::scope(|scope| {
            let waits = scope.spawn(|| [hands.more_than(1), hands.more_than(2)]);
            hand.has_read(0);
            while !waits.is_finished() && hands.more_than(1) != Some(2) {}
            drop(hand);
            let told = waits.join().unwrap();
            assert_eq!(told[1], None);
            assert!(matches!(told[0], Some(2) | None), "{told:?}");
        });
        assert_eq!(hands.end(), 3);
    }

    #[test]
    fn a_thread_that_fails_holds_up_no_round() {
        let hands = Hands::default();
        hands.begin(1, None);
        thread::scope(|scope| {
            let failing = scope.spawn(|| {
                let _hand = hands.take();
                panic!("as it is to");
            });
            assert!(failing.join().is_err());
        });
        assert_eq!(hands.end(), 0);
    }

    #[test]
    fn who_still_reads_when_the_next_round_begins_is_waited_for() {
        let hands = Hands::default();
        hands.begin(2, None);
        let mut before = hands.take().unwrap();
        // Who made the round has failed.
        hands.begin(1, Some(Patience::Over));
        let hand = hands.take().unwrap();
        assert_eq!(hand.patience(), Some(Patience::Over));
        before.has_read(3);
        drop((before, hand));
        assert_eq!(hands.end(), 3);
    }

    #[test]
    fn others_are_called_where_there_is_much_in_this_round_and_the_next() {
        let hands = Hands::default();
        let called = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&called);
        hands.on_much(Box::new(move || {
            count.fetch_add(1, Relaxed);
        }));
        let called = || called.swap(0, Relaxed);
        let round = |parts: usize| {
            hands.begin(1, None);
            let hand = hands.take().unwrap();
            (0..parts).for_each(|_| hand.has_much());
            drop(hand);
            hands.end();
        };
        round(0);
        assert_eq!(called(), 0);
        round(5);
        assert_eq!(called(), 1, "once a round");
        round(0);
        assert_eq!(called(), 1, "there was much in the last one");
        round(0);
        assert_eq!(called(), 0);
    }

    /// As long as the slowest machine takes to begin with something.
    const PATIENCE: Duration = Duration::from_secs(300);

    /// Two jobs each of which is over when the other has begun.
    fn pair() -> Vec<Job> {
        let (first, second) = (channel(), channel());
        let job = |begins: Sender<()>, other: Receiver<()>| -> Job {
            Box::new(move || {
                begins.send(()).unwrap();
                other.recv_timeout(PATIENCE).unwrap();
            })
        };
        vec![job(first.0, second.1), job(second.0, first.1)]
    }

    #[test]
    fn who_waits_for_who_writes_works_for_it_meanwhile() {
        let hands = Hands::default();
        let writes = hands.writes();
        thread::scope(|scope| {
            let waits = scope.spawn(|| hands.written(writes));
            (0..20).for_each(|_| hands.run(pair()));
            assert!(!waits.is_finished());
            hands.has_written();
        });
        hands.written(0);
    }

    #[test]
    fn who_waits_for_more_to_write_works_for_who_writes_meanwhile() {
        let hands = Hands::default();
        hands.begin(1, None);
        let hand = hands.take().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| hands.more_than(0));
            (0..20).for_each(|_| hands.run(pair()));
            drop(hand);
            assert_eq!(waits.join().unwrap(), None);
        });
    }

    #[test]
    fn who_writes_does_all_of_it_when_nobody_waits() {
        let hands = Hands::default();
        let done = Arc::new(AtomicUsize::new(0));
        let job = |_| -> Job {
            let done = Arc::clone(&done);
            Box::new(move || {
                done.fetch_add(1, Relaxed);
            })
        };
        hands.run((0..5).map(job).collect());
        hands.run(Vec::new());
        assert_eq!(done.load(Relaxed), 5);
    }

    /// Who writes goes on, and does not wait for what is not there any more.
    #[test]
    fn a_job_that_fails_is_over() {
        let hands = Hands::default();
        let writes = hands.writes();
        thread::scope(|scope| {
            let fails = scope.spawn(|| hands.written(writes));
            let (begins, has_begun) = channel();
            let own = move || has_begun.recv_timeout(PATIENCE).unwrap();
            let other = move || {
                begins.send(()).unwrap();
                panic!("as it is to");
            };
            hands.run(vec![Box::new(own), Box::new(other)]);
            assert!(fails.join().is_err());
        });
        assert_eq!(lock(&hands.state).working, 0);
    }
}
