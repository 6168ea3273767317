//! The records of all rings in the order of time, as far as it is certain.
//!
//! A record may continue when no ring can still bring an earlier one: each ring has one waiting, or was
//! looked at after that time. A ring in which a reserved slot is waited for holds the others back;
//! when too much has waited for it for a round, the rest continues, and what it brings then is late: what one round brought
//! is in memory anyway, and what a vCPU was about to write when the ring was read is there in the next. Of records of the
//! same time those of the first rings go first.
//!
//! What one thread does on one vCPU has nothing to do with what another does elsewhere, and most of the time no thread moves.
//! So where that is all that counts, what rings bring in a short time is passed on ring by ring, or side by side, unless somebody has moved in it.

use super::ring::{Batch, Ring, Turn};
use super::taker::{Pass, Taker};
use crate::columns::Part;
use crate::event::Record;

/// Puts the rings' records into one order.
#[derive(Debug)]
pub struct Merge {
    rings: Vec<Ring>,
    waiting: usize,
    /// How many of them have come since a round was over.
    fresh: usize,
    limit: usize,
    passed_ns: u64,
    /// What has gone on without being certain is not after this time.
    forced_ns: u64,
    /// Room of what has continued.
    spare: Vec<Part>,
}

impl Merge {
    /// For this many rings; when more than `limit` records have waited for a round, the oldest continue.
    #[must_use]
    pub fn new(rings: usize, limit: usize) -> Self {
        Self {
            rings: (0..rings).map(|_| Ring::default()).collect(),
            waiting: 0,
            fresh: 0,
            limit,
            passed_ns: 0,
            forced_ns: 0,
            spare: Vec::new(),
        }
    }

