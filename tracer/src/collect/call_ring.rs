//! One ring of calls that is read, and what has been read out of it and is not written yet. Each has a lock of its own
//! ([`SharedCallRing`]): so several threads read different rings at the same time.

use std::sync::{Arc, Mutex};

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
    pub const fn set_written(&mut self, is_written: bool) {
        self.is_written = is_written;
    }

    /// Lets stubs record, or stops them.
    pub fn switch(&mut self, is_on: bool) {
        self.source.reader.switch(&self.rings, is_on);
    }

    /// Nothing was recorded for some time up to now, whatever was open is not certain any more.
    pub fn note_gap(&mut self, now_ns: u64) {
        let origin = Origin::Calls(self.source.reader.ring());
        self.backlog
            .push(Batch::of(origin, now_ns, RecordKind::Lost(0)));
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
        lock(&self.stacks).begin_round();
        let mut encoder = std::mem::replace(&mut self.encoder, Encoder::Rows);
        let (records, count) = match &mut encoder {
            Encoder::Rows => {
                let mut rows = self.rooms.rows();
                let count = self.read_into(&mut rows, found, patience, continues);
                (Records::Rows(rows), count)
            }
            Encoder::Compact(coder) => {
                let count = self.read_into(coder, found, patience, continues);
                (Records::Compact(coder.take()), count)
            }
            Encoder::DataFile(coder) => {
                let count = self.read_into(coder, found, patience, continues);
                (Records::DataFile(coder.take()), count)
            }
            Encoder::Columns(columns) => {
                columns.use_room(self.rooms.steps());
                let count = self.read_into(columns, found, patience, continues);
                (Records::Columns(columns.take()), count)
            }
        };
        self.encoder = encoder;
        let seen_to = self.source.seen_to(found);
        self.backlog.push(Batch {
            origin: Origin::Calls(self.source.reader.ring()),
            records,
            values: 0,
            looked_ns: seen_to.map(|ticks| self.time.run.nanoseconds(ticks)),
            until_ns: self.time.now_ns(),
        });
        count
    }

    fn read_into(
        &mut self,
        form: &mut impl Form,
        found: Found,
        patience: Patience,
        continues: &mut Continues,
    ) -> usize {
        let mut sink = CallSink {
            clock: &self.time.run,
            rings: &self.rings,
            stacks: &self.stacks,
            to: form,
            is_late: false,
            count: 0,
        };
        let source = &mut self.source;
        if source.drain_to(found.head, AT_ONCE as u64, &self.rings, patience, &mut sink) {
            *continues = Continues::From(found);
        }
        sink.count
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

    /// What takes records that are copied, as rows.
    pub fn copying<'a>(
        &'a mut self,
        to: &'a mut Vec<Record>,
    ) -> (&'a Source, CallSink<'a, Vec<Record>>) {
        lock(&self.stacks).begin_round();
        let sink = CallSink {
            clock: &self.time.run,
            rings: &self.rings,
            stacks: &self.stacks,
            to,
            is_late: false,
            count: 0,
        };
        (&self.source, sink)
    }
}
