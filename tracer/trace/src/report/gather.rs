//! One walk through a trace, for all that a view wants to know of it.

use terms::function::FunctionId;

use super::Printed;
use super::boot::Boot;
use super::callers::Caller;
use super::calls::Calls;
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::events::Counts;
use super::functions::Functions;
use super::rows::Rows;
use super::slowest::Slowest;
use super::step_map::StepMap;
use super::stream::{Happened, Leaves, Stream};
use super::summary::Summary;
use super::timeline::Timeline;
use super::values::Values;
use crate::event::Event;

/// What is added up on the way.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub summary: Option<Summary>,
    pub slowest: Option<Slowest>,
    pub events: Counts,
    pub values: Option<Values>,
    pub timeline: Option<Timeline>,
    pub boot: Option<Boot>,
    /// The times of the first and of the last thing that happened.
    pub span_ns: Option<(u64, u64)>,
    pub printed: Printed,
}

impl Gathered {
    /// Walks through all of a trace. What was good before an error is gathered.
    pub fn walk(
        &mut self,
        trace: &TraceDirectory,
        calls: &mut Calls,
        rows: &Rows,
    ) -> Result<(), ReportError> {
        let mut wanted: StepMap<FunctionId, bool> = StepMap::default();
        let mut is_wanted = |step: &Event, functions: &Functions| {
            let have = |id| rows.have(Some(&functions.name(trace, id)));
            let of = |id| *wanted.entry(id).or_insert_with(|| have(id));
            step.function().is_some_and(of)
        };
        let said = |step: &Event, functions: &Functions| {
            let caller = || functions.caller(trace, step);
            let said = || caller().map_or(Caller::Untraced, Caller::Function);
            trace.has_callers().then(said)
        };
        let asks = self.asks_for_functions();
        let mut read = Ok(());
        if self.asks_for_no_order(trace) && calls.are_all() {
            // Events are gathered also where a thread cannot be read to its end.
            read = calls.each(|step, functions| {
                self.printed.count_step(step);
                let is_wanted = asks && is_wanted(step, functions);
                self.step(step, said(step, functions), is_wanted);
            });
        }
        let mut stream = Stream::of(trace, calls, Leaves::Whole)?;
        while let Some(happened) = stream.next()? {
            self.printed.count(&happened);
            match happened {
                Happened::Call(shown) => {
                    for step in shown.steps() {
                        let functions = &stream.calls.functions;
                        let is_wanted = asks && is_wanted(&step, functions);
                        self.step(&step, said(&step, functions), is_wanted);
                        if let Some(boot) = &mut self.boot {
                            boot.add(&step, |id| functions.name(trace, id).into_owned());
                        }
                    }
                }
                Happened::Point(event) => {
                    self.at(event.time_ns);
                    self.events.add(&event);
                    if let Some(timeline) = &mut self.timeline {
                        timeline.point(&event);
                    }
                    if let Some(values) = &mut self.values {
                        values.add(&event);
                    }
                }
                Happened::Remark(_) => {}
            }
        }
        self.printed.read_events = stream.events();
        self.lost_unsaid(trace.unsaid());
        read
    }

    /// So many records are missing, and no step says so.
    fn lost_unsaid(&mut self, count: u64) {
        self.printed.lost = self.printed.lost.saturating_add(count);
        if let Some(summary) = &mut self.summary {
            summary.lost_unsaid(count);
        }
    }

    /// Whether it matters which functions are wanted, before all is added up.
    const fn asks_for_functions(&self) -> bool {
        self.slowest.is_some() || self.timeline.is_some()
    }

    /// Whether it does not matter which of two threads was first.
    fn asks_for_no_order(&self, trace: &TraceDirectory) -> bool {
        // What has made a call depends on what was lost before it, on any vCPU.
        let asks_for_callers =
            self.slowest.is_some() || self.summary.as_ref().is_some_and(Summary::has_callers);
        let is_whole = !asks_for_callers || trace.has_lost_nothing();
        self.timeline.is_none() && self.boot.is_none() && is_whole
    }

    fn step(&mut self, step: &Event, caller: Option<Caller>, is_wanted: bool) {
        self.at(step.time_ns);
        if let Some(summary) = &mut self.summary {
            summary.add(step, caller);
        }
        if let Some(slowest) = &mut self.slowest {
            slowest.add(step, is_wanted);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.step(step, is_wanted);
        }
    }

    fn at(&mut self, time_ns: u64) {
        let (first, last) = self.span_ns.unwrap_or((time_ns, time_ns));
        self.span_ns = Some((first.min(time_ns), last.max(time_ns)));
    }
}
