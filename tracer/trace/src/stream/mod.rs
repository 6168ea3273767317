//! The one stream of a session's events, out of what its rings bring: in the order of time, each with its vCPU and its
//! thread.
//!
//! ```text
//!  ring of calls per vCPU --+                +-> threads (by stack) -> selection --+
//!  ring of points per vCPU -+-> merge -------+                                     +-> sink
//!  the clock page ----------+  (by time)     +-> calls without returns, points ----+
//!  vCPU threads of the host-+
//! ```
//!
//! A sink that keeps threads apart anyhow can do without their order among each other ([`Sink::is_ordered`]): to merge calls
//! without returns takes as long again as to write them. Of calls with returns it gets what threads do that stay on their vCPU for
//! a while ring by ring, several rings' side by side ([`KeepsApart`]).
//!
//! Where returns are traced, a thread is a stack ([`graph`](crate::graph)). A trace of functions is a graph without
//! returns: each vCPU is a thread, and nothing is open. There, and of points and of the clock, a time is the one that was
//! recorded, also of what comes after later ones because too much had waited for it. A call with a return that comes late
//! gets the time of what went before it, is counted ([`Anomaly::Late`](crate::graph::Anomaly)), and nothing around it is
//! certain.

mod calls;
pub mod merge;
mod passing;
mod ring;
pub mod taker;
#[cfg(test)]
mod tests;
mod ways;

use std::panic::resume_unwind;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

use crate::columns::{Columns, Part};
use crate::crew::Crew;
use crate::event::{Event, KeepsApart, Moment, Record, RecordKind, Sink};
use crate::graph::join::{Join, Joined};
use crate::graph::rules::Rules;
use crate::graph::selection::Selection;
use crate::graph::threads::{BadStackSize, Threads};
use crate::graph::{Anomalies, Death};
use calls::Graph;
use merge::Merge;
use passing::{Passing, alone};
pub use taker::Pass;
use ways::{InOrder, SideBySide, Way};

/// Records that may wait for a ring that lags.
pub const WAITING_MAX: usize = 1 << 20;

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

/// Turns what rings bring into events.
#[derive(Debug)]
pub struct Stream {
    /// What waits.
    pub(crate) merge: Merge,
    /// How many rings of calls there are, and of points; these go before those.
    rings: u16,
    has_points: bool,
    has_host: bool,
    /// Records of rings that there are not.
    strays: u64,
    /// Of a session that traces returns.
    graph: Option<Graph>,
    /// Up to when something would have been recorded, though rings were looked at later, if that is known.
    pub until_ns: Option<u64>,
}

/// Who wants nothing.
struct Nobody;

impl Sink for Nobody {
    fn event(&mut self, _event: Event) {}
}

/// What a session records, as far as its stream goes by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Rings of calls: one for each vCPU.
    pub rings: u16,
    /// Bytes of a stack of the guest, where returns are traced.
    pub stack_bytes: Option<u64>,
    /// Whether values of calls are captured.
    pub has_values: bool,
    /// Which calls are passed on, where returns are traced.
    pub rules: Rules,
}

impl Stream {
    /// Of what such a session records of these functions. `waiting` records may wait for a ring that lags:
    /// [`WAITING_MAX`] while the guest runs.
    ///
    /// # Errors
    /// [`BadStackSize`].
    pub fn of(
        options: &StreamOptions,
        functions: &[Function],
        waiting: usize,
    ) -> Result<Self, BadStackSize> {
        let Some(stack_bytes) = options.stack_bytes else {
            return Ok(Self::of_functions(options.rings, waiting));
        };
        let mut stream = Self::of_graph(options.rings, stack_bytes, waiting)?;
        if options.has_values {
            stream = stream.with_values();
        }
        stream.select(options.rules.clone(), functions);
        Ok(stream)
    }

