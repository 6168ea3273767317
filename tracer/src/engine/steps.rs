//! What each kind of step is about: its edits of text, whether it is current, and who is told when it has been made.

use terms::addr::Gva;

use super::Engine;
use super::plan::Step;
use crate::patch::probes::PlaceChange;
use crate::patch::tactic::Tactic;
use crate::text::edit::Edit;

impl Engine {
    /// The writes of text that a step consists of; those that would change nothing are left out.
    pub(super) fn edits<'s>(&self, step: &'s Step) -> impl Iterator<Item = Edit> + use<'s> {
        let (many, one): (&[Edit], _) = match step {
            Step::Function(change) => (&[], Some(change.edit(&self.image))),
            Step::Tracepoint(change) => (&change.edits, None),
            Step::Marker(change) => (&change.edits, None),
            Step::Place(change) => (&change.edits, None),
            Step::Dynamic(change) => (&[], Some(change.edit())),
            Step::Lock(switch) => (&[], Some(switch.edit())),
            Step::Breakpoints(_) | Step::Recorded(_) => (&[], None),
        };
        let all = many.iter().cloned().chain(one);
        all.filter(|edit| edit.poke.expected != edit.poke.new)
    }

    /// Whether a step makes several instructions one.
    #[must_use]
    pub fn joins_instructions(&self, step: &Step) -> bool {
        self.edits(step).any(|edit| edit.joins_instructions())
    }

    /// Whether a step can be made only while the guest is stopped: several instructions become one, or vCPUs leave the
    /// guest at a breakpoint that the host has to know of by then.
    #[must_use]
    pub fn needs_stop(&self, step: &Step) -> bool {
        let is_breakpoint = |change: &PlaceChange| {
            let state = self.places.place(change.at);
            state.is_some_and(|state| state.place.tactic == Tactic::Breakpoint)
        };
        match step {
            Step::Place(change) if is_breakpoint(change) => true,
            _ => self.joins_instructions(step),
        }
    }

    /// Whether what a step is about is as it was when the step was planned.
    #[must_use]
    pub fn is_current(&self, step: &Step) -> bool {
        match step {
            Step::Function(change) => self.table.is_current(change),
            Step::Tracepoint(change) => self.tracepoints.is_current(change),
            Step::Marker(change) => self.markers.is_current(change),
            Step::Place(change) => self.places.is_current(change),
            Step::Breakpoints(table) => self.places.table() == Gva(table.word.old),
            Step::Recorded(recorded) => {
                let probe = self.probes.get(&recorded.probe);
                probe.is_some_and(|probe| probe.session == recorded.before && !probe.is_gone)
            }
            Step::Dynamic(change) => self.dynamic.is_current(&self.image, change),
            Step::Lock(switch) => self.locks == switch.from,
        }
    }

    /// The text that a step is about and the guest has given back, if it has.
    pub(super) fn gone_text(&self, step: &Step) -> Option<Gva> {
        let poke = match step {
            Step::Function(change) => change.poke,
            Step::Place(change) => change.edits.first()?.poke,
            _ => return None,
        };
        self.table.is_gone(poke.function).then_some(poke.at)
    }

    /// Notes that a step has been made.
    pub(super) fn applied(&mut self, step: &Step) {
        match step {
            Step::Function(change) => self.table.applied(change),
            Step::Tracepoint(change) => self.tracepoints.applied(change),
            Step::Marker(change) => self.markers.applied(change),
            Step::Place(change) => self.places.applied(change),
            Step::Breakpoints(table) => self.places.lead_to(Gva(table.word.new)),
            Step::Recorded(recorded) => {
                if let Some(probe) = self.probes.get_mut(&recorded.probe) {
                    probe.session = recorded.after;
                }
            }
            Step::Dynamic(change) => self.dynamic.applied(change),
            Step::Lock(_) => {}
        }
    }
}
