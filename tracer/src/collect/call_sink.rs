//! What a ring of calls delivers, turned into records: rows for a stream, or bytes for a compact trace.

use std::sync::Mutex;

use crate::clock::RunClock;
use crate::record::{Beside, Format};
use crate::ring::reader::{Delivered, Sink};
use crate::ring::run::{BATCH, BesideAll, Run};
use crate::stub::mirror::stacks::Stacks;
use terms::function::FunctionId;
use trace::event::{Record, RecordKind, SlotStep};
use trace::export::compact::Coder;

use super::looks::lock;
use super::rings::SharedRings;

/// Where records go.
#[derive(Debug)]
pub(super) enum To<'a> {
    Rows(&'a mut Vec<Record>),
    Bytes(&'a mut Coder),
}

/// Turns what a ring of calls delivers into records.
pub(super) struct CallSink<'a> {
    pub clock: &'a RunClock,
    pub rings: &'a SharedRings,
    pub stacks: &'a Mutex<Stacks>,
    pub to: To<'a>,
    pub is_late: bool,
    /// How many records there were.
    pub count: usize,
}

/// The address of a stack slot, of which a record can have a part.
fn whole(slot: u64, rings: &SharedRings, stacks: &mut Stacks) -> u64 {
    match rings.format() {
        Format::GraphUntimed => stacks.whole(slot, || rings.directory()),
        Format::Calls | Format::Callers | Format::Graph => slot,
    }
}

impl CallSink<'_> {
    fn push(&mut self, ticks: u64, kind: RecordKind) {
        let record = Record {
            time_ns: self.clock.nanoseconds(ticks),
            kind,
        };
        match &mut self.to {
            To::Rows(rows) => rows.push(record),
            To::Bytes(coder) => coder.record(&record),
        }
    }

    fn calls(&mut self, times: &[u64], functions: &[FunctionId]) {
        match &mut self.to {
            To::Rows(rows) => {
                rows.extend(times.iter().zip(functions).map(|(time_ns, function)| {
                    let kind = RecordKind::Entry(*function);
                    Record {
                        time_ns: *time_ns,
                        kind,
                    }
                }))
            }
            To::Bytes(coder) => coder.calls(times, functions),
        }
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        match &mut self.to {
            To::Rows(rows) => {
                let columns = times.iter().zip(functions).zip(callers);
                rows.extend(columns.map(|((time_ns, function), caller)| Record {
                    time_ns: *time_ns,
                    kind: RecordKind::Called {
                        function: *function,
                        caller: *caller,
                    },
                }));
            }
            To::Bytes(coder) => coder.called(times, functions, callers),
        }
    }

    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]) {
        match &mut self.to {
            To::Rows(rows) => {
                let columns = times.iter().zip(functions).zip(steps);
                rows.extend(columns.map(|((time_ns, function), at)| Record {
                    time_ns: *time_ns,
                    kind: RecordKind::Graph {
                        function: *function,
                        step: at.step(),
                        slot: at.slot(),
                    },
                }));
            }
            To::Bytes(coder) => coder.steps(times, functions, steps),
        }
    }
}

impl Sink for CallSink<'_> {
    fn record(&mut self, record: Delivered) {
        self.count += 1;
        let is_late = std::mem::take(&mut self.is_late);
        if (is_late || record.doubt.is_some()) && record.beside.step().is_some() {
            // Nothing is missing; what is open is not certain any more, or how long it takes.
            self.push(record.ticks, RecordKind::Lost(0));
        }
        let function = record.function;
        let kind = match record.beside {
            Beside::Nothing => RecordKind::Entry(function),
            Beside::Caller(caller) => RecordKind::Called { function, caller },
            Beside::Step(step, slot) => RecordKind::Graph {
                function,
                step,
                slot: whole(slot, self.rings, &mut lock(self.stacks)),
            },
        };
        self.push(record.ticks, kind);
    }

    fn run(&mut self, run: Run<'_>) {
        self.count += run.ticks.len();
        let mut times = [0; BATCH];
        self.clock.all_nanoseconds(run.ticks, &mut times);
        let times = times.get(..run.ticks.len()).unwrap_or_default();
        let steps = match run.beside {
            BesideAll::Nothing => return self.calls(times, run.functions),
            BesideAll::Callers(callers) => return self.called(times, run.functions, callers),
            BesideAll::Steps(steps) => steps,
        };
        if self.rings.format() == Format::Graph {
            return self.steps(times, run.functions, steps);
        }
        let mut wholes = [SlotStep::default(); BATCH];
        let mut stacks = lock(self.stacks);
        for (place, at) in wholes.iter_mut().zip(steps) {
            let slot = whole(at.slot(), self.rings, &mut stacks);
            *place = SlotStep::new(slot, at.step() as u64);
        }
        drop(stacks);
        let steps = wholes.get(..steps.len()).unwrap_or_default();
        self.steps(times, run.functions, steps);
    }

    fn lost(&mut self, ticks: u64, records: u64) {
        let time_ns = self.clock.nanoseconds(ticks);
        match &mut self.to {
            To::Rows(rows) => match rows.last_mut().map(|record| &mut record.kind) {
                Some(RecordKind::Lost(before)) => *before = before.saturating_add(records),
                _ => self.push(ticks, RecordKind::Lost(records)),
            },
            To::Bytes(coder) => coder.lost(time_ns, records),
        }
    }

    fn late(&mut self) {
        self.is_late = true;
    }
}
