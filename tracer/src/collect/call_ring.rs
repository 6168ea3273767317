//! One ring of calls that is read, and what has been read out of it and is not written yet. Each has a lock of its own
//! ([`SharedCallRing`]): so several threads read different rings at the same time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::clock::RunClock;
use crate::ring::geometry::Position;
use crate::ring::reader::{Patience, Progress};
use crate::stub::mirror::stacks::Stacks;
use trace::event::{Record, RecordKind};
use trace::export::uftrace::Entries;
use trace::form::Form;
use trace::stream::Origin;

use super::backlog::{Backlog, Batch, Records};
use super::call_sink::CallSink;
use super::encoder::{AT_ONCE, Encoder, Encoding};
use super::looks::lock;
use super::ring_clock::TraceTime;
use super::rings::SharedRings;
use super::rooms::Rooms;
use super::source::{Found, Source};

/// Whether reading a ring is not over yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Continues {
    /// It is, or has not begun.
    No,
    /// It is not: so the ring was found when it began. Who asks looks meanwhile, and what is reserved since is for the next
    /// round: a round that was to read that, too, would never be over beside one who asks again and again.
    From(Found),
}

/// What the rings of a session have in common.
#[derive(Debug)]
pub(super) struct Shared<'a> {
    pub rings: &'a SharedRings,
    pub time: &'a TraceTime,
    pub stacks: Arc<Mutex<Stacks>>,
    pub rooms: Rooms,
}

/// One ring, for who reads it and who asks.
pub(super) type SharedCallRing = Arc<Mutex<CallRing>>;

/// Gaps that wait until it is known what was before them.
const GAPS_MAX: usize = 1 << 10;

/// Nothing was recorded for some time.
#[derive(Debug, Clone, Copy)]
struct Gap {
    /// What the ring had before it.
    head: Position,
    /// When it was over.
    until_ns: u64,
}

/// A ring of calls.
#[derive(Debug)]
pub(super) struct CallRing {
    pub source: Source,
    rings: SharedRings,
    time: TraceTime,
    /// Those of the session, as is the room for records.
    stacks: Arc<Mutex<Stacks>>,
    rooms: Rooms,
    /// How records are wanted.
    encoder: Encoder,
    /// Whether records are taken out.
    is_written: bool,
    /// What was taken out and nobody has written yet.
    backlog: Backlog,
    /// What is to be said when all has been read that was before it: the oldest first.
    gaps: VecDeque<Gap>,
}

impl CallRing {
    /// The ring of `source`.
    pub fn new(source: Source, shared: &Shared<'_>, is_written: bool) -> Self {
        Self {
            source,
            rings: shared.rings.clone(),
            time: shared.time.clone(),
            stacks: Arc::clone(&shared.stacks),
            rooms: shared.rooms.clone(),
            encoder: Encoder::Rows,
            is_written,
            backlog: Backlog::default(),
            gaps: VecDeque::new(),
        }
    }

    /// How its records are wanted.
    pub fn encode(&mut self, encoding: Encoding) {
        self.encoder = encoding.into();
    }

    /// Functions have come: so many can be in its records, with these entries.
    pub fn extend(&mut self, functions: u32, entries: &Entries) {
        self.source.reader.set_functions(functions);
        self.encoder.extend(entries);
    }

    /// Records are taken out from now on, or not any more.
    pub fn set_written(&mut self, is_written: bool) {
        self.is_written = is_written;
        if !is_written {
            self.gaps.clear();
        }
    }

    /// Lets stubs record, or stops them.
    pub fn switch(&mut self, is_on: bool) {
        self.source.reader.switch(&self.rings, is_on);
    }

    /// Nothing was recorded for some time up to now, whatever was open is not certain any more: that is said after all that
    /// the ring had at the last look, also of what is still waited for.
    pub fn note_gap(&mut self, now_ns: u64) {
        let gap = Gap {
            head: self.source.reader.head(),
            until_ns: now_ns,
        };
        self.gaps.push_back(gap);
        self.say_gaps(None);
        // Calls of other rings lie between them, so each is said; too early where a guest makes that many.
        if self.gaps.len() > GAPS_MAX
            && let Some(gap) = self.gaps.pop_front()
        {
            self.say_gap(gap, None);
        }
    }

    /// Whether the next gap is one of which all has been read that was before it.
    fn is_at_gap(&self) -> bool {
        let reader = &self.source.reader;
        let next = self.gaps.front();
        next.is_some_and(|gap| reader.is_drained_to(gap.head))
    }

    /// Says those of which all has been read that was before them. What comes after the last is later than `looked_ns`, if that is
    /// known. Whether there were any.
    fn say_gaps(&mut self, looked_ns: Option<u64>) -> bool {
        let mut has_said = false;
        while self.is_at_gap()
            && let Some(gap) = self.gaps.pop_front()
        {
            let looked_ns = looked_ns.filter(|_| !self.is_at_gap());
            self.say_gap(gap, looked_ns);
            has_said = true;
        }
        has_said
    }

