//! Who calls whom: the calls of each thread that are open.

use std::collections::HashMap;

use terms::function::FunctionId;

use crate::event::{Event, EventKind};

/// The functions that are open, by thread.
#[derive(Debug, Default)]
pub(super) struct Callers(HashMap<u32, Vec<FunctionId>>);

impl Callers {
    /// The next step of its thread: who made the call that begins or ends with it. Of a trace of functions nobody knows.
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
