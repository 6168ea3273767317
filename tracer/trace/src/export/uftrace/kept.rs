//! A session's stream kept as a uftrace directory.

use super::tracks::Tracks;
use super::{CodedCalls, Entries, ExportError, Tally, UftraceWriter};
use crate::crew::Crew;
use crate::event::{Event, EventKind, KeepsApart, Sink, SureStep};
use crate::export::budget::Budget;
use crate::export::store::{Ending, News, Store};
use crate::stream::{Pass, Stream};

impl Sink for UftraceWriter {
    #[inline(always)]
    fn event(&mut self, event: Event) {
        let outcome = match event.kind {
            EventKind::Entry(function) if self.has_entries_only() => {
                self.append_entry(event.vcpu, event.time_ns, function, event.caller())
            }
            _ => self.append(event),
        };
        if let Err(error) = outcome {
            self.note(error);
        }
    }

    fn steps(&mut self, vcpu: u16, thread: u32, steps: &[SureStep]) {
        let Some(threads) = &mut self.threads else {
            // Where threads are not told apart, each is a call of its own.
            let each = steps.iter();
            return each.for_each(|step| self.event(step.event(vcpu, thread)));
        };
        if let Err(error) = threads.append_all(vcpu, thread, steps) {
            self.note(error);
        }
    }

    /// Each thread has a file of its own, and each vCPU for its points.
    fn is_ordered(&self) -> bool {
        false
    }
}

impl KeepsApart for UftraceWriter {
    type Part = Tracks;

    fn lend(&mut self, threads: &[u32]) -> Option<Tracks> {
        self.threads.as_mut()?.lend(threads)
    }

    fn take_back(&mut self, part: Tracks) {
        let outcome = self.threads.as_mut().map(|all| all.take_back(part));
        if let Some(Err(error)) = outcome {
            self.note(error);
        }
    }
}

impl Store for UftraceWriter {
    fn learn(&mut self, news: News<'_>) {
        let outcome = match news {
            News::Functions(text) => self.extend(text),
            News::Metadata(metadata) => self.describe(*metadata),
            News::Probes(probes) => self.describe_probes(probes),
            News::Values(values) => self.describe_values(values),
            News::Points(formats) => {
                self.points = formats.to_vec();
                Ok(())
            }
            News::Thread(thread, name) => {
                self.name_thread(thread, name);
                Ok(())
            }
        };
        if let Err(error) = outcome {
            self.note(error);
        }
    }

    fn set_budget(&mut self, budget: &Budget) {
        for lane in &mut self.lanes {
            lane.storage().budget = budget.clone();
        }
        if let Some(threads) = &mut self.threads {
            threads.lanes.set_budget(budget);
        }
        self.events.set_budget(budget);
        self.steps = budget.steps().clone();
    }

    fn take(&mut self, stream: &mut Stream, pass: Pass, crew: &dyn Crew) {
        stream.pass_apart(pass, self, crew);
    }

    fn entries(&self) -> Option<&Entries> {
        self.has_entries_only().then_some(&self.entries)
    }

    fn coded(&mut self, vcpu: u16, calls: CodedCalls) {
        if let Err(error) = self.append_coded(vcpu, calls) {
            self.note(error);
        }
    }

    fn flush(&mut self) {
        if let Err(error) = Self::flush(self) {
            self.note(error);
        }
    }

    fn error(&self) -> Option<&ExportError> {
        self.error.as_ref()
    }

    fn finish(&mut self, end: Ending) -> Result<Tally, ExportError> {
        self.side.doubts = end.doubts;
        self.side.anomalies = end.anomalies;
        self.side.strays = self.side.strays.saturating_add(end.strays);
        self.is_cut = end.is_cut;
        self.side.until_ns = end.until_ns;
        let closed = self.close();
        match self.error.take().or(closed.err()) {
            Some(error) => Err(error.with_dropped(self.dropped_records())),
            None => Ok(self.tally()),
        }
    }
}

impl UftraceWriter {
    /// The first error stays.
    #[cold]
    pub(super) fn note(&mut self, error: ExportError) {
        let first = self.error.take().unwrap_or(error);
        self.error = Some(first.with_dropped(self.dropped_records()));
    }
}
