//! The form in which the records of a ring of calls are wanted: rows for a stream, bytes for a compact trace, records for the
//! data file of a directory. It is made where they are read, so that several threads can do it at a time.

use terms::function::FunctionId;

use crate::event::{Record, RecordKind, SlotStep};

/// Takes the records of a ring of calls, in their order, each with its time in nanoseconds. Of what comes many at a time there
/// is a column for each thing that it says; all columns are as long.
pub trait Form {
    /// Calls without returns.
    fn calls(&mut self, times: &[u64], functions: &[FunctionId]);

    /// The same, with where they return to (0 where that is not known).
    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]);

    /// Steps of a graph.
    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]);

    /// So many are missing; what is missing at once is one loss.
    fn lost(&mut self, time_ns: u64, count: u64);

    /// A record of no call.
    fn other(&mut self, record: &Record);

    /// Any record.
    fn record(&mut self, record: &Record) {
        let times = [record.time_ns];
        match &record.kind {
            RecordKind::Entry(function) => self.calls(&times, &[*function]),
            RecordKind::Called { function, caller } => {
                self.called(&times, &[*function], &[*caller]);
            }
            RecordKind::Graph {
                function,
                step,
                slot,
            } => self.steps(&times, &[*function], &[SlotStep::new(*slot, *step as u64)]),
            RecordKind::Lost(count) => self.lost(record.time_ns, *count),
            RecordKind::Point(_)
            | RecordKind::Captured(_)
            | RecordKind::Stall(_)
            | RecordKind::Wait { .. }
            | RecordKind::Host(_) => self.other(record),
        }
    }
}

/// Rows.
impl Form for Vec<Record> {
    fn calls(&mut self, times: &[u64], functions: &[FunctionId]) {
        let calls = times.iter().zip(functions);
        self.extend(calls.map(|(time_ns, function)| Record {
            time_ns: *time_ns,
            kind: RecordKind::Entry(*function),
        }));
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        let calls = times.iter().zip(functions).zip(callers);
        self.extend(calls.map(|((time_ns, function), caller)| Record {
            time_ns: *time_ns,
            kind: RecordKind::Called {
                function: *function,
                caller: *caller,
            },
        }));
    }

    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]) {
        let steps = times.iter().zip(functions).zip(steps);
        self.extend(steps.map(|((time_ns, function), at)| Record {
            time_ns: *time_ns,
            kind: RecordKind::Graph {
                function: *function,
                step: at.step(),
                slot: at.slot(),
            },
        }));
    }

    fn lost(&mut self, time_ns: u64, count: u64) {
        match self.last_mut().map(|record| &mut record.kind) {
            Some(RecordKind::Lost(before)) => *before = before.saturating_add(count),
            _ => self.push(Record {
                time_ns,
                kind: RecordKind::Lost(count),
            }),
        }
    }

    fn other(&mut self, record: &Record) {
        self.push(record.clone());
    }
}