    /// Of calls without returns in this many rings. `waiting` records may wait for a ring that lags: [`WAITING_MAX`]
    /// while the guest runs.
    #[must_use]
    pub fn of_functions(rings: u16, waiting: usize) -> Self {
        let count = usize::from(rings);
        let mut merge = Merge::new(3 * count + 1, waiting);
        (0..count).for_each(|points| merge.ignore(points));
        (2 * count..=3 * count).for_each(|other| merge.ignore(other));
        Self {
            merge,
            rings,
            has_points: false,
            has_host: false,
            strays: 0,
            graph: None,
            until_ns: None,
        }
    }

    /// Of calls with returns, in a guest with stacks of this many bytes.
    ///
    /// # Errors
    /// [`BadStackSize`].
    pub fn of_graph(rings: u16, stack_bytes: u64, waiting: usize) -> Result<Self, BadStackSize> {
        let graph = Graph {
            threads: Threads::new(stack_bytes)?,
            selection: Selection::new(Rules::default()),
            join: None,
            failure: None,
        };
        Ok(Self {
            graph: Some(graph),
            ..Self::of_functions(rings, waiting)
        })
    }

    /// The same where values of calls are captured.
    #[must_use]
    pub fn with_values(mut self) -> Self {
        if let Some(graph) = &mut self.graph {
            graph.join = Some(Join::default());
        }
        self.expect_points();
        self
    }

    /// Rings of points are read from now on.
    pub fn expect_points(&mut self) {
        if !std::mem::replace(&mut self.has_points, true) {
            (0..usize::from(self.rings)).for_each(|ring| self.merge.expect(ring));
        }
    }

    /// What the host does with the vCPUs is told from now on.
    fn expect_host(&mut self) {
        if !std::mem::replace(&mut self.has_host, true) {
            let rings = usize::from(self.rings);
            (0..rings).for_each(|vcpu| self.merge.expect(2 * rings + 1 + vcpu));
        }
    }

    /// Values of these calls are captured from now on.
    pub fn expect_values(&mut self, function: FunctionId, moment: Moment) {
        let join = self.graph.as_mut().and_then(|graph| graph.join.as_mut());
        if let Some(join) = join {
            join.expect(function, moment);
        }
    }

    /// What became of the values so far.
    #[must_use]
    pub fn joined(&self) -> Joined {
        let join = self.graph.as_ref().and_then(|graph| graph.join.as_ref());
        join.map_or_else(Joined::default, Join::joined)
    }

    /// Passes on only what the rules select among the calls of these functions.
    pub fn select(&mut self, rules: Rules, functions: &[Function]) {
        if let Some(graph) = &mut self.graph {
            graph.selection = Selection::new(rules);
        }
        self.extend(functions);
    }

    /// Functions have come: `functions` are those of before, and more.
    pub fn extend(&mut self, functions: &[Function]) {
        let Some(Graph { selection, .. }) = &mut self.graph else {
            return;
        };
        let new = functions.get(selection.functions()..);
        for function in new.unwrap_or_default() {
            selection.add(|pattern| pattern.matches(function));
        }
    }

    /// The place of a ring among all; none of one that there is not.
    fn ring(&self, origin: Origin) -> Option<usize> {
        let rings = usize::from(self.rings);
        let within = |vcpu: u16| (vcpu < self.rings).then_some(usize::from(vcpu));
        match origin {
            Origin::Points(vcpu) => within(vcpu),
            Origin::Calls(vcpu) => within(vcpu).map(|vcpu| rings + vcpu),
            Origin::Clock => Some(2 * rings),
            Origin::Host(vcpu) => within(vcpu).map(|vcpu| 2 * rings + 1 + vcpu),
        }
    }

