//! What comes out of the merge, on its way to a sink: calls are put together, all others stand for themselves.

use terms::addr::Gva;
use terms::field::FieldValue;

use super::calls::Graph;
use super::taker::Taker;
use super::ways::Way;
use crate::columns::{LentSteps, Steps};
use crate::event::{Event, EventKind, Record, RecordKind, Sink, Timed, Values};

/// What comes out of the merge, on its way to a sink.
pub(super) struct Passing<'a, S, W> {
    pub graph: Option<&'a mut Graph>,
    /// How many rings of points there are: they go before the others.
    pub points: usize,
    pub way: W,
    pub sink: &'a mut S,
}

impl<S: Sink, W: Way<S>> Taker for Passing<'_, S, W> {
    fn one(&mut self, ring: usize, timed: Timed) {
        let (is_point, sink) = (ring < self.points, &mut *self.sink);
        let Some(graph) = &mut self.graph else {
            let event = alone(timed.vcpu, is_point, timed.record);
            return event.map_or((), |event| sink.event(event));
        };
        let is_of_calls = match timed.record.kind {
            RecordKind::Point(_)
            | RecordKind::Stall(_)
            | RecordKind::Wait { .. }
            | RecordKind::Host(_) => false,
            RecordKind::Lost(_) => !is_point,
            RecordKind::Entry(_)
            | RecordKind::Called { .. }
            | RecordKind::Graph { .. }
            | RecordKind::Captured(_) => true,
        };
        if is_of_calls {
            return graph.record(timed, sink);
        }
        graph.advance(timed.time_ns, sink);
        if let Some(event) = alone(timed.vcpu, is_point, timed.record) {
            let (thread, depth) = graph.threads.on(event.vcpu);
            sink.event(Event {
                thread,
                depth,
                ..event
            });
        }
    }

    fn steps(&mut self, steps: Steps<'_>) {
        if let Some(graph) = &mut self.graph {
            graph.steps(steps, self.sink);
        }
    }

    /// Values of calls are not looked for across rings.
    fn knows_apart(&self) -> bool {
        let graph = self.graph.as_ref();
        W::IS_APART && graph.is_some_and(|graph| graph.join.is_none())
    }

    fn are_apart(&mut self, rings: &[Steps<'_>]) -> bool {
        let graph = self.graph.as_mut();
        graph.is_some_and(|graph| graph.are_apart(rings, self.sink))
    }

    fn apart(&mut self, rings: Vec<LentSteps>) -> Vec<LentSteps> {
        match &mut self.graph {
            Some(graph) => self.way.apart(graph, rings, self.sink),
            None => rings,
        }
    }
}

/// What a record is by itself, `is_point` when it comes from a ring of points; none of those that have to be put
/// together, and where nothing is missing.
#[inline]
pub(super) fn alone(vcpu: u16, is_point: bool, record: Record) -> Option<Event> {
    let vcpu = match record.kind {
        RecordKind::Wait { vcpu, .. } => vcpu,
        _ => vcpu,
    };
    let (kind, values) = match record.kind {
        RecordKind::Entry(function) => (EventKind::Entry(function), None),
        RecordKind::Called { function, caller } => (EventKind::Entry(function), made_at(caller)),
        RecordKind::Lost(count) if is_point => (EventKind::LostPoints(count), None),
        RecordKind::Lost(0) | RecordKind::Graph { .. } | RecordKind::Captured(_) => return None,
        RecordKind::Lost(count) => (EventKind::Lost(count), None),
        RecordKind::Point(passed) => (EventKind::Point(passed.event), Some(passed.values)),
        RecordKind::Stall(length_ns) => (EventKind::Stall(length_ns), None),
        RecordKind::Wait { length_ns, .. } => (EventKind::Wait(length_ns), None),
        RecordKind::Host(step) => (EventKind::Host(*step), None),
    };
    Some(Event {
        time_ns: record.time_ns,
        vcpu,
        thread: vcpu.into(),
        depth: 0,
        kind,
        values,
    })
}

/// What is known of a call that returns to this address, if it is known.
fn made_at(caller: u64) -> Option<Values> {
    (caller != 0).then(|| [FieldValue::Pointer(Gva(caller))].into())
}
