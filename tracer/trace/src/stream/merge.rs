//! The records of all rings in the order of time, as far as it is certain.
//!
//! A record may continue when no ring can still bring an earlier one: each ring has one waiting, or was
//! looked at after that time. A ring in which a reserved slot is waited for holds the others back;
//! when too much has waited for it for a round, the rest continues, and what it brings then is late: what one round brought
//! is in memory anyway, and what a vCPU was about to write when the ring was read is there in the next. Of records of the
//! same time those of the first rings go first.
//!
//! What a ring brings stays where it was read to until its turn comes: nothing is copied to wait.

use std::collections::VecDeque;

use crate::event::{Record, RecordKind, Timed};

/// What one ring brought in one round.
#[derive(Debug, Default)]
struct Batch {
    vcpu: u16,
    records: VecDeque<Record>,
    /// When the round was over, if the guest runs.
    until_ns: u64,
    /// When it came: what had continued was not after this,
    passed_ns: u64,
    /// what had continued without being certain was not after this,
    forced_ns: u64,
    /// and what was lost in this ring was lost after this.
    seen_ns: u64,
}

impl Batch {
    /// When the next record was made.
    fn own_ns(&self) -> Option<u64> {
        let record = self.records.front()?;
        Some(match record.kind {
            // Nothing was missing when the ring was looked at before.
            RecordKind::Lost(_) => record.time_ns.max(self.seen_ns),
            _ => record.time_ns,
        })
    }

    /// Its place, after the ring's last. A time that others have passed is set to theirs. Its own thread has not: it
    /// continues only after the record has its place in the ring, and the ring was looked at before that.
    fn place_ns(&self, own_ns: u64, last_ns: u64) -> u64 {
        own_ns.max(last_ns).max(self.passed_ns)
    }

    /// Up to when a loss may have happened that was the next record: by its place in the ring before the one that is
    /// next now, and with no record after it, at some time up to the end of the round.
    fn until_ns(&self) -> u64 {
        let next = self.records.front();
        next.map_or(self.until_ns, |next| next.time_ns)
    }

    /// The next record, if its place is in this turn.
    fn pop(&mut self, last_ns: u64, turn: &Turn) -> Option<Timed> {
        let own_ns = self.own_ns()?;
        let time_ns = self.place_ns(own_ns, last_ns);
        if time_ns > turn.up_to_ns {
            return None;
        }
        let record = self.records.pop_front()?;
        Some(Timed {
            record,
            vcpu: self.vcpu,
            time_ns,
            until_ns: self.until_ns(),
            is_late: own_ns < self.forced_ns,
            is_tied: time_ns >= turn.others_ns,
        })
    }
}

/// How far one ring goes before the others.
struct Turn {
    up_to_ns: u64,
    most: usize,
    /// The others bring nothing that is earlier.
    others_ns: u64,
}

/// The records of one ring that wait.
#[derive(Debug, Default)]
struct Ring {
    waiting: VecDeque<Batch>,
    /// No record to come is earlier.
    seen_ns: u64,
    /// The place of the last that has continued.
    last_ns: u64,
}

impl Ring {
    /// The place of the next record.
    fn head_ns(&self) -> Option<u64> {
        let batch = self.waiting.front()?;
        Some(batch.place_ns(batch.own_ns()?, self.last_ns))
    }

    /// Passes on what is in this turn, and leaves its room. Returns how many there were.
    fn pass_on(
        &mut self,
        turn: &Turn,
        spare: &mut Vec<Vec<Record>>,
        mut pass: impl FnMut(Timed),
    ) -> usize {
        let mut count = 0;
        while let Some(batch) = self.waiting.front_mut() {
            while count < turn.most
                && let Some(timed) = batch.pop(self.last_ns, turn)
            {
                count += 1;
                self.last_ns = timed.time_ns;
                pass(timed);
            }
            if !batch.records.is_empty() {
                break;
            }
            let done = self.waiting.pop_front().unwrap_or_default();
            spare.push(done.records.into());
        }
        count
    }
}

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
    spare: Vec<Vec<Record>>,
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

    /// The next records of `ring`, made on this vCPU. What is lost at their end may have been lost up to `until_ns`.
    pub fn push(&mut self, ring: usize, vcpu: u16, records: Vec<Record>, until_ns: u64) {
        let Some(ring) = self.rings.get_mut(ring).filter(|_| !records.is_empty()) else {
            if records.capacity() > 0 {
                self.spare.push(records);
            }
            return;
        };
        self.waiting += records.len();
        self.fresh += records.len();
        ring.waiting.push_back(Batch {
            vcpu,
            records: records.into(),
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
            for batch in ring.waiting.drain(..) {
                let mut records = Vec::from(batch.records);
                self.waiting -= records.len();
                let each = records.drain(..);
                each.for_each(|record| pass(index, batch.vcpu, record));
                self.spare.push(records);
            }
        }
        self.leave_few();
    }

    /// More room than one round needs is not kept.
    fn leave_few(&mut self) {
        self.spare.truncate(self.rings.len());
    }

    /// Room for records, empty.
    pub fn take_room(&mut self) -> Option<Vec<Record>> {
        self.spare.pop()
    }

    /// A round is over: passes on what is certain, or when no ring brings any more, everything: each with the number of its ring.
    pub fn pass_on(&mut self, is_over: bool, mut pass: impl FnMut(usize, Timed)) {
        let mut heads = Heads::of(&self.rings);
        while let Some((time, index)) = heads.waiting.pop() {
            let is_certain = is_over || time <= heads.certain_ns;
            if !is_certain && self.waiting <= self.limit.saturating_add(self.fresh) {
                break;
            }
            let turn = match is_certain {
                true => heads.turn(index, is_over),
                false => Turn {
                    up_to_ns: time,
                    most: 1,
                    others_ns: u64::MAX,
                },
            };
            let Some(ring) = self.rings.get_mut(index) else {
                break;
            };
            let count = ring.pass_on(&turn, &mut self.spare, |timed| pass(index, timed));
            self.waiting -= count;
            self.passed_ns = self.passed_ns.max(ring.last_ns);
            if !is_certain {
                self.forced_ns = self.passed_ns;
            }
            heads.add(index, ring);
        }
        self.fresh = 0;
        self.leave_few();
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

    /// As long as the records of this ring come before those of all others.
    fn turn(&self, ring: usize, is_over: bool) -> Turn {
        let certain_ns = if is_over { u64::MAX } else { self.certain_ns };
        let next = self.waiting.last().copied();
        let (next_ns, other) = next.unwrap_or((u64::MAX, usize::MAX));
        let before_next_ns = next_ns.saturating_sub(u64::from(other < ring));
        Turn {
            up_to_ns: before_next_ns.min(certain_ns),
            most: usize::MAX,
            others_ns: next_ns.min(certain_ns),
        }
    }
}