    /// The next records of a ring, in its order. What is lost at their end may have been lost up to `until_ns`.
    pub fn push(&mut self, origin: Origin, records: impl Into<Columns>, until_ns: u64) {
        let records = records.into();
        let Some(ring) = self.ring(origin) else {
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
        if let Some(ring) = self.ring(origin) {
            self.merge.looked(ring, time_ns);
        }
    }

    /// Whether what a ring brings has to wait for the others, for this sink.
    #[must_use]
    pub fn is_ordered(&self, sink: &(impl Sink + ?Sized)) -> bool {
        self.graph.is_some() || sink.is_ordered()
    }

    /// Passes on everything: no ring brings any more.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        self.pass_on(Pass::All, sink);
    }

    /// Passes on so much.
    pub fn pass_on(&mut self, pass: Pass, sink: &mut impl Sink) {
        self.pass_by(pass, sink, InOrder);
    }

    /// The same to who keeps threads apart: of what stays apart for a while, each ring's comes by itself, and several side by
    /// side where this crew is more than one.
    pub fn pass_apart(&mut self, pass: Pass, sink: &mut impl KeepsApart, crew: &dyn Crew) {
        self.pass_by(pass, sink, SideBySide(crew));
    }

    fn pass_by<S: Sink>(&mut self, pass: Pass, sink: &mut S, way: impl Way<S>) {
        let is_ordered = self.is_ordered(sink);
        let (graph, rings) = (&mut self.graph, usize::from(self.rings));
        if is_ordered {
            let mut passing = Passing {
                graph: graph.as_mut(),
                rings,
                way,
                sink,
            };
            self.merge.pass_on(pass, &mut passing);
        } else {
            self.merge.pass_all(|ring, vcpu, record| {
                if let Some(event) = alone(vcpu, ring < rings, record) {
                    sink.event(event);
                }
            });
        }
        if let Some(failure) = self.graph.as_mut().and_then(|graph| graph.failure.take()) {
            // All that was lent is back.
            resume_unwind(failure);
        }
        if let Some(graph) = self.graph.as_mut().filter(|_| pass == Pass::All) {
            graph.advance(u64::MAX, sink);
            // A call that hangs may be the last thing that any ring has brought.
            let seen_ns = || self.merge.seen_ns();
            graph
                .selection
                .lasts_until(self.until_ns.unwrap_or_else(seen_ns));
            graph.selection.finish(sink);
        }
    }

    /// What waits is for nobody.
    pub fn forget(&mut self) {
        self.finish(&mut Nobody);
        self.take_fresh();
    }

    /// Records have gone elsewhere up to now: what is open is not certain any more.
    pub fn resume(&mut self) {
        let record = Record {
            time_ns: 0,
            kind: RecordKind::Lost(0),
        };
        self.push(Origin::Calls(0), vec![record], 0);
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

    /// A thread has ended. The records of before may be still to come.
    pub fn died(&mut self, death: Death) {
        if let Some(graph) = &mut self.graph {
            graph.threads.died(death);
        }
    }

    /// Bytes of a stack of the guest, where threads are told apart by them.
    #[must_use]
    pub fn stack_bytes(&self) -> Option<u64> {
        let graph = self.graph.as_ref();
        graph.map(|graph| graph.threads.stack_bytes())
    }

    /// Whether [`Self::take_fresh`] has any.
    #[must_use]
    pub fn has_fresh(&self) -> bool {
        let threads = self.graph.as_ref().map(|graph| &graph.threads);
        threads.is_some_and(Threads::has_fresh)
    }

    /// The stacks that were seen for the first time since this was asked last: their numbers and their
    /// lowest addresses.
    pub fn take_fresh(&mut self) -> Vec<(u32, Gva)> {
        let threads = self.graph.as_mut().map(|graph| &mut graph.threads);
        threads.map_or_else(Vec::new, Threads::take_fresh)
    }

    /// What did not fit so far.
    #[must_use]
    pub fn anomalies(&self) -> Option<&Anomalies> {
        let threads = self.graph.as_ref().map(|graph| &graph.threads);
        threads.map(Threads::anomalies)
    }
}
