//! What the rings of a session held, on its way into a trace: a part of one ring after the other, of the one that has come the
//! least far, so that what waits for its place among the others is little.

use std::collections::VecDeque;

use trace::doubt::TimeDoubts;
use trace::event::{Record, RecordKind};
use trace::stream::Origin;

use crate::clock::RunClock;
use crate::collect::backlog::{Batch, Records, count};
use crate::collect::call_ring::Copying;
use crate::collect::copied_points::CopiedPoints;
use crate::ring::geometry::Position;
use crate::ring::snapshot::Copied;

use super::off_times::OffTime;
use super::refused::RefusedBy;

/// The copies of all rings of a session.
#[derive(Debug)]
pub(super) struct CopiedRings {
    rings: Vec<CopiedRing>,
    /// What is next, before anything that the rings have left; none before each has brought its first part.
    ready: Option<VecDeque<Batch>>,
    clock: RunClock,
    /// When they were looked at, in nanoseconds: what is not among them was recorded later.
    end_ns: u64,
    /// How many records there were so far, and how many are lost.
    counted: (u64, u64),
}

/// The copy of one ring.
#[derive(Debug)]
pub(super) struct CopiedRing {
    origin: Origin,
    held: HeldRecords,
    /// What it had refused, and by when, as far as that has not been said.
    refused: VecDeque<RefusedBy>,
    /// What it brings later is not before this time.
    seen_ns: u64,
    /// What was left out of it that has not been said yet.
    cut: Cut,
    is_over: bool,
}

/// What was before the time from which a ring is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Nothing.
    Nothing,
    /// Records: the last was one.
    Records,
    /// At last a loss, which can have gone on until the next record.
    Loss,
}

/// What it held.
#[derive(Debug)]
pub(super) enum HeldRecords {
    /// Calls; and the times in which nothing was recorded, of which the first ring tells for all.
    Calls(Copied, VecDeque<OffTime>, Copying),
    /// Events.
    Points(CopiedPoints),
}

/// What one ring brings in one go.
#[derive(Debug)]
enum Part {
    /// Records, and by when what is lost at their end was lost, if that was before the ring was looked at.
    Rows(Vec<Record>, Option<u64>),
    /// Nothing was recorded on any vCPU, up to this time. By itself: with records after it, it would go on until the next.
    Off(u64),
}

impl CopiedRings {
    /// These, which were looked at after `end_ns`, by this clock.
    pub const fn new(rings: Vec<CopiedRing>, clock: RunClock, end_ns: u64) -> Self {
        Self {
            rings,
            ready: None,
            clock,
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
                HeldRecords::Calls(copied, ..) => copied.doubts(),
                HeldRecords::Points(copied) => copied.doubts(),
            });
        }
        doubts
    }

    /// The next records from a time on of the ring that has come the least far.
    pub fn next(&mut self, from_ns: u64) -> Option<Batch> {
        let (end_ns, clock) = (self.end_ns, &self.clock);
        let rings = &mut self.rings;
        let ready = self
            .ready
            .get_or_insert_with(|| begin(rings, clock, (from_ns, end_ns)));
        if ready.is_empty() {
            let left = rings.iter_mut().filter(|ring| !ring.is_over);
            let ring = left.min_by_key(|ring| ring.seen_ns)?;
            let parts = ring.next_parts(clock);
            ready.extend(ring.batches(parts, (from_ns, end_ns)));
        }
        let batch = ready.pop_front()?;
        if let Records::Rows(rows) = &batch.records {
            let (records, lost) = count(rows);
            self.counted.0 += records;
            self.counted.1 = self.counted.1.saturating_add(lost);
        }
        Some(batch)
    }
}

/// The first part of each ring. Of when nothing was recorded before all that they hold, the last time is enough.
fn begin(
    rings: &mut [CopiedRing],
    clock: &RunClock,
    (from_ns, end_ns): (u64, u64),
) -> VecDeque<Batch> {
    let mut parts: Vec<Vec<Part>> = Vec::new();
    let mut oldest_ns = u64::MAX;
    for ring in rings.iter_mut() {
        let first = ring.next_parts(clock);
        if matches!(ring.origin, Origin::Calls(_)) {
            // What has no record in its first part says nothing of the others.
            let none_ns = if ring.is_over { u64::MAX } else { 0 };
            oldest_ns = oldest_ns.min(first_record_ns(&first).unwrap_or(none_ns));
        }
        parts.push(first);
    }
    let mut ready = VecDeque::new();
    for (ring, mut parts) in rings.iter_mut().zip(parts) {
        leave_last_off(&mut parts, oldest_ns);
        ready.extend(ring.batches(parts, (from_ns, end_ns)));
    }
    ready
}

/// When the first record was made that is there.
fn first_record_ns(parts: &[Part]) -> Option<u64> {
    let rows = parts.iter().filter_map(|part| match part {
        Part::Rows(rows, _) => Some(rows),
        Part::Off(_) => None,
    });
    let mut records = rows.flatten();
    let first = records.find(|record| !matches!(record.kind, RecordKind::Lost(_)))?;
    Some(first.time_ns)
}

/// Leaves out, of the times before `oldest_ns` in which nothing was recorded, all but the last.
fn leave_last_off(parts: &mut Vec<Part>, oldest_ns: u64) {
    let is_old = |part: &Part| matches!(part, Part::Off(until_ns) if *until_ns < oldest_ns);
    let mut left = parts.iter().filter(|part| is_old(part)).count();
    parts.retain(|part| {
        let is_old = is_old(part);
        left -= usize::from(is_old);
        !is_old || left == 0
    });
}

