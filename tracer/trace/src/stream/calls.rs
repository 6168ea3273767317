//! Calls with returns, put together out of records, and selected.

use crate::columns::Steps;
use crate::crew::Failure;
use crate::event::{Event, RecordKind, Sink, SureStep, Timed};
use crate::graph::join::Join;
use crate::graph::selection::Selection;
use crate::graph::threads::Threads;

/// Puts calls together.
#[derive(Debug)]
pub(super) struct Graph {
    pub threads: Threads,
    pub selection: Selection,
    /// Of a session that captures values.
    pub join: Option<Join>,
    /// What somebody has failed with who put some of them together.
    pub failure: Option<Failure>,
}

/// Where calls go on their way through the selection.
struct Selected<'a, S> {
    selection: &'a mut Selection,
    sink: &'a mut S,
}

impl<S: Sink> Sink for Selected<'_, S> {
    fn event(&mut self, event: Event) {
        self.selection.call(event, self.sink);
    }

    fn steps(&mut self, vcpu: u16, thread: u32, steps: &[SureStep]) {
        self.selection.calls(vcpu, thread, steps, self.sink);
    }
}

impl Graph {
    /// All records of before this time have come.
    pub fn advance(&mut self, time_ns: u64, sink: &mut impl Sink) {
        let selection = &mut self.selection;
        self.threads
            .advance(time_ns, &mut Selected { selection, sink });
    }

    /// The next steps of a vCPU, in their places.
    pub fn steps(&mut self, steps: Steps<'_>, sink: &mut impl Sink) {
        if self.join.is_some() {
            let each = steps.records();
            return each.for_each(|record| self.record(Timed::alone(steps.vcpu, record), sink));
        }
        let selection = &mut self.selection;
        let mut selected = Selected { selection, sink };
        self.threads.steps(steps, &mut selected);
    }

    /// Whether the steps of these vCPUs in one stretch of time are of threads that stay where they are.
    pub fn are_apart(&mut self, vcpus: &[Steps<'_>], sink: &mut impl Sink) -> bool {
        let firsts = vcpus.iter().filter_map(|steps| steps.times.first());
        if let Some(first_ns) = firsts.min() {
            self.advance(*first_ns, sink);
        }
        self.threads.stay(vcpus)
    }

    /// The next record of a ring of calls, or values of one.
    pub fn record(&mut self, timed: Timed, sink: &mut impl Sink) {
        let (selection, join) = (&mut self.selection, &mut self.join);
        let join = join.as_mut();
        let mut selected = Selected { selection, sink };
        let found = match timed.record.kind {
            RecordKind::Captured(call) => {
                let (time_ns, is_late) = (timed.time_ns, timed.is_late);
                return join.map_or((), |join| join.captured(time_ns, is_late, *call));
            }
            RecordKind::Lost(_) => {
                if let Some(join) = join {
                    join.lost(timed.until_ns);
                }
                None
            }
            RecordKind::Graph {
                function,
                step,
                slot,
            } => join.map(|join| join.record(timed.is_late, function, step, slot)),
            RecordKind::Entry(_)
            | RecordKind::Called { .. }
            | RecordKind::Point(_)
            | RecordKind::Stall(_)
            | RecordKind::Wait { .. }
            | RecordKind::Host(_) => return,
        };
        self.threads
            .record(&timed, found.unwrap_or_default(), &mut selected);
    }
}
