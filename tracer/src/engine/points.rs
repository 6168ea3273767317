//! Who wants something at a place of the text: the policies, each with what it knows of its own. What each kind of
//! step is about, whether it is current, and who is told when it has been made.

use std::sync::Arc;

use image::Image;
use terms::addr::Gva;

use super::announcer::Announcer;
use super::call_values::CallCaptures;
use super::events::Events;
use super::plan::Step;
use super::probes::{ProbeId, Probes};
use crate::event_formats::EventFormats;
use crate::patch::dynamic::DynamicTable;
use crate::patch::events::Dispatch;
use crate::patch::functions::FunctionTable;
use crate::patch::locks::LockPrefixes;
use crate::text::edit::Edit;

/// The policies.
#[derive(Debug)]
pub struct Points {
    pub(super) functions: FunctionTable,
    pub(super) events: Events,
    pub(super) probes: Probes,
    pub(super) dynamic: DynamicTable,
    pub(super) locks: LockPrefixes,
    /// What can be captured of calls.
    pub(super) calls: CallCaptures,
    /// What tells of modules that come, if the guest has that and the host sees to it.
    pub(super) announcer: Option<Announcer>,
    /// What the records of events and probes say.
    pub(super) formats: Arc<EventFormats>,
}

impl Points {
    /// Nobody wants anything.
    pub(super) fn new(image: &Image) -> Self {
        Self {
            functions: FunctionTable::new(image),
            events: Events::new(image, Dispatch::default()),
            probes: Probes::default(),
            dynamic: DynamicTable::new(image),
            locks: LockPrefixes::On,
            calls: CallCaptures::default(),
            announcer: None,
            formats: Arc::new(EventFormats::of(image)),
        }
    }

    /// What is traced of each function.
    #[must_use]
    pub const fn functions(&self) -> &FunctionTable {
        &self.functions
    }

    /// Who is called at events.
    #[must_use]
    pub const fn events(&self) -> &Events {
        &self.events
    }

    /// The probes.
    #[must_use]
    pub const fn probes(&self) -> &Probes {
        &self.probes
    }

    /// Where the dynamic functions lead.
    #[must_use]
    pub const fn dynamic(&self) -> &DynamicTable {
        &self.dynamic
    }

    /// What stands in front of the listed locked instructions.
    #[must_use]
    pub const fn locks(&self) -> LockPrefixes {
        self.locks
    }

    /// The formats of all events, probes too.
    #[must_use]
    pub const fn formats(&self) -> &Arc<EventFormats> {
        &self.formats
    }

    /// What can be captured of calls.
    #[must_use]
    pub const fn calls(&self) -> &CallCaptures {
        &self.calls
    }

    /// Says whether anybody wants to know of modules, from the next plan on.
    pub fn want_announcements(&mut self, is_wanted: bool) {
        if let Some(announcer) = &mut self.announcer {
            announcer.is_wanted = is_wanted;
        }
    }

    /// Forgets probes that nobody records.
    pub fn forget_probes(&mut self, ids: &[ProbeId]) {
        self.probes.forget(ids);
    }

    /// The writes of text that a step consists of; those that would change nothing are left out.
    pub(super) fn edits<'s>(
        &self,
        image: &Image,
        step: &'s Step,
    ) -> impl Iterator<Item = Edit> + use<'s> {
        let (many, one): (&[Edit], _) = match step {
            Step::Function(change) => (&[], Some(change.edit(image))),
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
    pub fn joins_instructions(&self, image: &Image, step: &Step) -> bool {
        self.edits(image, step)
            .any(|edit| edit.joins_instructions())
    }

    /// Whether a step can be made only while the guest is stopped: several instructions become one, or vCPUs leave the
    /// guest at a breakpoint that the host has to know of by then.
    #[must_use]
    pub fn needs_stop(&self, image: &Image, step: &Step) -> bool {
        match step {
            Step::Place(change) if self.probes.is_breakpoint(change) => true,
            _ => self.joins_instructions(image, step),
        }
    }

    /// Whether what a step is about is as it was when the step was planned.
    #[must_use]
    pub fn is_current(&self, image: &Image, step: &Step) -> bool {
        match step {
            Step::Function(change) => self.functions.is_current(change),
            Step::Tracepoint(change) => self.events.tracepoints.is_current(change),
            Step::Marker(change) => self.events.markers.is_current(change),
            Step::Place(change) => self.probes.places.is_current(change),
            Step::Breakpoints(table) => self.probes.places.table() == Gva(table.word.old),
            Step::Recorded(recorded) => self.probes.is_recorded_as_before(recorded),
            Step::Dynamic(change) => self.dynamic.is_current(image, change),
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
        self.functions.is_gone(poke.function).then_some(poke.at)
    }

    /// Notes that a step has been made.
    pub(super) fn applied(&mut self, step: &Step) {
        match step {
            Step::Function(change) => self.functions.applied(change),
            Step::Tracepoint(change) => self.events.tracepoints.applied(change),
            Step::Marker(change) => self.events.markers.applied(change),
            Step::Place(change) => self.probes.places.applied(change),
            Step::Breakpoints(table) => self.probes.places.lead_to(Gva(table.word.new)),
            Step::Recorded(recorded) => self.probes.recorded(recorded),
            Step::Dynamic(change) => self.dynamic.applied(change),
            Step::Lock(switch) => self.locks = switch.to,
        }
    }
}
