//! Events of the guest: which there are, and who is called at them.

use crate::points::events::{Callback, find_callback, find_event};
use crate::points::markers::recorded_by;
use crate::session::SessionId;
use image::{Marker, Tracepoint};
use terms::event_format::{EventFormat, EventId};

use super::attachment::Attachment;
use super::sessions::name_of;
use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::engine::plan::PlanStep;
use crate::guest::Guest;
use status::{EventList, EventStatus, EventsChanged, FieldStatus, microseconds};

impl Tracing {
    /// Every event of the guest.
    #[must_use]
    pub fn events(&self) -> EventList {
        let attachment = &self.attachment;
        let image = &attachment.shared.image;
        let show = |(event, format): (EventId, &EventFormat)| {
            let fields = format.fields.iter().map(|field| FieldStatus {
                name: field.name.to_string(),
                r#type: field.kind.name().to_owned(),
            });
            let shown = EventStatus {
                name: format.name.to_string(),
                fields: fields.collect(),
                ..EventStatus::default()
            };
            match (image.tracepoints.get(event.index()), image.marker(event)) {
                (Some(tracepoint), _) => attachment.show_tracepoint(event, tracepoint, shown),
                (None, Some(marker)) => attachment.show_marker(marker, shown),
                (None, None) => shown,
            }
        };
        EventList {
            events: image.events().map(show).collect(),
        }
    }

    /// Has a session record these events, or these functions of the guest called at them; or not any more. All of
    /// them, or none.
    ///
    /// # Errors
    /// A [`TracingError`] that names the event, the callback or the session.
    pub fn change_events(
        &mut self,
        guest: &impl Guest,
        session: &str,
        events: &[String],
        callbacks: &[String],
        on: bool,
    ) -> Result<EventsChanged, TracingError> {
        let attachment = &mut self.attachment;
        let stops = &mut Stops::default();
        let image = &attachment.shared.image;
        let events = events.iter().map(|name| find_event(image, name));
        let mut events: Vec<EventId> = events.collect::<Result<_, _>>()?;
        events.sort_unstable();
        events.dedup();
        if callbacks.is_empty() {
            let index = attachment.sessions.find(session)?;
            let changed = attachment.record_events(guest, index, &events, on, stops)?;
            let session = attachment.sessions.at(index)?;
            if on {
                session.events.extend(events);
            } else {
                session.events.retain(|event| !events.contains(event));
            }
            return Ok(changed);
        }
        let calls = events.iter().map(|event| {
            let named = callbacks.iter();
            let at = named.map(|name| find_callback(image, *event, name).map(Callback::Guest));
            Ok::<_, TracingError>((*event, at.collect::<Result<_, _>>()?))
        });
        let calls: Vec<_> = calls.collect::<Result<_, _>>()?;
        attachment.open_window(guest, stops)?;
        attachment.switch_events(guest, &calls, on, stops)
    }
}

impl Attachment {
    fn show_tracepoint(
        &self,
        event: EventId,
        tracepoint: &Tracepoint,
        shown: EventStatus,
    ) -> EventStatus {
        let image = &self.shared.image;
        let events = self.engine.points().events();
        let candidates = tracepoint.candidates.iter().map(|at| image.name_at(*at));
        let called = events
            .called(event)
            .iter()
            .map(|(callback, _)| match callback {
                Callback::Guest(at) => image.name_at(*at),
                Callback::Session(id) => {
                    format!("session {}", self.sessions.name_of(SessionId(*id)))
                }
            });
        EventStatus {
            kind: "tracepoint".to_owned(),
            sites: tracepoint.sites.len() as u64,
            state: events.state(event).to_owned(),
            callbacks: called.collect(),
            candidates: candidates.collect(),
            ..shown
        }
    }

    fn show_marker(&self, marker: &Marker, shown: EventStatus) -> EventStatus {
        let sessions = recorded_by(self.engine.sites(), marker);
        let called = sessions
            .iter()
            .map(|id| format!("session {}", self.sessions.name_of(SessionId(id))));
        let state = if sessions.is_empty() { "nop" } else { "direct" };
        EventStatus {
            kind: "marker".to_owned(),
            sites: marker.sites.len() as u64,
            state: state.to_owned(),
            callbacks: called.collect(),
            ..shown
        }
    }

    /// Has a session that is started record these events, or not record them any more.
    pub fn record_events(
        &mut self,
        guest: &impl Guest,
        index: usize,
        events: &[EventId],
        on: bool,
        stops: &mut Stops,
    ) -> Result<EventsChanged, TracingError> {
        let id = self.sessions.at(index)?.recording()?;
        if on && !events.is_empty() {
            let bytes = self.sessions.at(index)?.payload_bytes(None);
            self.open_events(guest, index, id, bytes, stops)?;
        }
        let callback = Callback::Session(id.0);
        let calls: Vec<_> = events
            .iter()
            .map(|event| (*event, vec![callback]))
            .collect();
        self.switch_events(guest, &calls, on, stops)
    }

    /// Has a session that is started record the events that are its own, or not record them any more. Without any there is nothing to do.
    pub fn record_own_events(
        &mut self,
        guest: &impl Guest,
        index: usize,
        on: bool,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let events: Vec<EventId> = self.sessions.at(index)?.events.iter().copied().collect();
        if events.is_empty() {
            return Ok(());
        }
        self.record_events(guest, index, &events, on, stops)
            .map(drop)
    }

    pub(super) fn switch_events(
        &mut self,
        guest: &impl Guest,
        calls: &[(EventId, Vec<Callback>)],
        on: bool,
        stops: &mut Stops,
    ) -> Result<EventsChanged, TracingError> {
        let memory = &mut guest.memory().clone();
        let plan = self.engine.plan_events(memory, calls, on)?;
        let changed = plan.steps.iter().filter_map(PlanStep::event);
        let changed = changed
            .map(|event| name_of(self.engine.image(), event))
            .collect();
        if !plan.is_empty() {
            self.carry_out(guest, plan, stops)?;
        }
        Ok(EventsChanged {
            events: changed,
            on,
            pauses: stops.count,
            pause_us: microseconds(stops.longest),
        })
    }
}
