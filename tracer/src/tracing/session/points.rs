//! What a session records beside functions: events of the guest, and probes.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::events::PAYLOAD_BYTES_OF_PROBES;
use crate::event_formats::EventFormats;
use crate::session::SessionId;
use terms::event_format::EventId;
use trace::export::probes::ProbeNote;

use super::{Reader, TraceSession};
use crate::collect::event_drain::EventDrain;
use crate::guest::{Guest, SharedMemory};
use crate::tracing::TracingError;

impl TraceSession {
    /// Begins to read the event rings that the engine has made for it.
    ///
    /// # Errors
    /// [`TracingError::NotStarted`].
    pub fn open_events(
        &self,
        engine: &Engine,
        id: SessionId,
        guest: &impl Guest,
    ) -> Result<(), TracingError> {
        let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader) else {
            return Err(self.not_started());
        };
        let mut drain = drain.lock();
        if let Some(place) = engine.sessions().get(id)?.events.as_ref()
            && !drain.has_events()
        {
            let memory: Arc<dyn SharedMemory> = Arc::new(guest.memory().clone());
            let mode = self.options.mode;
            memory.populate(place.memory.rings, place.memory.room);
            let formats = engine.points().formats();
            let clock = drain.time().rings.clone();
            drain.add_events(EventDrain::new(memory, place, mode, formats, &clock));
        }
        Ok(())
    }

    /// Bytes of a record that are for what events say, at least; `probes` need so much.
    pub fn payload_bytes(&self, probes: Option<u64>) -> u64 {
        let will_have = !self.options.probe.is_empty() || !self.options.captures().is_empty();
        let usual = probes.or(will_have.then_some(0));
        let usual = usual.map_or(0, |needed| needed.max(PAYLOAD_BYTES_OF_PROBES));
        self.options.record_bytes.unwrap_or(usual)
    }

    /// Bytes of a record that values of calls may take.
    pub fn bytes_of_values(&self) -> u64 {
        let asked = self.options.record_bytes.unwrap_or(u64::MAX);
        asked.min(PAYLOAD_BYTES_OF_PROBES)
    }

    /// Its events go by these formats from now on.
    pub fn know_events(&self, formats: &Arc<EventFormats>) {
        if let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader)
            && let Some(events) = drain.lock().events()
        {
            events.know(formats);
        }
    }

    /// It records these probes from now on; its trace says so.
    pub fn note_probes(&self, notes: &[ProbeNote]) {
        if let Some(Reader::Rings(drain)) = self.live.as_ref().map(|live| &live.reader) {
            drain.lock().note_probes(notes);
        }
    }

    /// How often an event is in its trace; none while it writes none.
    pub fn hits(&self, event: EventId) -> Option<u64> {
        let Reader::Rings(drain) = &self.live.as_ref()?.reader else {
            return None;
        };
        let mut drain = drain.lock();
        if !drain.is_written() {
            return None;
        }
        drain.refresh();
        Some(drain.events()?.hits(event))
    }
}
