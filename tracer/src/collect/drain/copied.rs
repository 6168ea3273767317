//! What the rings of a session held, on its way into a trace: a part of one ring after the other, of the one that has come the
//! least far, so that what waits for its place among the others is little.

use std::collections::VecDeque;

use trace::doubt::TimeDoubts;
use trace::event::{Record, RecordKind};
use trace::stream::Origin;

use super::Drain;
use crate::collect::backlog::{Batch, count};
use crate::collect::copied_points::CopiedPoints;
use crate::ring::geometry::Position;
use crate::ring::reader::Sink;
use crate::ring::snapshot::Copied;

use super::off_times::OffTime;

/// The copies of all rings of a session.
#[derive(Debug)]
pub(super) struct CopiedRings {
    rings: Vec<CopiedRing>,
    /// When they were looked at, in nanoseconds: what is not among them was recorded later.
    end_ns: u64,
    /// How many records there were so far, and how many are lost.
    counted: (u64, u64),
}

/// The copy of one ring.
#[derive(Debug)]
pub(super) struct CopiedRing {
    origin: Origin,
    held: Held,
    /// What it had refused, and by when: that has no place among its slots.
    refused: (u64, u64),
    /// What it brings later is not before this time.
    seen_ns: u64,
    /// Whether some of it was before the time from which it is wanted.
    is_cut: bool,
    is_over: bool,
}

/// What it held.
#[derive(Debug)]
pub(super) enum Held {
    /// Calls; and the times in which nothing was recorded, of which the first ring tells for all.
    Calls(Copied, VecDeque<OffTime>),
    /// Events.
    Points(CopiedPoints),
}

impl CopiedRings {
    /// These, which were looked at after `end_ns`.
    pub const fn new(rings: Vec<CopiedRing>, end_ns: u64) -> Self {
        Self {
            rings,
            end_ns,
            counted: (0, 0),
        }
    }

    /// How many records there were, and how many are lost.
    pub const fn counted(&self) -> (u64, u64) {
        self.counted
    }

    /// How many of them have times that may be wrong.
    pub fn doubts(&self) -> TimeDoubts {
        let mut doubts = TimeDoubts::default();
        for ring in &self.rings {
            doubts.add_all(&match &ring.held {
                Held::Calls(copied, _) => copied.doubts(),
                Held::Points(copied) => copied.doubts(),
            });
        }
        doubts
    }

    /// The next records from a time on of the ring that has come the least far.
    pub fn next(&mut self, drain: &Drain, from_ns: u64) -> Option<Batch> {
        let left = self.rings.iter_mut().filter(|ring| !ring.is_over);
        let ring = left.min_by_key(|ring| ring.seen_ns)?;
        let rows = ring.next_rows(drain);
        if ring.is_over {
            ring.seen_ns = ring.seen_ns.max(self.end_ns);
        }
        let rows = ring.since(rows, from_ns);
        let (records, lost) = count(&rows);
        self.counted.0 += records;
        self.counted.1 = self.counted.1.saturating_add(lost);
        Some(Batch {
            looked_ns: Some(ring.seen_ns),
            until_ns: ring.seen_ns,
            ..Batch::held(ring.origin, rows)
        })
    }
}

impl CopiedRing {
    /// What it held, and how much it had refused by when.
    pub const fn new(origin: Origin, held: Held, refused: (u64, u64)) -> Self {
        Self {
            origin,
            held,
            refused,
            seen_ns: 0,
            is_cut: false,
            is_over: false,
        }
    }

    fn next_rows(&mut self, drain: &Drain) -> Vec<Record> {
        let clock = &drain.time.run;
        let (refused, by) = self.refused;
        let mut rows = Vec::new();
        let seen = match &mut self.held {
            Held::Calls(copied, off) => {
                let index = match self.origin {
                    Origin::Calls(ring) => usize::from(ring),
                    Origin::Points(_) | Origin::Clock | Origin::Host(_) => 0,
                };
                if let Some(calls) = drain.calls.ring(index) {
                    let mut sink = calls.copying(&mut rows);
                    next_calls(copied, off, &mut sink);
                    self.is_over = copied.is_over() && off.is_empty();
                    if self.is_over && refused > 0 {
                        sink.lost(by, refused);
                    }
                } else {
                    self.is_over = true;
                }
                copied.last()
            }
            Held::Points(copied) => {
                self.is_over = copied.deliver_some(self.refused, clock, &mut rows);
                copied.last()
            }
        };
        self.seen_ns = self.seen_ns.max(clock.nanoseconds(seen));
        rows
    }

    /// The records without those of before this time. Calls of which the beginning is left out are not certain.
    fn since(&mut self, mut rows: Vec<Record>, from_ns: u64) -> Vec<Record> {
        let all = rows.len();
        rows.retain(|record| record.time_ns >= from_ns);
        self.is_cut |= rows.len() < all && matches!(self.origin, Origin::Calls(_));
        if self.is_cut && (self.is_over || !rows.is_empty()) {
            self.is_cut = false;
            let gap = Record {
                time_ns: from_ns,
                kind: RecordKind::Lost(0),
            };
            rows.insert(0, gap);
        }
        rows
    }
}

/// Delivers the next calls, and what is known of when nothing was recorded.
fn next_calls(copied: &mut Copied, off: &mut VecDeque<OffTime>, sink: &mut impl Sink) {
    while let Some(next) = off.front().copied()
        && (next.head <= copied.position() || copied.is_over())
    {
        copied.say_missing(sink);
        // Nothing is missing; what is open is not certain any more.
        sink.lost(next.until, 0);
        copied.lost_after(next.until);
        off.pop_front();
    }
    let to = off.front().map_or(Position(u64::MAX), |next| next.head);
    copied.deliver_some(to, sink);
    if copied.is_over() && off.is_empty() {
        copied.say_missing(sink);
    }
}
