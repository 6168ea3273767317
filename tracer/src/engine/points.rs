//! Who wants something at a place of the text: the policies, each with what it knows of its own beside the table of
//! sites, and who of them is told when a step has been made.

use std::sync::Arc;

use super::announcer::{Announcer, with_site};
use super::call_values::CallCaptures;
use super::events::Events;
use super::plan::What;
use super::probes::{ProbeError, ProbeId, Probes};
use crate::event_formats::EventFormats;
use crate::guest_kind;
use crate::points::events::Dispatch;
use crate::session::SessionId;
use crate::stack::StackReader;
use crate::text::sites::Sites;
use image::Image;
use terms::function::FunctionId;

/// The policies.
#[derive(Debug)]
pub struct Points {
    pub(super) events: Events,
    pub(super) probes: Probes,
    /// What can be captured of calls.
    pub(super) calls: CallCaptures,
    /// What tells of modules that come, if the guest has that and the host sees to it.
    pub(super) announcer: Option<Announcer>,
    /// The function that the guest calls for each new task, if it has a site.
    pub(super) begins_tasks: Option<FunctionId>,
    /// What the records of events and probes say.
    pub(super) formats: Arc<EventFormats>,
}

impl Points {
    /// Nobody wants anything.
    pub(super) fn new(image: &Image) -> Self {
        Self {
            events: Events::new(image, Dispatch::default()),
            probes: Probes::default(),
            calls: CallCaptures::default(),
            announcer: None,
            begins_tasks: called_for_tasks(image),
            formats: Arc::new(EventFormats::of(image)),
        }
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

    /// The formats of all events, probes too.
    #[must_use]
    pub const fn formats(&self) -> &Arc<EventFormats> {
        &self.formats
    }

    /// At how many events and probes a session is called.
    #[must_use]
    pub fn recorded_by(&self, image: &Image, sites: &Sites, id: SessionId) -> usize {
        self.events.recorded_by(image, sites, id) + self.probes.recorded_by(id).count()
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

    /// Keeps a number for a probe that cannot be anywhere yet.
    ///
    /// # Errors
    /// [`ProbeError::TooMany`].
    pub fn reserve_probe(&mut self, name: Arc<str>) -> Result<ProbeId, ProbeError> {
        Probes::reserve(Arc::make_mut(&mut self.formats), name)
    }

    /// Has values of stacks made by this from now on.
    pub fn read_stacks_by(&mut self, stacks: StackReader) {
        Arc::make_mut(&mut self.formats).read_stacks_by(stacks);
    }

    /// Forgets probes that nobody records.
    pub fn forget_probes(&mut self, ids: &[ProbeId]) {
        self.probes.forget(ids);
    }

    /// Whether what a step is about beside its sites is as it was when the step was planned. Who is called at a
    /// tracepoint is so when the word is that leads to their list.
    pub(super) fn is_current(&self, what: &What) -> bool {
        match what {
            What::Recorded(recorded) => self.probes.is_recorded_as_before(recorded),
            _ => true,
        }
    }

    /// Notes that a step has been made.
    pub(super) fn made(&mut self, what: &What) {
        match what {
            What::Tracepoint(called) => self.events.is_called(called),
            What::Recorded(recorded) => self.probes.recorded(recorded),
            _ => {}
        }
    }
}

/// The function whose stub can tell of tasks that begin.
fn called_for_tasks(image: &Image) -> Option<FunctionId> {
    with_site(image, guest_kind::of(image).called_for_tasks()?)
}
