//! The whole way from rings to calls.

use std::collections::HashMap;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

use super::join::{Found, Join, Joined};
use super::merge::{Merge, Timed};
use super::selection::{Rules, Selection};
use super::threads::{BadStackSize, Threads};
use super::{Anomalies, CallEvent, CallSink, Death};
use crate::event::{CallValues, Event, EventKind, Moment};

/// Events that may wait for a ring that is behind.
pub const WAITING_MAX: usize = 1 << 20;

/// Turns the events of all rings into calls.
#[derive(Debug)]
pub struct Pipeline {
    merge: Merge,
    threads: Threads,
    selection: Selection,
    /// How many rings there are of the calls' values; they go before those of the graph.
    value_rings: usize,
    join: Join,
    /// Values that are in the merge, by the numbers of their events there.
    values: HashMap<u64, CallValues>,
    next_values: u64,
}

/// Where calls go on their way through the selection.
struct Selected<'a, S> {
    selection: &'a mut Selection,
    sink: &'a mut S,
}

impl<S: CallSink> CallSink for Selected<'_, S> {
    fn call(&mut self, event: CallEvent) {
        self.selection.call(event, self.sink);
    }
}

impl Pipeline {
    /// For this many rings and a guest with stacks of this many bytes. `waiting` events may wait for
    /// a ring that is behind: [`WAITING_MAX`] while the guest runs.
    ///
    /// # Errors
    /// [`BadStackSize`].
    pub fn new(rings: usize, stack_bytes: u64, waiting: usize) -> Result<Self, BadStackSize> {
        Ok(Self {
            merge: Merge::new(rings, waiting),
            threads: Threads::new(stack_bytes)?,
            selection: Selection::new(Rules::default()),
            value_rings: 0,
            join: Join::default(),
            values: HashMap::new(),
            next_values: 0,
        })
    }

    /// The same where each vCPU has a ring of what is captured of calls, too.
    ///
    /// # Errors
    /// [`BadStackSize`].
    pub fn with_values(
        rings: usize,
        stack_bytes: u64,
        waiting: usize,
    ) -> Result<Self, BadStackSize> {
        Ok(Self {
            merge: Merge::new(2 * rings, waiting),
            value_rings: rings,
            ..Self::new(0, stack_bytes, waiting)?
        })
    }

    /// Values of these calls are captured from now on.
    pub fn expect_values(&mut self, function: FunctionId, moment: Moment) {
        self.join.expect(function, moment);
    }

    /// What became of the values so far.
    #[must_use]
    pub const fn joined(&self) -> Joined {
        self.join.joined()
    }

    /// The next values that the ring of this vCPU brought.
    pub fn push_values(&mut self, time_ns: u64, vcpu: u16, call: CallValues) {
        if usize::from(vcpu) >= self.value_rings {
            return;
        }
        let number = self.next_values;
        self.next_values += 1;
        self.values.insert(number, call);
        let event = Event {
            time_ns,
            vcpu,
            kind: EventKind::Captured(number),
        };
        self.merge.push(usize::from(vcpu), event, time_ns);
    }

    /// As [`Merge::looked`], of a ring of values.
    pub fn looked_at_values(&mut self, ring: u16, time_ns: u64) {
        if usize::from(ring) < self.value_rings {
            self.merge.looked(ring.into(), time_ns);
        }
    }

    /// One event in the order of time.
    fn event(
        timed: &Timed,
        values: &mut HashMap<u64, CallValues>,
        join: &mut Join,
        threads: &mut Threads,
        sink: &mut impl CallSink,
    ) {
        match timed.event.kind {
            EventKind::Captured(number) => {
                if let Some(call) = values.remove(&number) {
                    join.captured(timed.event.time_ns, timed.is_late, call);
                }
            }
            EventKind::Lost(_) => {
                join.lost(timed.until_ns);
                threads.event(timed, Found::Nothing, sink);
            }
            EventKind::Entry(_) => {}
            EventKind::Graph {
                function,
                step,
                slot,
            } => {
                let values = join.record(timed.is_late, function, step, slot);
                threads.event(timed, values, sink);
            }
        }
    }

    /// Passes on only what the rules select among the calls of these functions.
    pub fn select(&mut self, rules: Rules, functions: &[Function]) {
        self.selection = Selection::new(rules);
        self.extend(functions);
    }

    /// Functions have come: `functions` are those of before, and more.
    pub fn extend(&mut self, functions: &[Function]) {
        let new = functions.get(self.selection.functions()..);
        for function in new.unwrap_or_default() {
            self.selection.add(|pattern| pattern.matches(function));
        }
    }

    /// The next event of its ring, as [`Merge::push`] takes it.
    pub fn push(&mut self, event: Event, until_ns: u64) {
        let ring = self.value_rings + usize::from(event.vcpu);
        self.merge.push(ring, event, until_ns);
    }

    /// As [`Merge::looked`].
    pub fn looked(&mut self, ring: u16, time_ns: u64) {
        self.merge
            .looked(self.value_rings + usize::from(ring), time_ns);
    }

    /// Passes on what is certain so far.
    pub fn run(&mut self, sink: &mut impl CallSink) {
        let (selection, merge) = (&mut self.selection, &mut self.merge);
        let mut selected = Selected { selection, sink };
        let (values, join, threads) = (&mut self.values, &mut self.join, &mut self.threads);
        while let Some(timed) = merge.pop() {
            Self::event(&timed, values, join, threads, &mut selected);
        }
    }

    /// Passes on everything: no ring brings any more.
    pub fn finish(&mut self, sink: &mut impl CallSink) {
        let (selection, merge) = (&mut self.selection, &mut self.merge);
        let mut selected = Selected { selection, sink };
        let (values, join, threads) = (&mut self.values, &mut self.join, &mut self.threads);
        while let Some(timed) = merge.pop_rest() {
            Self::event(&timed, values, join, threads, &mut selected);
        }
        threads.bury(u64::MAX, &mut selected);
        self.selection.finish(sink);
    }

    /// As [`Threads::died`].
    pub fn died(&mut self, death: Death) {
        self.threads.died(death);
    }

    /// Whether [`Self::take_fresh`] has any.
    #[must_use]
    pub fn has_fresh(&self) -> bool {
        self.threads.has_fresh()
    }

    /// As [`Threads::take_fresh`].
    pub fn take_fresh(&mut self) -> Vec<(u32, Gva)> {
        self.threads.take_fresh()
    }

    /// What did not fit so far.
    #[must_use]
    pub const fn anomalies(&self) -> &Anomalies {
        self.threads.anomalies()
    }
}
