//! What has been read out of rings and is not written yet: handed from who reads to who writes, so that a disk that takes
//! nothing keeps nobody from reading or asking.

use std::sync::Arc;

use image::Image;

use crate::event_formats::EventFormats;
use trace::event::{Event, PointEvent};
use trace::export::probes::ProbeNote;
use trace::export::uftrace::{ClockStall, Metadata};

/// Events that may wait without anybody who writes: then no more are taken out of the rings out of turn.
const EVENTS_MAX: usize = 1 << 20;

/// What one ring of calls brought in one round.
#[derive(Debug, Default)]
pub struct Calls {
    /// The ring.
    pub ring: u16,
    /// Its events.
    pub events: Vec<Event>,
    /// What it brings later was reserved after this time; none when something is waited for.
    pub looked_ns: Option<u64>,
    /// The end of this round, if the guest runs.
    pub until_ns: Option<u64>,
}

impl Calls {
    /// When the loss that `index` tells of was over: by its place in the ring before the next record,
    /// and with no record after it, at some time up to the end of this round.
    #[must_use]
    pub fn loss_until(&self, index: usize) -> u64 {
        let next = self.events.get(index + 1).map(|next| next.time_ns);
        next.or(self.until_ns).unwrap_or_default()
    }
}

/// What all rings of events brought in one round.
#[derive(Debug)]
pub struct Points {
    /// Those of one vCPU in the order of time.
    pub events: Vec<PointEvent>,
    /// What their fields are.
    pub formats: Arc<EventFormats>,
    /// What these rings bring later was reserved after these times.
    pub looked: Vec<(u16, u64)>,
}

/// Something that belongs in the trace, in the order in which it was read.
#[derive(Debug)]
pub enum Batch {
    /// Of a ring of calls.
    Calls(Calls),
    /// Of the rings of events.
    Points(Points),
    /// Nothing was recorded for some time up to this one.
    Gap(u64),
    /// The clock was late.
    Stall(ClockStall),
}

impl Batch {
    /// What it takes of [`EVENTS_MAX`].
    const fn weight(&self) -> usize {
        match self {
            Self::Calls(calls) => calls.events.len() + 1,
            Self::Points(points) => points.events.len() + 1,
            Self::Gap(_) | Self::Stall(_) => 1,
        }
    }
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
}

/// What waits to be written.
#[derive(Debug, Default)]
pub struct Backlog {
    /// What comes first: it describes the events.
    pub news: News,
    batches: Vec<Batch>,
    /// Room of what has been written.
    spare: Vec<Event>,
}

impl Backlog {
    /// Adds what was read.
    pub fn push(&mut self, batch: Batch) {
        self.batches.push(batch);
    }

    /// Whether so much waits that no more is to be read out of turn.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.batches.iter().map(Batch::weight).sum::<usize>() >= EVENTS_MAX
    }

    /// Room for events.
    pub fn room(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.spare)
    }

    /// What the trace is to be told.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Has everything written, one after the other, and keeps the room that it took.
    pub fn drain(&mut self, mut write: impl FnMut(&Batch)) {
        for batch in self.batches.drain(..) {
            write(&batch);
            if let Batch::Calls(mut calls) = batch {
                calls.events.clear();
                self.spare = calls.events;
            }
        }
    }

    /// Takes all of `from`. This one has been written: its room is what the next events of `from` come into.
    pub fn take(&mut self, from: &mut Self) {
        std::mem::swap(self, from);
    }
}
