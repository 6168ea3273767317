//! Events of the guest: which there are, and who is called at them.

use image::{Marker, Tracepoint};
use terms::event_format::{EventFormat, EventId};
use terms::region::Region;
use tracer::patch::events::{Callback, find_callback, find_event};
use tracer::session::SessionId;

use super::{Tracing, TracingError};
use crate::control::events::{EventChange, EventList, EventStatus, EventsChanged, FieldStatus};
use crate::control::status::microseconds;
use crate::machine::{Machine, PATIENCE};

impl Tracing {
    /// `events.list`.
    #[must_use]
    pub fn events(&self) -> EventList {
        let image = &self.shared.image;
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
                (Some(tracepoint), _) => self.show_tracepoint(event, tracepoint, shown),
                (None, Some(marker)) => self.show_marker(event, marker, shown),
                (None, None) => shown,
            }
        };
        EventList {
            events: image.events().map(show).collect(),
        }
    }

    fn show_tracepoint(
        &self,
        event: EventId,
        tracepoint: &Tracepoint,
        shown: EventStatus,
    ) -> EventStatus {
        let image = &self.shared.image;
        let table = self.engine.tracepoints();
        let (state, dispatch) = (table.state(event), table.dispatch());
        let callbacks = state.map(|state| &*state.callbacks).unwrap_or_default();
        let candidates = tracepoint.candidates.iter().map(|at| image.name_at(*at));
        let called = callbacks.iter().map(|(callback, _)| match callback {
            Callback::Guest(at) => image.name_at(*at),
            Callback::Session(id) => format!("session {}", self.session_name(SessionId(*id))),
        });
        EventStatus {
            kind: "tracepoint".to_owned(),
            sites: tracepoint.sites.len() as u64,
            state: state.map_or("nop", |state| state.name(dispatch)).to_owned(),
            callbacks: called.collect(),
            candidates: candidates.collect(),
            ..shown
        }
    }

    fn show_marker(&self, event: EventId, marker: &Marker, shown: EventStatus) -> EventStatus {
        let state = self.engine.markers().state(event);
        let sessions = state.map(|state| state.sessions).unwrap_or_default();
        let called = sessions
            .iter()
            .map(|id| format!("session {}", self.session_name(SessionId(id))));
        let state = if sessions.is_empty() { "nop" } else { "direct" };
        EventStatus {
            kind: "marker".to_owned(),
            sites: marker.sites.len() as u64,
            state: state.to_owned(),
            callbacks: called.collect(),
            ..shown
        }
    }

    fn session_name(&self, id: SessionId) -> &str {
        let of = |session: &&super::session::TraceSession| {
            session.live.as_ref().is_some_and(|live| live.id == id)
        };
        let found = self.sessions.iter().find(of);
        found.map_or("?", |session| session.name.as_str())
    }

    /// `events.enable` and `events.disable`: all of these events, or none.
    ///
    /// # Errors
    /// A [`TracingError`] that names the event, the callback or the session.
    pub fn change_events(
        &mut self,
        machine: &Machine,
        change: &EventChange,
        on: bool,
    ) -> Result<EventsChanged, TracingError> {
        let image = &self.shared.image;
        let events = change.events.iter().map(|name| find_event(image, name));
        let mut events: Vec<EventId> = events.collect::<Result<_, _>>()?;
        events.sort_unstable();
        events.dedup();
        if change.callbacks.is_empty() {
            let index = self.find(&change.session.0)?;
            let changed = self.record_events(machine, index, &events, on)?;
            let session = self.at(index)?;
            if on {
                session.events.extend(events);
            } else {
                session.events.retain(|event| !events.contains(event));
            }
            return Ok(changed);
        }
        let calls = events.iter().map(|event| {
            let named = change.callbacks.iter();
            let at = named.map(|name| find_callback(image, *event, name).map(Callback::Guest));
            Ok::<_, TracingError>((*event, at.collect::<Result<_, _>>()?))
        });
        let calls: Vec<_> = calls.collect::<Result<_, _>>()?;
        self.attach(machine)?;
        self.switch_events(machine, &calls, on)
    }

    /// Has a session that is started record these events, or not record them any more.
    pub(super) fn record_events(
        &mut self,
        machine: &Machine,
        index: usize,
        events: &[EventId],
        on: bool,
    ) -> Result<EventsChanged, TracingError> {
        let id = self.at(index)?.recording()?;
        if on && !events.is_empty() {
            let bytes = self.at(index)?.payload_bytes(None);
            self.open_events(machine, index, id, bytes)?;
        }
        let callback = Callback::Session(id.0);
        let calls: Vec<_> = events
            .iter()
            .map(|event| (*event, vec![callback]))
            .collect();
        self.switch_events(machine, &calls, on)
    }

    /// Has a session record the events that it was made for.
    pub(super) fn begin_events(
        &mut self,
        machine: &Machine,
        index: usize,
        events: &[EventId],
    ) -> Result<(), TracingError> {
        if events.is_empty() {
            return Ok(());
        }
        self.record_events(machine, index, events, true).map(drop)
    }

    /// Gives a session its event rings, if it has none, with room for payloads of at least `payload_bytes`, and has
    /// them read.
    pub(super) fn open_events(
        &mut self,
        machine: &Machine,
        index: usize,
        id: SessionId,
        payload_bytes: u64,
    ) -> Result<(), TracingError> {
        if !self.engine.has_event_rings(id) {
            let mut quiesced = machine.quiesce(PATIENCE)?;
            self.engine
                .make_event_rings(&mut quiesced, id, payload_bytes)?;
        }
        let (engine, sessions) = (&self.engine, &mut self.sessions);
        let session = sessions.get_mut(index).ok_or(TracingError::NoSuchIndex)?;
        session.open_events(engine, id, machine)
    }

    /// Opens the window, if it is not open.
    fn attach(&mut self, machine: &Machine) -> Result<(), TracingError> {
        let window = machine.memory().window();
        let region = Region {
            start: window.start,
            bytes: window.bytes,
        };
        let mut quiesced = machine.quiesce(PATIENCE)?;
        if self.engine.wants_kernel_gs_base() {
            quiesced.fetch_kernel_gs_base(PATIENCE)?;
        }
        Ok(self.engine.attach(&mut quiesced, region)?)
    }

    fn switch_events(
        &mut self,
        machine: &Machine,
        calls: &[(EventId, Vec<Callback>)],
        on: bool,
    ) -> Result<EventsChanged, TracingError> {
        let memory = &mut machine.memory().clone();
        let plan = self.engine.plan_events(memory, calls, on)?;
        if plan.is_empty() {
            return Ok(EventsChanged {
                on,
                ..EventsChanged::default()
            });
        }
        let (pauses, pause) = match self.live(machine)? {
            Some(mut live) => {
                self.engine.apply_events_live(&mut live, &plan)?;
                (0, live.lost())
            }
            None => {
                let mut quiesced = machine.quiesce(PATIENCE)?;
                let applied = self.engine.apply_events(&mut quiesced, &plan);
                drop(quiesced);
                applied?;
                (1, machine.last_pause())
            }
        };
        let changed = plan.events().map(|event| self.engine.event_name(event));
        Ok(EventsChanged {
            events: changed.collect(),
            on,
            pauses,
            pause_us: microseconds(pause),
        })
    }
}