    /// The same with another limit, from now on.
    pub const fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// What waits, with what has continued of it already.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        let waiting = self.rings.iter().flat_map(|ring| &ring.waiting);
        waiting.map(|batch| &batch.part)
    }

    /// The next records of `ring`, made on this vCPU. What is lost at their end may have been lost up to `until_ns`.
    pub fn push(&mut self, ring: usize, vcpu: u16, part: Part, until_ns: u64) {
        let Some(ring) = self.rings.get_mut(ring).filter(|_| !part.is_empty()) else {
            self.spare.push(part);
            return;
        };
        self.waiting += part.len();
        self.fresh += part.len();
        ring.waiting.push_back(Batch {
            vcpu,
            part,
            passed: 0,
            until_ns,
            passed_ns: self.passed_ns,
            forced_ns: self.forced_ns,
            seen_ns: ring.seen_ns,
        });
    }

    /// A ring brings no more records that were reserved before this time: it was looked at after.
    pub fn looked(&mut self, ring: usize, time_ns: u64) {
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.seen_ns = ring.seen_ns.max(time_ns);
        }
    }

    /// When a ring was looked at last, of all that are.
    pub fn seen_ns(&self) -> u64 {
        let seen = self.rings.iter().map(|ring| ring.seen_ns);
        let seen = seen.filter(|time_ns| *time_ns != u64::MAX);
        seen.max().unwrap_or_default()
    }

    /// Nothing waits for a ring that brings nothing.
    pub fn ignore(&mut self, ring: usize) {
        self.looked(ring, u64::MAX);
    }

    /// From now on it brings something.
    pub fn expect(&mut self, ring: usize) {
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.seen_ns = self.passed_ns;
        }
    }

    /// Passes on everything that waits, ring by ring, as it was recorded: each record with the number of its ring and its vCPU.
    /// It has no place among those of other rings.
    pub fn pass_all(&mut self, mut pass: impl FnMut(usize, u16, Record)) {
        for (index, ring) in self.rings.iter_mut().enumerate() {
            for mut batch in ring.waiting.drain(..) {
                self.waiting -= batch.waiting();
                let each = batch.passed..batch.part.len();
                each.filter_map(|record| batch.part.take(record))
                    .for_each(|record| pass(index, batch.vcpu, record));
                batch.part.clear();
                self.spare.push(batch.part);
            }
        }
        self.leave_few();
    }

    /// More room than one round needs is not kept.
    fn leave_few(&mut self) {
        self.spare.truncate(self.rings.len());
    }

    /// Room for records, empty.
    pub fn take_room(&mut self) -> Option<Part> {
        self.spare.pop()
    }

    /// Passes on so much of what waits.
    pub fn pass_on(&mut self, pass: Pass, to: &mut impl Taker) {
        let is_over = pass == Pass::All;
        let some = self.rings.iter().filter(|ring| !ring.waiting.is_empty());
        if some.count() > 1 && to.knows_apart() {
            self.pass_near(is_over, to);
        }
        self.pass_in_order(pass, u64::MAX, to);
        if pass != Pass::Certain {
            self.fresh = 0;
            self.leave_few();
        }
    }

    /// Passes on what is certain, a short time after the other.
    fn pass_near(&mut self, is_over: bool, to: &mut impl Taker) {
        let mut before = usize::MAX;
        while self.waiting < before {
            before = self.waiting;
            let near = self.rings.iter().map(|ring| ring.near_ns(is_over));
            let end_ns = near.min().unwrap_or(0);
            self.pass_apart(end_ns, to);
            let pass = if is_over { Pass::All } else { Pass::Certain };
            self.pass_in_order(pass, end_ns, to);
        }
    }

    /// Passes on all that rings bring before this time, if that is apart.
    fn pass_apart(&mut self, end_ns: u64, to: &mut impl Taker) {
        let steps = self.rings.iter().map(|ring| ring.steps_before(end_ns));
        let Some(all) = steps.collect::<Option<Vec<_>>>() else {
            return;
        };
        let each = all.iter().copied();
        let some: Vec<_> = each.filter(|ring| !ring.is_empty()).collect();
        if some.len() < 2 || !to.are_apart(&some) {
            return;
        }
        let counts: Vec<_> = all.iter().map(|ring| ring.len()).collect();
        let (mut lenders, mut lent) = (Vec::new(), Vec::new());
        for (ring, count) in self.rings.iter_mut().zip(counts) {
            if let Some(steps) = ring.lend(count) {
                lenders.push((ring, count));
                lent.push(steps);
            }
        }
        for ((ring, count), lent) in lenders.into_iter().zip(to.apart(lent)) {
            ring.take_back(lent, &mut self.spare);
            self.waiting -= count;
            self.passed_ns = self.passed_ns.max(ring.last_ns);
        }
    }

    /// Passes on so much up to this time, in its order.
    fn pass_in_order(&mut self, pass: Pass, up_to_ns: u64, to: &mut impl Taker) {
        let is_over = pass == Pass::All;
        let mut heads = Heads::of(&self.rings);
        while let Some((time, index)) = heads.waiting.pop() {
            let is_certain = is_over || time <= heads.certain_ns;
            let is_much = self.waiting > self.limit.saturating_add(self.fresh);
            let is_too_much = is_much && pass == Pass::Round;
            if time > up_to_ns || !is_certain && !is_too_much {
                break;
            }
            let turn = match is_certain {
                true => heads.turn(index, up_to_ns, is_over),
                false => Turn {
                    up_to_ns: time,
                    most: 1,
                    others_ns: u64::MAX,
                },
            };
            let Some(ring) = self.rings.get_mut(index) else {
                break;
            };
            let count = ring.pass_on(index, &turn, to, &mut self.spare);
            self.waiting -= count;
            self.passed_ns = self.passed_ns.max(ring.last_ns);
            if !is_certain {
                self.forced_ns = self.passed_ns;
            }
            heads.add(index, ring);
        }
    }
}

/// Which ring is next, and how far.
struct Heads {
    /// The place of the next record of each ring that has one, and the ring: the last is the next.
    waiting: Vec<(u64, usize)>,
    /// The others bring nothing that is earlier.
    certain_ns: u64,
}

impl Heads {
    fn of(rings: &[Ring]) -> Self {
        let mut heads = Self {
            waiting: Vec::with_capacity(rings.len()),
            certain_ns: u64::MAX,
        };
        for (index, ring) in rings.iter().enumerate() {
            heads.add(index, ring);
        }
        heads
    }

    fn add(&mut self, index: usize, ring: &Ring) {
        match ring.head_ns() {
            Some(time_ns) => {
                let head = (time_ns, index);
                let at = self.waiting.partition_point(|other| *other > head);
                self.waiting.insert(at, head);
            }
            None => self.certain_ns = self.certain_ns.min(ring.seen_ns),
        }
    }

    /// As long as the records of this ring come before those of all others, up to this time.
    fn turn(&self, ring: usize, up_to_ns: u64, is_over: bool) -> Turn {
        let certain_ns = if is_over { u64::MAX } else { self.certain_ns };
        let next = self.waiting.last().copied();
        let (next_ns, other) = next.unwrap_or((u64::MAX, usize::MAX));
        let before_next_ns = next_ns.saturating_sub(u64::from(other < ring));
        Turn {
            up_to_ns: before_next_ns.min(certain_ns).min(up_to_ns),
            most: usize::MAX,
            others_ns: next_ns.min(certain_ns),
        }
    }
}
