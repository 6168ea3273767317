//! Reading a ring while the guest writes into it.
//!
//! Nothing that stands in the ring or in its cell is believed: a head that goes backwards or belongs
//! to another ring is counted as *corrupt* and not followed, one that jumps ahead only counts as
//! records written over, a record of a function that does not exist is counted and dropped.
//!
//! A slot can be reserved and not yet written, for as long as its writer is preempted. The reader
//! waits for such a slot for a while ([`Patience`]), then goes past it and looks again at every
//! poll until the ring has come round to it; a slot that was never written counts as *abandoned*, one
//! that a later lap has filled as *overwritten*. With [`Mode::Discard`] the ring does not come round to it:
//! it counts as full until the slot is written, or has kept it full for longer than patience allows while others asked for room.
//! So at the end each position between the first and the head has been delivered or is in exactly
//! one of the counts of [`Losses`].
//!
//! With [`Mode::Lossless`] who finds the ring full waits, and a slot may keep it full for much longer before it is
//! given up.

use terms::function::FunctionId;

use super::geometry::{Geometry, LIMIT_HOLD, LIMIT_NONE, LIMIT_OFF, Lap, Position};
use super::pending::Pending;
use super::run::{BATCH, Columns, Expected, Run};
use super::timeline::{Look, Timeline, Times};
use super::wanted::Asks;
use crate::record::{Beside, Detail, Format, Record};
use terms::choice::choices;
use trace::doubt::{TimeDoubt, TimeDoubts};

/// The words of a ring's cell ([`crate::stub::cell`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellWord {
    /// Advanced by stubs: see [`Position::word`].
    Head,
    /// Set by the host, and by stubs that end recording.
    Limit,
    /// Counted up by stubs that found head at the limit.
    Lost,
}

/// The host's access to the memory of one session's rings. Words are read and written whole; the
/// guest writes them at the same time.
pub trait RingMemory {
    /// Reads a word of the cell of `ring`.
    fn load(&self, ring: u16, word: CellWord) -> u64;
    /// Writes a word of the cell of `ring`.
    fn store(&self, ring: u16, word: CellWord, value: u64);
    /// Copies slots of `ring` from `slot` on; never asked for slots past the ring's end.
    fn copy(&self, ring: u16, slot: u64, into: &mut [u64]);
    /// Copies the second words of the records from `slot` on; only asked of rings whose records have two.
    fn copy_details(&self, ring: u16, slot: u64, into: &mut [u64]) {
        let _ = (ring, slot);
        into.fill(0);
    }
    /// Whether stubs can end recording by themselves, by the limit.
    fn can_halt(&self) -> bool {
        false
    }
    /// Writes `new` to a word of the cell of `ring`, in one step, if `old` is there. (Only asked where stubs write the limit.)
    fn exchange(&self, ring: u16, word: CellWord, old: u64, new: u64) {
        if self.load(ring, word) == old {
            self.store(ring, word, new);
        }
    }
}

choices! {
    /// What happens when a ring is full.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Mode {
        /// The oldest records are overwritten (flight recorder).
        Overwrite = "overwrite",
        /// New records are discarded, and counted.
        Discard = "discard",
        /// None: the vCPU waits until there is room.
        Lossless = "lossless",
    }
}

/// How long to wait for a slot that is reserved and not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// This many ticks of the clock, or until a quarter of the ring waits after it.
    Ticks(u64),
    /// No writer can still come: the vCPUs have ended or no stub can be running.
    Over,
}

impl Patience {
    /// How long a slot may keep a ring full in this mode.
    const fn of(self, mode: Mode) -> Option<u64> {
        match self {
            Self::Ticks(ticks) => Some(ticks.saturating_mul(mode.patience())),
            Self::Over => None,
        }
    }
}

/// How far a ring was written and read: the same again where nothing of either has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    head: Position,
    delivered: u64,
}

#[cfg(test)]
impl Progress {
    /// Up to that position, so many records of it.
    pub const fn of(head: u64, delivered: u64) -> Self {
        Self {
            head: Position(head),
            delivered,
        }
    }
}

