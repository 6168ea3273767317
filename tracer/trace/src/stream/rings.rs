//! The rings of a session: what they bring comes in here, whenever they are read, and waits until it has its place in the one order of
//! all of them.

use super::merge::Merge;
use super::taker::{Pass, Taker};
use crate::columns::{Columns, Part};
use crate::event::Record;

/// Where records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The ring of this vCPU's calls.
    Calls(u16),
    /// The ring of this vCPU's points, and of what is captured of its calls.
    Points(u16),
    /// The clock page.
    Clock,
    /// The thread of the host that runs this vCPU.
    Host(u16),
}

/// Takes in what rings bring, and merges it.
#[derive(Debug)]
pub struct Rings {
    /// What waits.
    merge: Merge,
    /// How many rings of calls there are, and of points; these go before those.
    count: u16,
    has_points: bool,
    has_host: bool,
    /// Records of rings that there are not.
    strays: u64,
}

impl Rings {
    /// So many of calls, and as many of points, which bring nothing yet. `waiting` records may wait for a ring that lags.
    pub(super) fn new(count: u16, waiting: usize) -> Self {
        let of_calls = usize::from(count);
        let mut merge = Merge::new(3 * of_calls + 1, waiting);
        (0..of_calls).for_each(|points| merge.ignore(points));
        (2 * of_calls..=3 * of_calls).for_each(|other| merge.ignore(other));
        Self {
            merge,
            count,
            has_points: false,
            has_host: false,
            strays: 0,
        }
    }

    /// Rings of points are read from now on.
    pub fn expect_points(&mut self) {
        if !std::mem::replace(&mut self.has_points, true) {
            (0..self.points()).for_each(|ring| self.merge.expect(ring));
        }
    }

    /// What the host does with the vCPUs is told from now on.
    fn expect_host(&mut self) {
        if !std::mem::replace(&mut self.has_host, true) {
            let rings = usize::from(self.count);
            (0..rings).for_each(|vcpu| self.merge.expect(2 * rings + 1 + vcpu));
        }
    }

    /// The place of a ring among all; none of one that there is not.
    fn place(&self, origin: Origin) -> Option<usize> {
        let rings = usize::from(self.count);
        let within = |vcpu: u16| (vcpu < self.count).then_some(usize::from(vcpu));
        match origin {
            Origin::Points(vcpu) => within(vcpu),
            Origin::Calls(vcpu) => within(vcpu).map(|vcpu| rings + vcpu),
            Origin::Clock => Some(2 * rings),
            Origin::Host(vcpu) => within(vcpu).map(|vcpu| 2 * rings + 1 + vcpu),
        }
    }

    /// So many are rings of points: the first.
    pub(super) fn points(&self) -> usize {
        usize::from(self.count)
    }

    /// The next records of a ring, in its order. What is lost at their end may have been lost up to `until_ns`.
    pub fn push(&mut self, origin: Origin, records: impl Into<Columns>, until_ns: u64) {
        let records = records.into();
        let Some(ring) = self.place(origin) else {
            self.strays = self.strays.saturating_add(records.records() as u64);
            return;
        };
        if matches!(origin, Origin::Host(_)) {
            self.expect_host();
        }
        let vcpu = match origin {
            Origin::Calls(vcpu) | Origin::Points(vcpu) | Origin::Host(vcpu) => vcpu,
            Origin::Clock => 0,
        };
        let mut parts = records.into_parts().into_iter().peekable();
        while let Some(part) = parts.next() {
            let next_ns = parts.peek().and_then(|next| next.time_ns(0));
            let until_ns = next_ns.unwrap_or(until_ns);
            self.merge.push(ring, vcpu, part, until_ns);
        }
    }

    /// A ring brings no more records that were reserved before this time: it was looked at after.
    pub fn looked(&mut self, origin: Origin, time_ns: u64) {
        if let Some(ring) = self.place(origin) {
            self.merge.looked(ring, time_ns);
        }
    }

    /// When a ring was looked at last, of all that are.
    pub(super) fn seen_ns(&self) -> u64 {
        self.merge.seen_ns()
    }

    /// What waits, with what has continued of it already.
    pub fn waiting(&self) -> impl Iterator<Item = &Part> {
        self.merge.parts()
    }

    /// So many records may wait for a ring that lags, from now on.
    pub const fn set_waiting(&mut self, records: usize) {
        self.merge.set_limit(records);
    }

    /// Room for records: of what has been passed on.
    pub fn take_room(&mut self) -> Option<Part> {
        self.merge.take_room()
    }

    /// Records of rings that there are not.
    #[must_use]
    pub const fn strays(&self) -> u64 {
        self.strays
    }

    /// Passes on so much, in its order.
    pub(super) fn pass_on(&mut self, pass: Pass, to: &mut impl Taker) {
        self.merge.pass_on(pass, to);
    }

    /// Passes on everything as it came: of each record whether its ring is one of points, and its vCPU.
    pub(super) fn pass_all(&mut self, mut pass: impl FnMut(bool, u16, Record)) {
        let points = self.points();
        self.merge
            .pass_all(|ring, vcpu, record| pass(ring < points, vcpu, record));
    }
}
