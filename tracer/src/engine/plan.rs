//! What has to be written for a change of any kind: functions, events, probes, dynamic functions, lock prefixes. Each
//! policy says what it wants at which sites, the table of sites what that changes; all is carried out by the one commit.

use terms::addr::Gva;
use terms::event_format::EventId;
use terms::function::FunctionId;

use super::probes::id::ProbeId;
use crate::points::events::Callback;
use crate::session::SessionId;
use crate::text::edit::Edit;
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

/// Who is called at a tracepoint, in order, and where that is: before and afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// Which one.
    pub event: EventId,
    /// Who is called now.
    pub before: Vec<(Callback, Gva)>,
    /// Who is called afterwards.
    pub after: Vec<(Callback, Gva)>,
}

/// What becomes another thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Whom a function's site leads to.
    Function(FunctionId),
    /// Who is called at a tracepoint.
    Tracepoint(Called),
    /// Who records a marker.
    Marker(EventId),
    /// Where a place in the text leads, outside the functions' own sites.
    Place {
        /// Whether it is a breakpoint, at which vCPUs may leave the guest.
        is_breakpoint: bool,
    },
    /// Which breakpoints the guest serves.
    Breakpoints,
    /// Who records a probe.
    Recorded(Recorded),
    /// Where a dynamic function leads: its jump, and to what.
    Dynamic(Gva, Gva),
    /// One lock prefix.
    Lock,
    /// A site that is made one nop, once and for all.
    Normal,
}

impl What {
    /// Whether it is where a breakpoint leads.
    pub(super) const fn is_breakpoint(&self) -> bool {
        matches!(
            self,
            Self::Place {
                is_breakpoint: true
            }
        )
    }
}

/// One thing that becomes another: what that is, and what is written for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanStep {
    /// What it is about.
    pub what: What,
    /// The changes of sites, in their order.
    pub edits: Vec<Edit>,
    /// The word of the guest's data that is written with them.
    pub word: Option<WordWrite>,
}

impl PlanStep {
    /// One that changes these sites.
    pub(super) const fn of(what: What, edits: Vec<Edit>) -> Self {
        Self {
            what,
            edits,
            word: None,
        }
    }

    /// One that changes a single site.
    pub(super) fn one(what: What, edit: Edit) -> Self {
        Self::of(what, vec![edit])
    }

    /// The step that takes this one back, as far as it does not depend on what else has changed since.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            what: match &self.what {
                What::Tracepoint(called) => What::Tracepoint(Called {
                    event: called.event,
                    before: called.after.clone(),
                    after: called.before.clone(),
                }),
                What::Recorded(recorded) => What::Recorded(Recorded {
                    probe: recorded.probe,
                    before: recorded.after,
                    after: recorded.before,
                }),
                what => what.clone(),
            },
            edits: self.edits.iter().rev().map(Edit::reverse).collect(),
            word: self.word.as_ref().map(WordWrite::reverse),
        }
    }

    /// Whether anything leads into the window afterwards.
    pub(super) fn leads_somewhere(&self) -> bool {
        match &self.what {
            What::Tracepoint(called) => !called.after.is_empty(),
            What::Function(_) | What::Marker(_) | What::Place { .. } => {
                self.edits.iter().any(|edit| edit.after.is_some())
            }
            _ => false,
        }
    }

    /// Whether the guest does something else afterwards: calls other functions, serves other breakpoints.
    const fn changes_the_guest(&self) -> bool {
        match self.what {
            What::Tracepoint(_) | What::Breakpoints | What::Dynamic(..) => true,
            What::Lock | What::Normal => true,
            What::Function(_) | What::Marker(_) | What::Place { .. } | What::Recorded(_) => false,
        }
    }

    /// Whether several instructions become one.
    #[must_use]
    pub fn joins_instructions(&self) -> bool {
        self.edits.iter().any(Edit::joins_instructions)
    }

    /// Whether it can be made only while the guest is stopped: several instructions become one, or vCPUs leave the
    /// guest at a breakpoint that the host has to know of by then.
    #[must_use]
    pub fn needs_stop(&self) -> bool {
        self.what.is_breakpoint() || self.joins_instructions()
    }

    /// Whether each of its writes is one instruction in one aligned word, so that it can be made while every vCPU runs.
    #[must_use]
    pub fn is_of_words(&self) -> bool {
        let changes_at_once = matches!(self.what, What::Breakpoints | What::Lock | What::Normal);
        let mut edits = self.edits.iter();
        !changes_at_once
            && !self.what.is_breakpoint()
            && self.word.is_none()
            && edits.all(Edit::is_of_one_word)
    }

    /// The event that it is about.
    #[must_use]
    pub const fn event(&self) -> Option<EventId> {
        match &self.what {
            What::Tracepoint(called) => Some(called.event),
            What::Marker(event) => Some(*event),
            _ => None,
        }
    }

    /// The function whose own site it is about.
    #[must_use]
    pub const fn function(&self) -> Option<FunctionId> {
        match self.what {
            What::Function(function) => Some(function),
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
    pub steps: Vec<PlanStep>,
    /// What becomes of those that cannot be made.
    pub obstacles: Obstacles,
}

impl Plan {
    /// One of which nothing is made when a part cannot be.
    #[must_use]
    pub fn whole(steps: Vec<PlanStep>) -> Self {
        Self {
            steps,
            obstacles: Obstacles::Refuse,
        }
    }

    /// One that leaves out what cannot be made.
    #[must_use]
    pub fn lenient(steps: Vec<PlanStep>) -> Self {
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
            steps: self.steps.iter().rev().map(PlanStep::reverse).collect(),
            obstacles: self.obstacles,
        }
    }

    /// Takes out what is meant: all of it, or of a plan that may be cut as much as is meant. None where that is nothing.
    #[must_use]
    pub fn take(&mut self, is_meant: impl Fn(&PlanStep) -> bool) -> Option<Self> {
        let may_be_taken = self.may_be_cut() || self.steps.iter().all(&is_meant);
        self.taken(may_be_taken, is_meant)
    }

    /// Takes out the steps that are `of_words`, if any writes something: those that can be made while every vCPU runs. A plan
    /// that may not be cut is taken as a whole, if it is one write.
    #[must_use]
    pub fn take_words(&mut self, of_words: impl Fn(&PlanStep) -> bool) -> Option<Self> {
        let writes = self.steps.iter().flat_map(|step| &step.edits);
        let is_one_write = writes.filter(|edit| edit.is_write()).count() <= 1;
        self.taken(self.may_be_cut() || is_one_write, of_words)
    }

    /// What writes nothing goes with the rest, if there is one.
    fn taken(&mut self, may_be_taken: bool, is_meant: impl Fn(&PlanStep) -> bool) -> Option<Self> {
        if !may_be_taken {
            return None;
        }
        let steps = match self.steps.iter().all(&is_meant) {
            true => std::mem::take(&mut self.steps),
            false => {
                let writes = |step: &PlanStep| !step.edits.is_empty() || step.word.is_some();
                let is_taken = |step: &mut PlanStep| writes(step) && is_meant(step);
                self.steps.extract_if(.., is_taken).collect()
            }
        };
        let obstacles = self.obstacles;
        (!steps.is_empty()).then_some(Self { steps, obstacles })
    }

    /// Whether it can be made in parts. A plan that changes what the guest does is not cut: the guest does all of it or
    /// nothing of it at any moment. One that only changes what is seen of it is.
    #[must_use]
    pub fn may_be_cut(&self) -> bool {
        !self.steps.iter().any(PlanStep::changes_the_guest)
    }
}