/// One record, in the order of its ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Its time, in ticks of the host's clock; never before the one delivered before it, unless it was passed over before and
    /// its session traces no returns.
    pub ticks: u64,
    /// Why that may be wrong.
    pub doubt: Option<TimeDoubt>,
    /// The function; below the number that the reader was made with.
    pub function: FunctionId,
    /// Its position in the ring.
    pub position: Position,
    /// What its session says beside.
    pub beside: Beside,
}

/// What the words of one record say.
pub(super) struct Decoded {
    pub(super) time: u64,
    pub(super) function: FunctionId,
    pub(super) beside: Beside,
}

impl Decoded {
    /// None when the guest wrote nonsense.
    pub(super) fn by(format: Format, record: Record, detail: Detail) -> Option<Self> {
        let (time, beside) = match format {
            Format::Calls => (record.time(), Beside::Nothing),
            Format::Callers => (record.time(), Beside::Caller(detail.caller())),
            Format::Graph => (record.time(), Beside::Step(detail.step()?, detail.slot())),
            Format::GraphUntimed => {
                let (step, slot) = record.untimed();
                (0, Beside::Step(step?, slot))
            }
        };
        Some(Self {
            time,
            function: record.function(),
            beside,
        })
    }
}

/// Where a reader delivers to.
pub trait Sink {
    /// The next record.
    fn record(&mut self, record: Delivered);
    /// The next records.
    fn run(&mut self, run: Run<'_>) {
        for (index, (ticks, function)) in run.ticks.iter().zip(run.functions).enumerate() {
            self.record(Delivered {
                ticks: *ticks,
                doubt: None,
                function: *function,
                position: run.first.after(index as u64),
                beside: run.beside.of(index),
            });
        }
    }
    /// So many records are missing here.
    fn lost(&mut self, ticks: u64, records: u64);
    /// The next record was passed over before: others of this ring that came after it are delivered
    /// already.
    fn late(&mut self) {}
}

/// What is known to be missing from one ring, in records, since the reader was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Calls that stubs counted because the ring was full.
    pub discarded: u64,
    /// Records written over before they were read. [`Mode::Discard`] does not do that, unless more writers
    /// than a sixteenth of the ring has slots were preempted at the limit.
    pub overwritten: u64,
    /// Slots reserved by a writer that did not come back to write them, or came too late.
    pub abandoned: u64,
    /// Records that name no function: the guest wrote into its ring.
    pub invalid: u64,
    /// Times that the head was not where stubs can have left it: the guest wrote into its cell.
    pub corrupt: u64,
}

impl Losses {
    /// All records that were made, or should have been, and were not delivered.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn records(&self) -> u64 {
        // The guest can make the first count anything.
        self.discarded
            .saturating_add(self.overwritten)
            .saturating_add(self.abandoned)
            .saturating_add(self.invalid)
    }
}

/// So many times longer a slot may keep a ring full where nothing is to be lost. Its writer runs again soon: who waits
/// for it goes back into the guest each time the reader has been there. But it may have been killed, or be interrupted by
/// the very code that waits.
const LOSSLESS_PATIENCE: u64 = 10;

impl Mode {
    /// How many times longer than usual a slot may keep the ring full.
    const fn patience(self) -> u64 {
        match self {
            Self::Lossless => LOSSLESS_PATIENCE,
            Self::Overwrite | Self::Discard => 1,
        }
    }
}

/// Reads one ring.
#[derive(Debug)]
pub struct RingReader {
    ring: u16,
    geometry: Geometry,
    mode: Mode,
    functions: u32,
    format: Format,
    first: Position,
    tail: Position,
    head: Position,
    pending: Pending,
    waiting_since: Option<u64>,
    times: Times,
    lost_word: u64,
    delivered: u64,
    losses: Losses,
    doubts: TimeDoubts,
    on: bool,
    is_held: bool,
    /// Who has asked for room, where vCPUs wait.
    pub(crate) asks: Asks,
}

/// What one round goes by.
#[derive(Debug, Clone, Copy)]
struct Round<'a> {
    timeline: &'a Timeline,
    /// The look that the last record was timed by, which the next one is likely to be, too.
    look: Option<&'a Look>,
    /// The time of the last look.
    now: u64,
    patience: Patience,
}

