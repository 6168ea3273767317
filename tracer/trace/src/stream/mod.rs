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
//! What rings bring comes in and is merged in [`Rings`]; what is made of it, and for whom, says the [`Stream`].
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
mod rings;
pub mod taker;
#[cfg(test)]
mod tests;
mod ways;

use std::panic::resume_unwind;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

use crate::crew::Crew;
use crate::event::{Event, KeepsApart, Moment, Record, RecordKind, Sink};
use crate::graph::join::{Join, Joined};
use crate::graph::rules::Rules;
use crate::graph::selection::Selection;
use crate::graph::threads::{BadStackSize, Threads};
use crate::graph::{Anomalies, Death};
use calls::Graph;
use passing::{Passing, alone};
pub use rings::{Origin, Rings};
pub use taker::Pass;
use ways::{InOrder, SideBySide, Way};

/// Records that may wait for a ring that lags.
pub const WAITING_MAX: usize = 1 << 20;

/// Turns what rings bring into events.
#[derive(Debug)]
pub struct Stream {
    rings: Rings,
    /// Of a session that traces returns.
    graph: Option<Graph>,
    /// Up to when something would have been recorded, though rings were looked at later, if that is known.
    until_ns: Option<u64>,
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
        Self {
            rings: Rings::new(rings, waiting),
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
        self.rings.expect_points();
        self
    }

    /// Where the records come in that it is made of.
    pub const fn rings(&mut self) -> &mut Rings {
        &mut self.rings
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

    /// Values of calls that wait for their records, or until more is known of their calls, take no more than so many bytes.
    #[cfg(test)]
    pub(crate) fn keep_values_within(&mut self, bytes: usize) {
        let Some(graph) = &mut self.graph else { return };
        graph.selection.hold_within(bytes);
        if let Some(join) = &mut graph.join {
            join.keep_within(bytes);
        }
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
        if is_ordered {
            let mut passing = Passing {
                graph: self.graph.as_mut(),
                points: self.rings.points(),
                way,
                sink,
            };
            self.rings.pass_on(pass, &mut passing);
        } else {
            self.rings.pass_all(|is_point, vcpu, record| {
                if let Some(event) = alone(vcpu, is_point, record) {
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
            let seen_ns = || self.rings.seen_ns();
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
        self.rings.push(Origin::Calls(0), vec![record], 0);
    }

    /// Something would have been recorded up to then, though rings were looked at later.
    pub const fn lasts_until(&mut self, until_ns: u64) {
        self.until_ns = Some(until_ns);
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
    pub fn anomalies(&self) -> Option<Anomalies> {
        let graph = self.graph.as_ref()?;
        let mut all = graph.threads.anomalies().clone();
        all.add(graph.selection.anomalies());
        Some(all)
    }
}
