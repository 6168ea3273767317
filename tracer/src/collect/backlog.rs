//! What has been read out of rings and is not written yet: handed from who reads to who writes, so that a disk that takes
//! nothing keeps nobody from reading or asking.

use std::sync::Arc;

use image::Image;

use crate::event_formats::EventFormats;
use trace::columns::Columns;
use trace::event::{Record, RecordKind};
use trace::export::compact::Coded;
use trace::export::probes::ProbeNote;
use trace::export::uftrace::{CodedCalls, Metadata};
use trace::live::Listener;
use trace::stream::Origin;

/// Records that may wait without anybody who writes: then no more are taken out of the rings out of turn.
pub const RECORDS_MAX: usize = 1 << 20;

/// The records of one ring, in its order.
#[derive(Debug)]
pub enum Records {
    /// As a stream takes them.
    Rows(Vec<Record>),
    /// As a compact trace takes them.
    Compact(Coded),
    /// As a data file takes them.
    DataFile(CodedCalls),
    /// As who puts calls together takes them.
    Columns(Columns),
}

impl Records {
    /// As rows; if they have to be made, in this `room`.
    pub fn into_rows(self, mut room: Vec<Record>) -> Vec<Record> {
        match self {
            Self::Rows(rows) => return rows,
            Self::Compact(coded) => coded.decode(&mut room),
            Self::DataFile(coded) => coded.decode(&mut room),
            Self::Columns(columns) => columns.decode(&mut room),
        }
        room
    }
}

/// What one ring brought in one round.
#[derive(Debug)]
pub struct Batch {
    /// The ring.
    pub origin: Origin,
    /// Its records, in its order.
    pub records: Records,
    /// Bytes of their values beside them.
    pub values: usize,
    /// What it brings later was reserved after this time; none when something is waited for.
    pub looked_ns: Option<u64>,
    /// The end of this round: what is lost after the last record was lost by then.
    pub until_ns: u64,
}

impl Batch {
    /// A record of the host's own.
    #[must_use]
    pub fn of(origin: Origin, time_ns: u64, kind: RecordKind) -> Self {
        Self {
            origin,
            records: Records::Rows(vec![Record { time_ns, kind }]),
            values: 0,
            looked_ns: None,
            until_ns: time_ns,
        }
    }

    /// What a ring holds, of a guest that records nothing meanwhile.
    #[must_use]
    pub const fn held(origin: Origin, records: Vec<Record>) -> Self {
        Self {
            origin,
            records: Records::Rows(records),
            values: 0,
            looked_ns: None,
            until_ns: 0,
        }
    }

    /// What it takes of [`RECORDS_MAX`].
    fn weight(&self) -> usize {
        1 + self.values / size_of::<Record>()
            + match &self.records {
                Records::Rows(rows) => rows.len(),
                Records::Compact(coded) => coded.records(),
                Records::DataFile(coded) => coded.records(),
                Records::Columns(columns) => columns.records(),
            }
    }
}

/// How many records there are, and how many are lost.
#[must_use]
pub fn count(rows: &[Record]) -> (u64, u64) {
    let add = |(records, lost): (u64, u64), record: &Record| match record.kind {
        RecordKind::Lost(count) => (records, lost.saturating_add(count)),
        _ => (records + 1, lost),
    };
    rows.iter().fold((0, 0), add)
}

/// What the trace is to be told; of each the newest, which has what was before.
#[derive(Debug, Default)]
pub struct News {
    /// Functions have come.
    pub image: Option<Arc<Image>>,
    /// Events have come.
    pub formats: Option<Arc<EventFormats>>,
    /// Probes have come.
    pub probes: Option<Vec<ProbeNote>>,
    /// What the trace says of itself has changed.
    pub metadata: Option<Metadata>,
    /// More listen.
    pub listeners: Vec<Listener>,
}

/// What waits to be written.
#[derive(Debug, Default)]
pub struct Backlog {
    /// What comes first: it describes the records.
    pub news: News,
    batches: Vec<Batch>,
}

impl Backlog {
    /// Adds what was read.
    pub fn push(&mut self, batch: Batch) {
        self.batches.push(batch);
    }

    /// What waits, in records.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.batches.iter().map(Batch::weight).sum()
    }

    /// What the trace is to be told.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// All that was read, one after the other.
    pub fn drain(&mut self) -> impl Iterator<Item = Batch> {
        self.batches.drain(..)
    }

    /// Takes all that was read of `from`, after what is here.
    pub fn take(&mut self, from: &mut Self) {
        self.batches.append(&mut from.batches);
    }
}