impl<'a> Round<'a> {
    #[inline]
    fn look(&mut self, position: Position) -> Option<&'a Look> {
        if self.look.is_none_or(|look| position >= look.head) {
            self.look = self.timeline.of(position);
        }
        self.look
    }
}

/// Slots of a full ring that are left for writers that compared head with the limit before others
/// reserved: each of them can go past the limit by one record.
const fn slack(geometry: Geometry) -> u64 {
    geometry.slots() / 16
}

impl RingReader {
    /// So many functions can write into the ring from now on.
    pub fn set_functions(&mut self, functions: u32) {
        self.functions = functions;
    }

    /// A reader of an empty ring into which `functions` functions can write.
    #[must_use]
    pub fn new(ring: u16, geometry: Geometry, mode: Mode, functions: u32) -> Self {
        Self {
            ring,
            geometry,
            mode,
            functions,
            format: Format::Calls,
            first: geometry.first(),
            tail: geometry.first(),
            head: geometry.first(),
            pending: Pending::new(geometry.first()),
            waiting_since: None,
            times: Times::new(true),
            lost_word: 0,
            delivered: 0,
            losses: Losses::default(),
            doubts: TimeDoubts::default(),
            on: false,
            is_held: false,
            asks: Asks::default(),
        }
    }

    /// The same reader for records of this format.
    #[must_use]
    pub fn of(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The same reader for records whose time says something, or not.
    #[must_use]
    pub fn timed(mut self, is_timed: bool) -> Self {
        self.times = Times::new(is_timed);
        self
    }

    /// The same reader for a ring that was used before: `first` is after every record that an
    /// earlier user's writers can still store, so none of them is taken for one of ours.
    #[must_use]
    pub fn starting_at(mut self, first: Position) -> Self {
        self.first = first;
        self.tail = first;
        self.head = first;
        self
    }

    /// Sets the cell of a ring whose slots from the first position on hold zeros or records of
    /// earlier laps; tracing is off.
    pub fn initialise(&self, memory: &impl RingMemory) {
        memory.store(self.ring, CellWord::Limit, LIMIT_OFF);
        memory.store(self.ring, CellWord::Lost, 0);
        memory.store(self.ring, CellWord::Head, self.first.word(self.ring));
    }

    /// Lets stubs record, or stops them without touching text.
    pub fn switch(&mut self, memory: &impl RingMemory, on: bool) {
        self.on = on;
        self.store_limit(memory);
    }

    /// Has stubs that record count each call as lost instead, until [`Self::release`]: what the ring holds stays. Returns
    /// how many were lost before: stubs count from the store on, and a host's thread can be away after it.
    pub fn hold(&mut self, memory: &impl RingMemory) -> u64 {
        let before = discarded(self, memory);
        self.is_held = true;
        self.follow(memory);
        before
    }

    /// Lets stubs record again, if they did before and none has ended that.
    pub fn release(&mut self, memory: &impl RingMemory) {
        self.is_held = false;
        if self.on && memory.can_halt() {
            return memory.exchange(self.ring, CellWord::Limit, LIMIT_HOLD, self.limit());
        }
        self.store_limit(memory);
    }

    /// Its number.
    #[must_use]
    pub fn ring(&self) -> u16 {
        self.ring
    }

    /// Whether stubs are to record.
    #[cfg(feature = "internals")]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Looks at the head. The caller then looks at the clock and adds both to the [`Timeline`] for
    /// [`Self::drain_to`]: in this order every record before the head was timed before that.
    pub fn look(&mut self, memory: &impl RingMemory) -> Position {
        let word = memory.load(self.ring, CellWord::Head);
        match Position::of_word(word, self.ring) {
            Some(head) if head >= self.head => self.head = head,
            _ => self.losses.corrupt += 1,
        }
        self.head
    }

    /// As [`Self::drain_to`], all of what was written up to the last look, with which `timeline` ends.
    #[cfg(any(test, feature = "internals"))]
    pub fn drain(
        &mut self,
        memory: &impl RingMemory,
        timeline: &Timeline,
        patience: Patience,
        sink: &mut impl Sink,
    ) {
        self.drain_to(self.head, u64::MAX, memory, timeline, patience, sink);
    }

    /// Delivers what was written before `head`, which was that of some look, up to some record after so many (`most`). Whether
    /// more of it can be delivered at once. The last look is the last of `timeline`.
    pub fn drain_to(
        &mut self,
        head: Position,
        most: u64,
        memory: &impl RingMemory,
        timeline: &Timeline,
        patience: Patience,
        sink: &mut impl Sink,
    ) -> bool {
        let now = timeline.last().now;
        let end = self.tail.after(most);
        let mut round = Round {
            timeline,
            look: None,
            now,
            patience,
        };
        self.times.from(timeline.begin());
        self.skip_overwritten(now, sink);
        self.revisit_pending(memory, round, sink);
        let mut batch = [0; BATCH];
        let mut details = [0; BATCH];
        let mut columns = Columns::new();
        while self.tail < head {
            let slot = self.geometry.slot(self.tail);
            let count = head.since(self.tail).min(self.geometry.slots() - slot);
            let count = usize::try_from(count).unwrap_or(BATCH).min(BATCH);
            let Some(words) = batch.get_mut(..count) else {
                break;
            };
            memory.copy(self.ring, slot, words);
            if self.format.has_details() {
                // After the words: a stub stores the detail first, so it is there with its word.
                memory.copy_details(
                    self.ring,
                    slot,
                    details.get_mut(..count).unwrap_or_default(),
                );
            }
            let details = details.get(..count).unwrap_or_default();
            let is_taken = self.take_run(words, details, &mut columns, &mut round, sink)
                || self.take(words, details, &mut round, sink);
            if !is_taken {
                break;
            }
            // What is said of the ring as a whole comes after all of its records.
            if self.tail >= end && self.tail < head {
                self.follow(memory);
                return true;
            }
        }
        self.collect_discarded(memory, now, sink);
        if let Some(ticks) = patience.of(self.mode) {
            let (room, asked) = (self.room(), self.asks.and(self.lost_word));
            self.pending.release(self.head, room, now, asked, ticks);
        }
        self.follow(memory);
        false
    }

    /// Takes the words of consecutive slots from the tail on, if nothing is to be said of any of them but what it says itself.
    fn take_run(
        &mut self,
        words: &[u64],
        details: &[u64],
        columns: &mut Columns,
        round: &mut Round<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let (count, word) = (words.len() as u64, self.tail.word(self.ring));
        let Some(look) = round.look(self.tail) else {
            return false;
        };
        if look.doubt.is_some() || look.head < self.tail.after(count) {
            return false;
        }
        let expected = Expected {
            format: self.format,
            mark: self.geometry.mark(self.tail),
            spill: self.geometry.spill(word),
            functions: self.functions,
            moment: look.moment,
            last: self.times.last(),
            is_timed: self.times.is_timed(),
        };
        let Some(run) = columns.decode(self.tail, words, details, &expected) else {
            return false;
        };
        self.times
            .from(run.ticks.last().copied().unwrap_or_default());
        self.tail = self.tail.after(count);
        self.waiting_since = None;
        self.delivered += count;
        sink.run(run);
        true
    }

    /// Takes the words of consecutive slots from the tail on; false when it has to wait.
    fn take(
        &mut self,
        words: &[u64],
        details: &[u64],
        round: &mut Round<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let now = round.now;
        for (word, detail) in words.iter().zip(details) {
            let record = Record(*word);
            match self.geometry.compare(record, self.tail) {
                Lap::This => self.deliver(self.tail, record, Detail(*detail), round, sink),
                Lap::Later => self.miss(now, sink, |losses| &mut losses.overwritten),
                Lap::Earlier => {
                    if self.must_wait(now, round.patience) {
                        return false;
                    }
                    self.postpone(now, round.patience, sink);
                }
            }
            self.tail = self.tail.after(1);
            self.waiting_since = None;
        }
        true
    }

    fn deliver(
        &mut self,
        position: Position,
        record: Record,
        detail: Detail,
        round: &mut Round<'_>,
        sink: &mut impl Sink,
    ) {
        let now = round.now;
        let is_late = position < self.tail;
        if self.format.has_details() && detail.mark() != record.mark() {
            // A later lap has begun with the second word.
            self.miss(now, sink, |losses| &mut losses.overwritten);
            return;
        }
        let spill = self.geometry.spill(position.word(self.ring));
        let Some(said) = Decoded::by(self.format, record.without(spill), detail.without(spill))
            .filter(|said| said.function.0 < self.functions)
        else {
            self.miss(now, sink, |losses| &mut losses.invalid);
            return;
        };
        let look = round.look(position);
        let (ticks, doubt) = match is_late && !self.format.is_graph() {
            // Where nothing is put together it is as true as any other.
            true => self.times.of_late(round.timeline.begin(), look, said.time),
            false => self.times.next(look, said.time),
        };
        if let Some(doubt) = doubt {
            self.doubts.add(doubt, 1);
        }
        self.delivered += 1;
        sink.record(Delivered {
            ticks,
            doubt,
            function: said.function,
            position,
            beside: said.beside,
        });
    }

    fn miss(&mut self, now: u64, sink: &mut impl Sink, count: fn(&mut Losses) -> &mut u64) {
        *count(&mut self.losses) += 1;
        sink.lost(self.times.last().min(now), 1);
    }

    fn must_wait(&mut self, now: u64, patience: Patience) -> bool {
        let Patience::Ticks(ticks) = patience else {
            return false;
        };
        let since = *self.waiting_since.get_or_insert(now);
        let waiting = self.head.since(self.tail);
        let is_patient = now.saturating_sub(since) < ticks && waiting < self.geometry.slots() / 4;
        is_patient || (self.mode == Mode::Lossless && self.pending.is_full())
    }

    /// Leaves the slot at the tail for another look, or gives it up when there will be none.
    fn postpone(&mut self, now: u64, patience: Patience, sink: &mut impl Sink) {
        if patience == Patience::Over {
            self.miss(now, sink, |losses| &mut losses.abandoned);
            return;
        }
        if self.pending.push(self.tail).is_some() {
            self.miss(now, sink, |losses| &mut losses.abandoned);
        }
    }

    /// Looks again at the slots that were passed over.
    fn revisit_pending(
        &mut self,
        memory: &impl RingMemory,
        mut round: Round<'_>,
        sink: &mut impl Sink,
    ) {
        let (now, patience) = (round.now, round.patience);
        for position in self.pending.take() {
            // They are older than those that the last record was timed with.
            round.look = None;
            let (mut word, mut detail) = ([0], [0]);
            let slot = self.geometry.slot(position);
            memory.copy(self.ring, slot, &mut word);
            if self.format.has_details() {
                memory.copy_details(self.ring, slot, &mut detail);
            }
            let ([word], [detail]) = (word, detail);
            match self.geometry.compare(Record(word), position) {
                Lap::This => {
                    sink.late();
                    self.deliver(position, Record(word), Detail(detail), &mut round, sink);
                }
                Lap::Earlier if self.can_still_come(position, patience) => {
                    self.pending.push(position);
                }
                // The next lap took the slot from a writer that had not come for so long.
                Lap::Later if self.mode != Mode::Overwrite => {
                    self.miss(now, sink, |losses| &mut losses.abandoned);
                }
                Lap::Later => self.miss(now, sink, |losses| &mut losses.overwritten),
                Lap::Earlier => self.miss(now, sink, |losses| &mut losses.abandoned),
            }
        }
    }

    /// The slot is its writer's until the next lap has reserved it.
    fn can_still_come(&self, position: Position, patience: Patience) -> bool {
        patience != Patience::Over && self.head.since(position) <= self.geometry.slots()
    }

    /// Records that fit before the ring is full.
    fn room(&self) -> u64 {
        self.geometry.slots() - slack(self.geometry)
    }

    /// Goes past what has been written over since the last poll.
    fn skip_overwritten(&mut self, now: u64, sink: &mut impl Sink) {
        let oldest = Position(self.head.0.saturating_sub(self.geometry.slots()));
        let missed = oldest.since(self.tail);
        if missed > 0 {
            self.losses.overwritten += missed;
            self.tail = oldest;
            self.waiting_since = None;
            sink.lost(self.times.last().min(now), missed);
        }
    }

    fn collect_discarded(&mut self, memory: &impl RingMemory, now: u64, sink: &mut impl Sink) {
        let word = discarded(self, memory);
        let missed = word.wrapping_sub(self.lost_word);
        // A count that goes backwards is the guest's writing.
        if missed > u64::MAX / 2 {
            self.losses.corrupt += 1;
        } else if missed > 0 {
            self.losses.discarded = self.losses.discarded.saturating_add(missed);
            sink.lost(self.times.last().min(now), missed);
        }
        self.lost_word = word;
    }

    /// Has the limit follow what was read, unless a stub has ended recording.
    fn follow(&self, memory: &impl RingMemory) {
        if !self.on || !memory.can_halt() {
            return self.store_limit(memory);
        }
        let now = memory.load(self.ring, CellWord::Limit);
        if now > LIMIT_HOLD {
            // One may do so right now: then its word stays.
            memory.exchange(self.ring, CellWord::Limit, now, self.limit());
        }
    }

    fn store_limit(&self, memory: &impl RingMemory) {
        memory.store(self.ring, CellWord::Limit, self.limit());
    }

    /// Up to where stubs may write.
    fn limit(&self) -> u64 {
        match (self.on, self.mode) {
            (false, _) => LIMIT_OFF,
            (true, _) if self.is_held => LIMIT_HOLD,
            (true, Mode::Overwrite) => LIMIT_NONE,
            (true, Mode::Discard | Mode::Lossless) => self
                .pending
                .kept_or(self.tail)
                .after(self.room())
                .word(self.ring),
        }
    }

    /// What is missing so far. Slots passed over that may still be written are not counted yet.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// Records delivered of which the time is in doubt.
    #[must_use]
    pub fn doubts(&self) -> &TimeDoubts {
        &self.doubts
    }

    /// So many records that were delivered turn out to be in doubt.
    pub fn doubt_delivered(&mut self, doubt: TimeDoubt, records: u64) {
        self.doubts.add(doubt, records);
    }

    /// Whether whoever is on the way to it finds room, as of the last look: half of it is free. One place is not enough, since many
    /// threads can be on their way.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.mode == Mode::Overwrite
            || self.head.since(self.pending.kept_or(self.tail)) <= self.room() / 2
    }