impl CopiedRing {
    /// What it held, and how much it had refused by when.
    pub const fn new(origin: Origin, held: HeldRecords, refused: VecDeque<RefusedBy>) -> Self {
        Self {
            origin,
            held,
            refused,
            seen_ns: 0,
            cut: Cut::Nothing,
            is_over: false,
        }
    }

    /// What is next; what is not an off time comes last.
    fn next_parts(&mut self, clock: &RunClock) -> Vec<Part> {
        let refused = &mut self.refused;
        let mut parts = Vec::new();
        let mut rows = Vec::new();
        let seen = match &mut self.held {
            HeldRecords::Calls(copied, off, copying) => {
                let missing = |copied: &mut Copied, rows: &mut Vec<Record>| {
                    copied.say_missing(&mut copying.sink(rows));
                };
                let missing = (missing, &mut *refused);
                next_off(copied, off, clock, (&mut parts, &mut rows), missing);
                let to = off.front().map_or(Position(u64::MAX), |next| next.head);
                let mut sink = copying.sink(&mut rows);
                copied.deliver_some(to, &mut sink);
                self.is_over = copied.is_over() && off.is_empty();
                if self.is_over {
                    copied.say_missing(&mut sink);
                }
                copied.last()
            }
            HeldRecords::Points(copied) => {
                self.is_over = copied.deliver_some(clock, &mut rows);
                copied.last()
            }
        };
        let to_ns = match self.is_over {
            true => u64::MAX,
            // What comes later may have been recorded before it.
            false => rows.last().map_or(0, |last| last.time_ns),
        };
        add_refused(&mut rows, refused, clock, to_ns);
        self.seen_ns = self.seen_ns.max(clock.nanoseconds(seen));
        parts.push(Part::Rows(rows, None));
        parts
    }

    /// The same as it is handed over, without what was before a time.
    fn batches(&mut self, parts: Vec<Part>, (from_ns, end_ns): (u64, u64)) -> Vec<Batch> {
        if self.is_over {
            self.seen_ns = self.seen_ns.max(end_ns);
        }
        let mut batches = Vec::new();
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            let is_last = self.is_over && parts.peek().is_none();
            let (rows, until_ns) = match part {
                Part::Rows(rows, until_ns) => (rows, until_ns.unwrap_or(self.seen_ns)),
                Part::Off(until_ns) => (vec![gap(until_ns)], until_ns),
            };
            let rows = self.since(rows, from_ns, is_last, &mut batches);
            batches.push(Batch {
                until_ns,
                ..Batch::held(self.origin, rows)
            });
        }
        if let Some(last) = batches.last_mut() {
            last.looked_ns = Some(self.seen_ns);
        }
        batches
    }

    /// The records without those of before this time. Calls of which the beginning is left out are not certain; those of other
    /// vCPUs that begin afterwards are, so that is said by itself.
    fn since(
        &mut self,
        mut rows: Vec<Record>,
        from_ns: u64,
        is_last: bool,
        batches: &mut Vec<Batch>,
    ) -> Vec<Record> {
        let is_left_out = |record: &&Record| record.time_ns < from_ns;
        if let Some(left_out) = rows.iter().rfind(is_left_out)
            && matches!(self.origin, Origin::Calls(_))
        {
            self.cut = match left_out.kind {
                RecordKind::Lost(1..) => Cut::Loss,
                _ => Cut::Records,
            };
        }
        rows.retain(|record| record.time_ns >= from_ns);
        if rows.is_empty() && !is_last {
            return rows;
        }
        match std::mem::replace(&mut self.cut, Cut::Nothing) {
            Cut::Nothing => {}
            Cut::Records => {
                batches.push(Batch::of(self.origin, from_ns, RecordKind::Lost(0)));
            }
            Cut::Loss => rows.insert(0, gap(from_ns)),
        }
        rows
    }
}

/// Nothing is missing; what is open at this time is not certain any more.
const fn gap(time_ns: u64) -> Record {
    Record {
        time_ns,
        kind: RecordKind::Lost(0),
    }
}

/// Adds what was refused by `to_ns` to the records of a ring, each where it is known to have been over.
fn add_refused(
    rows: &mut Vec<Record>,
    refused: &mut VecDeque<RefusedBy>,
    clock: &RunClock,
    to_ns: u64,
) {
    while let Some(next) = refused.front().copied()
        && clock.nanoseconds(next.by) <= to_ns
    {
        let time_ns = clock.nanoseconds(next.by);
        let lost = Record {
            time_ns,
            kind: RecordKind::Lost(next.count),
        };
        let at = rows.partition_point(|row| row.time_ns <= time_ns);
        rows.insert(at, lost);
        refused.pop_front();
    }
}

/// When nothing was recorded right before the next call, and what is `missing` before that.
fn next_off(
    copied: &mut Copied,
    off: &mut VecDeque<OffTime>,
    clock: &RunClock,
    (parts, rows): (&mut Vec<Part>, &mut Vec<Record>),
    (missing, refused): (
        impl Fn(&mut Copied, &mut Vec<Record>),
        &mut VecDeque<RefusedBy>,
    ),
) {
    while let Some(next) = off.front().copied()
        && (next.head <= copied.position() || copied.is_over())
    {
        missing(copied, rows);
        // What is missing on both sides of it is lost up to the next record, and that says more.
        let is_between = !rows.is_empty() && next.head < copied.position();
        if !is_between {
            let until_ns = clock.nanoseconds(next.until);
            add_refused(rows, refused, clock, until_ns);
            if !rows.is_empty() {
                parts.push(Part::Rows(std::mem::take(rows), Some(until_ns)));
            }
            parts.push(Part::Off(until_ns));
        }
        copied.lost_after(next.until);
        off.pop_front();
    }
}
