//! What a ring of calls delivers, turned into records, in the form that is wanted.

use std::sync::Mutex;

use crate::clock::RunClock;
use crate::record::{Beside, Format};
use crate::ring::reader::{Delivered, Sink};
use crate::ring::run::{BATCH, BesideAll, Run};
use crate::stub::mirror::stacks::Stacks;
use trace::event::{Record, RecordKind, SlotStep};
use trace::form::Form;

use super::looks::lock;
use super::rings::SharedRings;

/// Turns what a ring of calls delivers into records.
pub(super) struct CallSink<'a, F> {
    pub clock: &'a RunClock,
    pub rings: &'a SharedRings,
    pub stacks: &'a Mutex<Stacks>,
    pub to: &'a mut F,
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

impl<F: Form> CallSink<'_, F> {
    fn push(&mut self, ticks: u64, kind: RecordKind) {
        let time_ns = self.clock.nanoseconds(ticks);
        self.to.record(&Record { time_ns, kind });
    }
}

impl<F: Form> Sink for CallSink<'_, F> {
    fn record(&mut self, record: Delivered) {
        self.count += 1;
        let is_late = std::mem::take(&mut self.is_late);
        let is_unsure = is_late || record.doubt.is_some();
        let is_unsure = is_unsure && record.beside.step().is_some();
        // Nothing is missing; what is open is not certain any more, or how long it takes.
        let unsure = |sink: &mut Self| sink.push(record.ticks, RecordKind::Lost(0));
        if is_unsure {
            unsure(self);
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
        if is_unsure {
            // Nor is what it opens itself.
            unsure(self);
        }
    }

    fn run(&mut self, run: Run<'_>) {
        self.count += run.ticks.len();
        let mut times = [0; BATCH];
        self.clock.all_nanoseconds(run.ticks, &mut times);
        let times = times.get(..run.ticks.len()).unwrap_or_default();
        let steps = match run.beside {
            BesideAll::Nothing => return self.to.calls(times, run.functions),
            BesideAll::Callers(callers) => return self.to.called(times, run.functions, callers),
            BesideAll::Steps(steps) => steps,
        };
        if self.rings.format() == Format::Graph {
            return self.to.steps(times, run.functions, steps);
        }
        let mut wholes = [SlotStep::default(); BATCH];
        let mut stacks = lock(self.stacks);
        for (place, at) in wholes.iter_mut().zip(steps) {
            let slot = whole(at.slot(), self.rings, &mut stacks);
            *place = SlotStep::new(slot, at.step() as u64);
        }
        drop(stacks);
        let steps = wholes.get(..steps.len()).unwrap_or_default();
        self.to.steps(times, run.functions, steps);
    }

    fn lost(&mut self, ticks: u64, records: u64) {
        self.to.lost(self.clock.nanoseconds(ticks), records);
    }

    fn late(&mut self) {
        self.is_late = true;
    }
}