    fn say_gap(&mut self, gap: Gap, looked_ns: Option<u64>) {
        let origin = Origin::Calls(self.source.reader.ring());
        self.backlog.push(Batch {
            looked_ns,
            ..Batch::of(origin, gap.until_ns, RecordKind::Lost(0))
        });
    }

    /// Looks at the head.
    pub fn look(&mut self) {
        self.source.look(&self.rings);
    }

    /// How far it was written and read.
    pub const fn progress(&self) -> Progress {
        self.source.reader.progress()
    }

    /// What was taken out, in records.
    pub fn waiting(&self) -> usize {
        self.backlog.weight()
    }

    /// Whether no more is taken out while somebody else writes.
    pub fn waits_much(&self) -> bool {
        self.waiting() >= self.encoder.waiting_max()
    }

    /// Gives all that was taken out to who writes it.
    pub fn hand_over(&mut self, to: &mut Backlog) {
        to.take(&mut self.backlog);
    }

    /// Takes out some of what was found when this began: what fits a processor's cache, so that it is written before it has
    /// left that. Returns how many records there were.
    pub fn read_some(&mut self, patience: Patience, continues: &mut Continues) -> usize {
        let found = match std::mem::replace(continues, Continues::No) {
            Continues::From(found) => found,
            Continues::No => self.source.find(&self.rings),
        };
        if !self.is_written {
            return 0;
        }
        let next = self.gaps.front();
        let to = next.map_or(found.head, |gap| gap.head.min(found.head));
        let (records, count, is_left) = self.read_to(to, patience);
        let seen_to = self.source.seen_to(found);
        let looked_ns = seen_to.map(|ticks| self.time.run.nanoseconds(ticks));
        self.backlog.push(Batch {
            origin: Origin::Calls(self.source.reader.ring()),
            records,
            values: 0,
            looked_ns: looked_ns.filter(|_| !self.is_at_gap()),
            until_ns: self.time.now_ns(),
        });
        let has_said = self.say_gaps(looked_ns);
        if is_left || has_said && !self.source.reader.is_drained_to(found.head) {
            *continues = Continues::From(found);
        }
        count
    }

    /// Takes out some of what there is before `to`, as it is wanted. Returns how many records there were, and whether more can be
    /// taken out at once.
    fn read_to(&mut self, to: Position, patience: Patience) -> (Records, usize, bool) {
        lock(&self.stacks).begin_round();
        let mut encoder = std::mem::replace(&mut self.encoder, Encoder::Rows);
        let (records, (count, is_left)) = match &mut encoder {
            Encoder::Rows => {
                let mut rows = self.rooms.rows();
                let read = self.read_into(&mut rows, to, patience);
                (Records::Rows(rows), read)
            }
            Encoder::Compact(coder) => {
                let read = self.read_into(coder, to, patience);
                (Records::Compact(coder.take()), read)
            }
            Encoder::DataFile(coder) => {
                let read = self.read_into(coder, to, patience);
                (Records::DataFile(coder.take()), read)
            }
            Encoder::Columns(columns) => {
                columns.use_room(self.rooms.steps());
                let read = self.read_into(columns, to, patience);
                (Records::Columns(columns.take()), read)
            }
        };
        self.encoder = encoder;
        (records, count, is_left)
    }

    fn read_into(
        &mut self,
        form: &mut impl Form,
        to: Position,
        patience: Patience,
    ) -> (usize, bool) {
        let mut sink = CallSink {
            clock: &self.time.run,
            rings: &self.rings,
            stacks: &self.stacks,
            to: form,
            is_late: false,
            count: 0,
        };
        let source = &mut self.source;
        let is_left = source.drain_to(to, AT_ONCE as u64, &self.rings, patience, &mut sink);
        (sink.count, is_left)
    }

    /// The same of all of it.
    pub fn read(&mut self, patience: Patience) {
        let mut continues = Continues::No;
        loop {
            self.read_some(patience, &mut continues);
            if continues == Continues::No {
                return;
            }
        }
    }

    /// What makes records of what is copied out of it.
    pub fn copying(&self) -> Copying {
        Copying {
            clock: self.time.run,
            rings: self.rings.clone(),
            stacks: Arc::clone(&self.stacks),
        }
    }
}

/// What makes records of what was copied out of a ring, which is not needed for it.
#[derive(Debug)]
pub(super) struct Copying {
    clock: RunClock,
    rings: SharedRings,
    stacks: Arc<Mutex<Stacks>>,
}

impl Copying {
    /// What takes them, as rows.
    pub fn sink<'a>(&'a self, to: &'a mut Vec<Record>) -> CallSink<'a, Vec<Record>> {
        lock(&self.stacks).begin_round();
        CallSink {
            clock: &self.clock,
            rings: &self.rings,
            stacks: &self.stacks,
            to,
            is_late: false,
            count: 0,
        }
    }
}
