//! Who calls whom: what each thread has open, or where a call was made.

use std::borrow::Cow;

use terms::function::FunctionId;

use super::calls::Calls;
use super::directory::TraceDirectory;
use super::step_map::StepMap;
use crate::event::{Event, EventKind};

/// The functions that are open, by thread.
#[derive(Debug, Default)]
pub(super) struct Callers(StepMap<u32, Vec<FunctionId>>);

impl Callers {
    /// What made the call that begins or ends with this step, the next one of its thread, as people call it. A trace of
    /// functions may not say.
    pub fn name<'a>(
        &mut self,
        trace: &'a TraceDirectory,
        calls: &Calls,
        step: &Event,
    ) -> Option<Cow<'a, str>> {
        let around = self.caller(step);
        calls
            .caller_name(trace, step)
            .or_else(|| Some(calls.name(trace, around?)))
    }

    /// The call around it, which made it. Of a trace of functions there is none.
    pub fn caller(&mut self, step: &Event) -> Option<FunctionId> {
        let open = self.0.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                open.truncate(step.depth as usize);
                let caller = open.last().copied();
                open.push(function);
                caller
            }
            EventKind::Exit { .. } => {
                open.truncate(step.depth as usize);
                open.last().copied()
            }
            EventKind::Lost(_)
            | EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => None,
        }
    }
}
