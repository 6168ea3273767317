//! The form in which the records of a ring of calls are wanted: rows for a stream, bytes for a compact trace, records for the
//! data file of a directory. It is made where they are read, so that several threads can do it at a time.

use terms::function::FunctionId;
use trace::event::{Record, RecordKind, SlotStep};
use trace::export::compact::Coder;
use trace::export::uftrace::{CallCoder, Entries};

/// Which one whoever writes wants, if it is not rows.
#[derive(Debug, Clone)]
pub enum Encoding {
    /// Bytes, of a guest with stacks of this many bytes.
    Compact(u64),
    /// Records for a data file, of functions with these entries.
    DataFile(Entries),
}

/// What makes it of the records of one ring.
#[derive(Debug)]
pub(super) enum Encoder {
    Rows,
    Compact(Coder),
    DataFile(CallCoder),
}

impl Encoder {
    /// Functions have come.
    pub fn extend(&mut self, entries: &Entries) {
        if let Self::DataFile(coder) = self {
            coder.extend(entries.clone());
        }
    }
}

impl From<Encoding> for Encoder {
    fn from(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Compact(stack_bytes) => Self::Compact(Coder::new(stack_bytes)),
            Encoding::DataFile(entries) => Self::DataFile(CallCoder::new(entries)),
        }
    }
}

/// Takes records of a ring of calls, each with its time in nanoseconds.
pub(super) trait Form {
    /// The next one.
    fn record(&mut self, record: Record);

    /// The next ones, which are calls without returns.
    fn calls(&mut self, times: &[u64], functions: &[FunctionId]);

    /// The next ones, which are calls without returns, and where they return to.
    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]);

    /// The next ones, which are steps of a graph.
    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]);

    /// So many are missing here, with those before that were.
    fn lost(&mut self, time_ns: u64, count: u64);
}

impl Form for Vec<Record> {
    fn record(&mut self, record: Record) {
        self.push(record);
    }

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
}

impl Form for Coder {
    fn record(&mut self, record: Record) {
        self.record(&record);
    }

    fn calls(&mut self, times: &[u64], functions: &[FunctionId]) {
        self.calls(times, functions);
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        self.called(times, functions, callers);
    }

    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]) {
        self.steps(times, functions, steps);
    }

    fn lost(&mut self, time_ns: u64, count: u64) {
        self.lost(time_ns, count);
    }
}

impl Form for CallCoder {
    fn record(&mut self, record: Record) {
        self.record(&record);
    }

    fn calls(&mut self, times: &[u64], functions: &[FunctionId]) {
        self.calls(times, functions);
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        self.called(times, functions, callers);
    }

    /// They are no calls without returns.
    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]) {
        let mut rows = Vec::new();
        Form::steps(&mut rows, times, functions, steps);
        rows.iter().for_each(|row| self.record(row));
    }

    fn lost(&mut self, time_ns: u64, count: u64) {
        self.lost(time_ns, count);
    }
}