    /// Whether everything up to the look that found this head was delivered, or passed over: nothing is waited for.
    #[must_use]
    pub fn is_drained_to(&self, head: Position) -> bool {
        self.tail >= head
    }

    /// Whether everything up to the last look was delivered, and no writer is still to come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_drained_to(self.head) && self.pending.is_empty()
    }

    /// Records delivered so far.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// How far it was written, as of the last look, and read.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        Progress {
            head: self.head,
            delivered: self.delivered,
        }
    }

    /// Records that were written over before anybody had read them, as of the last look: also where nobody reads any more.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        let oldest = Position(self.head.0.saturating_sub(self.geometry.slots()));
        let unread = oldest.max(self.tail).since(self.tail);
        self.losses.overwritten.saturating_add(unread)
    }

    /// Records reserved so far, as of the last look.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.head.since(self.first)
    }

    /// The position of its first record.
    #[must_use]
    pub fn first(&self) -> Position {
        self.first
    }

    /// The last position looked at.
    #[must_use]
    pub fn head(&self) -> Position {
        self.head
    }
}

/// Whether stubs record: they are to, and none has ended it.
#[must_use]
pub fn is_recording(reader: &RingReader, memory: &impl RingMemory) -> bool {
    let is_halted = || memory.load(reader.ring, CellWord::Limit) <= LIMIT_HOLD;
    reader.on && !(memory.can_halt() && is_halted())
}

/// How many calls stubs have counted so far because the ring was full, or held.
#[must_use]
pub fn discarded(reader: &RingReader, memory: &impl RingMemory) -> u64 {
    memory.load(reader.ring, CellWord::Lost)
}
