//! Who calls whom: what each thread has open, or where a call was made.

use std::borrow::Cow;

use terms::function::FunctionId;

use super::calls::Calls;
use super::directory::TraceDirectory;
use super::step_map::StepMap;
use crate::event::{Event, EventKind};

/// Who made a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Caller {
    /// Nobody who is traced.
    #[default]
    Untraced,
    /// Records were lost since what is open around it was entered: what has made it can be among them.
    NotSeen,
    /// A function.
    Function(FunctionId),
}

/// What stands where a call can have been made by one that was lost.
const NOT_SEEN: &str = "(not seen)";
/// What that is.
pub(super) const NOT_SEEN_IS: &str = "(not seen): records were lost since what is open around the call was entered, its caller can be among them";

impl Caller {
    /// What tables have of it, with the names of functions; nothing where there is nobody who has one.
    pub fn shown(self, name: impl FnOnce(FunctionId) -> String) -> Option<String> {
        match self {
            Self::Untraced => None,
            Self::NotSeen => Some(NOT_SEEN.to_owned()),
            Self::Function(function) => Some(name(function)),
        }
    }

    const fn function(self) -> Option<FunctionId> {
        match self {
            Self::Untraced | Self::NotSeen => None,
            Self::Function(function) => Some(function),
        }
    }
}

/// A call that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    function: FunctionId,
    /// How many losses there were before it.
    losses: u64,
}

/// The functions that are open, by thread; of a graph, of which the steps of all threads come in the order of time.
#[derive(Debug, Default)]
pub(super) struct Callers {
    threads: StepMap<u32, Vec<Open>>,
    /// Losses so far. What was lost can have been of any thread.
    losses: u64,
}

impl Callers {
    /// What made the call that begins or ends with this step, the next one of its thread, as people call it, if that is
    /// known. A trace of functions may not say.
    pub fn name<'a>(
        &mut self,
        trace: &'a TraceDirectory,
        calls: &Calls,
        step: &Event,
    ) -> Option<Cow<'a, str>> {
        let around = self.caller(step).function();
        calls
            .caller_name(trace, step)
            .or_else(|| Some(calls.name(trace, around?)))
    }

    /// The call around it, which made it. Of a trace of functions there is none.
    pub fn caller(&mut self, step: &Event) -> Caller {
        let losses = self.losses;
        let open = self.threads.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                open.truncate(step.depth as usize);
                let caller = around(open, losses);
                open.push(Open { function, losses });
                caller
            }
            EventKind::Exit { .. } => {
                // Who made it was found at its entry: that is as sure as it was then.
                let entered = open.get(step.depth as usize).map(|call| call.losses);
                open.truncate(step.depth as usize);
                around(open, entered.unwrap_or(losses))
            }
            EventKind::Lost(_) => {
                self.losses += 1;
                Caller::Untraced
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Caller::Untraced,
        }
    }
}

/// What made a call, with these open around it, after so many losses.
fn around(open: &[Open], losses: u64) -> Caller {
    match open.last() {
        Some(call) if call.losses == losses => Caller::Function(call.function),
        None if losses == 0 => Caller::Untraced,
        Some(_) | None => Caller::NotSeen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::End;
    use crate::testing::{entry, event};

    const fn exit(function: u32) -> EventKind {
        EventKind::Exit {
            function: FunctionId(function),
            end: End::Returned,
            duration: None,
        }
    }

    #[test]
    fn what_was_open_when_records_were_lost_has_called_nothing_for_certain() {
        let function = |function| Caller::Function(FunctionId(function));
        let lost = EventKind::Lost(1);
        let mut callers = Callers::default();
        // The thread, its depth, what happens, and who made that call.
        for (thread, depth, kind, caller) in [
            (0, 0, entry(0), Caller::Untraced),
            (0, 1, entry(1), function(0)),
            (1, 0, entry(5), Caller::Untraced),
            (1, 0, lost, Caller::Untraced),
            // Its caller was found before.
            (0, 1, exit(1), function(0)),
            (0, 1, entry(2), Caller::NotSeen),
            (0, 2, entry(3), function(2)),
            (0, 2, exit(3), function(2)),
            (0, 1, exit(2), Caller::NotSeen),
            (0, 0, exit(0), Caller::Untraced),
            (0, 0, entry(4), Caller::NotSeen),
            (0, 1, entry(1), function(4)),
            // Of what vCPU it was does not say of which threads.
            (1, 1, entry(6), Caller::NotSeen),
            (2, 0, entry(7), Caller::NotSeen),
            (2, 1, entry(8), function(7)),
            (0, 0, lost, Caller::Untraced),
            (2, 2, entry(8), Caller::NotSeen),
        ] {
            let step = event(0, 0, thread, depth, kind);
            assert_eq!(callers.caller(&step), caller, "{step:?}");
        }
    }
}
