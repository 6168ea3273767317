//! What a change of any kind is made of: steps, each of which is made whole or not at all. Functions, events, probes,
//! dynamic functions and lock prefixes plan their own; all are carried out by the one commit.

use terms::event_format::EventId;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::probes::id::ProbeId;
use crate::patch::dynamic::Retarget;
use crate::patch::events::{Callback, TracepointChange};
use crate::patch::functions::Change;
use crate::patch::locks::LockSwitch;
use crate::patch::markers::MarkerChange;
use crate::patch::probes::{BreakpointTable, PlaceChange};
use crate::session::SessionId;
use crate::text::word::WordWrite;

/// Who records a probe, before and afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// The probe.
    pub probe: ProbeId,
    /// The session that records it now.
    pub before: Option<SessionId>,
    /// The one that does so afterwards.
    pub after: Option<SessionId>,
}

/// One thing that becomes another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Whom a function's site leads to.
    Function(Change),
    /// Who is called at a tracepoint.
    Tracepoint(TracepointChange),
    /// Who records a marker.
    Marker(MarkerChange),
    /// Where a place in the text leads, outside the functions' own sites.
    Place(PlaceChange),
    /// Which breakpoints the guest serves.
    Breakpoints(BreakpointTable),
    /// Who records a probe.
    Recorded(Recorded),
    /// Where a dynamic function leads.
    Dynamic(Retarget),
    /// One lock prefix.
    Lock(LockSwitch),
}

impl Step {
    /// The step that takes this one back, as far as it does not depend on what else has changed since.
    #[must_use]
    pub fn reverse(&self) -> Self {
        match self {
            Self::Function(change) => Self::Function(change.reverse()),
            Self::Tracepoint(change) => Self::Tracepoint(change.reverse()),
            Self::Marker(change) => Self::Marker(change.reverse()),
            Self::Place(change) => Self::Place(change.reverse()),
            Self::Breakpoints(table) => Self::Breakpoints(table.reverse()),
            Self::Recorded(recorded) => Self::Recorded(Recorded {
                probe: recorded.probe,
                before: recorded.after,
                after: recorded.before,
            }),
            Self::Dynamic(change) => Self::Dynamic(change.reverse()),
            Self::Lock(switch) => Self::Lock(switch.reverse()),
        }
    }

    /// Whether anything leads into the window afterwards.
    pub(super) fn leads_somewhere(&self) -> bool {
        match self {
            Self::Function(change) => change.after.is_some(),
            Self::Tracepoint(change) => !change.after.callbacks.is_empty(),
            Self::Marker(change) => !change.after.stubs.is_empty(),
            Self::Place(change) => change.after.is_some(),
            Self::Breakpoints(_) | Self::Recorded(_) | Self::Dynamic(_) | Self::Lock(_) => false,
        }
    }

    /// Whether the guest does something else afterwards: calls other functions, serves other breakpoints.
    const fn changes_the_guest(&self) -> bool {
        match self {
            Self::Tracepoint(_) | Self::Breakpoints(_) | Self::Dynamic(_) | Self::Lock(_) => true,
            Self::Function(_) | Self::Marker(_) | Self::Place(_) | Self::Recorded(_) => false,
        }
    }

    /// The sessions that its places lead to afterwards.
    pub(super) fn sessions(&self) -> SessionSet {
        match self {
            Self::Function(change) => change.after.map_or_else(SessionSet::default, |lead| {
                lead.sessions.and(lead.probed_by)
            }),
            Self::Tracepoint(change) => {
                let called = change.after.callbacks.iter();
                called.fold(SessionSet::default(), |set, (callback, _)| match callback {
                    Callback::Session(id) => set.with(*id),
                    Callback::Guest(_) => set,
                })
            }
            Self::Marker(change) => change.after.sessions,
            Self::Place(change) => change.sessions,
            Self::Breakpoints(_) | Self::Recorded(_) | Self::Dynamic(_) | Self::Lock(_) => {
                SessionSet::default()
            }
        }
    }

    /// The word of the guest's data that is written with it.
    pub(super) fn word(&self) -> Option<&WordWrite> {
        match self {
            Self::Tracepoint(change) => change.word.as_ref(),
            Self::Breakpoints(table) => Some(&table.word),
            _ => None,
        }
    }

    /// The event that it is about.
    #[must_use]
    pub fn event(&self) -> Option<EventId> {
        match self {
            Self::Tracepoint(change) => Some(change.event),
            Self::Marker(change) => Some(change.event),
            _ => None,
        }
    }

    /// The function whose own site it is about.
    #[must_use]
    pub fn function(&self) -> Option<FunctionId> {
        match self {
            Self::Function(change) => Some(change.poke.function),
            _ => None,
        }
    }
}

/// What becomes of a step that cannot be made: somebody else's bytes stand there, a thread is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Obstacles {
    /// Nothing is done at all.
    #[default]
    Refuse,
    /// It is left out and reported.
    LeaveOut,
}

/// Everything that has to be written for a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order in which they are made.
    pub steps: Vec<Step>,
    /// What becomes of those that cannot be made.
    pub obstacles: Obstacles,
}

impl Plan {
    /// One of which nothing is made when a part cannot be.
    #[must_use]
    pub fn whole(steps: Vec<Step>) -> Self {
        Self {
            steps,
            obstacles: Obstacles::Refuse,
        }
    }

    /// One that leaves out what cannot be made.
    #[must_use]
    pub fn lenient(steps: Vec<Step>) -> Self {
        Self {
            steps,
            obstacles: Obstacles::LeaveOut,
        }
    }

    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The plan that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            steps: self.steps.iter().rev().map(Step::reverse).collect(),
            obstacles: self.obstacles,
        }
    }

    /// Whether it can be made in parts. A plan that changes what the guest does is not cut: the guest does all of it or
    /// nothing of it at any moment. One that only changes what is seen of it is.
    #[must_use]
    pub fn may_be_cut(&self) -> bool {
        !self.steps.iter().any(Step::changes_the_guest)
    }
}
