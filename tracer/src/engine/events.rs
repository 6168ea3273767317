//! Events of the guest, enabled and disabled from outside.
//!
//! The first event of a session gives it *event rings*: one for each vCPU, with a cell of its own beside that
//! of the records. They come and go with the session as its other memory does.

use std::sync::Arc;

use terms::addr::{Gpa, Gva};
use terms::event_format::EventId;
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;

use super::plan::{Plan, Step};
use super::{ApplyError, AttachError, Engine, Ground};
use crate::paging::PageUse;
use crate::patch::events::{Callback, TracepointChange, TracepointTable};
use crate::patch::functions::PlanError;
use crate::patch::markers::{MarkerChange, MarkerState, MarkerTable};
use crate::record::{Format, RECORD_BYTES};
use crate::ring::geometry::{Geometry, RING_BYTES_LOG2};
use crate::session::{SessionConfig, SessionEvents, SessionId, SessionMemory};
use crate::stub::cell::EVENT_CELL;
use crate::stub::event::{EventRecorder, EventStub, PAYLOAD_LOG2_MIN, Tail, arguments};
use crate::stub::recorder::Recorder;
use crate::stub::template::TEMPLATE_MAX;
use crate::target::{StoppedTarget, WindowMemory};
use terms::session_set::SessionSet;

/// Bytes of the event ring of one vCPU, payloads included, at most.
const EVENT_RING_MAX: u64 = 32 << 20;
/// Bytes that the payload of one record can have, at most.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 16;
/// Bytes that the payload of a record has room for in a session that is given probes, if nothing else is asked for.
pub const PAYLOAD_BYTES_OF_PROBES: u64 = 256;

/// A stub that writes an event, and where it lies.
#[derive(Debug)]
pub(super) struct PlacedStub {
    event: EventId,
    stub: EventStub,
    continue_at: Gva,
    at: Gva,
}

impl Engine {
    /// Who records the markers.
    #[must_use]
    pub fn markers(&self) -> &MarkerTable {
        &self.markers
    }

    /// Who is called at the tracepoints.
    #[must_use]
    pub fn tracepoints(&self) -> &TracepointTable {
        &self.tracepoints
    }

    /// Whether a session has event rings.
    #[must_use]
    pub fn has_event_rings(&self, id: SessionId) -> bool {
        self.session(id)
            .is_ok_and(|session| session.events.is_some())
    }

    /// Gives a session its event rings, if it has none, in which a record holds the fields of every event of the
    /// image and at least `payload_bytes`. A reader has to set their cells.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn make_event_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        payload_bytes: u64,
    ) -> Result<(), AttachError> {
        let events = self.image.events();
        let of_image = events.map(|(_, format)| 8 * format.words() as u64).max();
        let payload_bytes = payload_bytes.max(of_image.unwrap_or(0));
        let session = self
            .sessions
            .get_mut(usize::from(id.0))
            .and_then(Option::as_mut);
        let (Some(session), Some(ground)) = (session, self.ground.as_mut()) else {
            return Err(AttachError::NoSession(id.0));
        };
        if session.events.is_none() {
            let rings = ground.make_event_rings(target, id, &session.config, payload_bytes)?;
            session.events = Some(rings);
        }
        Ok(())
    }

    /// Plans that these callbacks are called at events, or are not called there any more. Writes the stubs and
    /// lists that this needs, which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub fn plan_events(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        calls: &[(EventId, Vec<Callback>)],
        on: bool,
    ) -> Result<Plan, ApplyError> {
        let mut steps = Vec::new();
        for (event, callbacks) in calls {
            if self.image.marker(*event).is_some() {
                let change = self.plan_marker(memory, *event, callbacks, on)?;
                steps.extend(change.map(Step::Marker));
            } else {
                let change = self.plan_tracepoint(memory, *event, callbacks, on)?;
                steps.extend(change.map(Step::Tracepoint));
            }
        }
        Ok(Plan::whole(steps))
    }

    fn plan_tracepoint(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        event: EventId,
        callbacks: &[Callback],
        on: bool,
    ) -> Result<Option<TracepointChange>, ApplyError> {
        let Some(state) = self.tracepoints.state(event) else {
            return Ok(None);
        };
        let mut called = state.callbacks.clone();
        if on {
            for callback in callbacks {
                if called.iter().all(|(there, _)| there != callback) {
                    called.push((*callback, self.address(memory, *callback, event)?));
                }
            }
        } else {
            called.retain(|(there, _)| !callbacks.contains(there));
        }
        let list = self.list_of(memory, &called)?;
        Ok(self.tracepoints.plan(&self.image, event, called, list)?)
    }

    /// Only sessions record markers.
    fn plan_marker(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        event: EventId,
        callbacks: &[Callback],
        on: bool,
    ) -> Result<Option<MarkerChange>, ApplyError> {
        let image = Arc::clone(&self.image);
        let (Some(marker), Some(before)) = (image.marker(event), self.markers.state(event)) else {
            return Ok(None);
        };
        let sessions = callbacks.iter().filter_map(|callback| match callback {
            Callback::Session(id) => Some(*id),
            Callback::Guest(_) => None,
        });
        let sessions = sessions.fold(before.sessions, |set, id| match on {
            true => set.with(id),
            false => set.without(id),
        });
        let mut after = MarkerState {
            sessions,
            stubs: Vec::new(),
        };
        if !sessions.is_empty() {
            let recorders = self.event_recorders(sessions)?;
            for site in &marker.sites {
                let kinds = marker.format.fields.iter().map(|field| field.kind.clone());
                let stub = EventStub {
                    recorders: recorders.clone(),
                    fields: kinds.zip(site.operands.iter().copied()).collect(),
                    tail: Tail::Continue,
                };
                let continue_at = site.at.wrapping_add(SITE_LENGTH as u64);
                after
                    .stubs
                    .push(self.place(memory, event, stub, continue_at)?);
            }
        }
        Ok(self.markers.plan(event, marker, after)?)
    }

    fn event_recorders(&self, sessions: SessionSet) -> Result<Vec<EventRecorder>, ApplyError> {
        let of = |id| {
            let session = self.session(SessionId(id))?;
            let events = session.events.as_ref().ok_or(ApplyError::NotAttached)?;
            Ok(events.recorder)
        };
        sessions.iter().map(of).collect()
    }

    /// Where a callback is to be called.
    fn address(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        callback: Callback,
        event: EventId,
    ) -> Result<Gva, ApplyError> {
        let id = match callback {
            Callback::Guest(at) => return Ok(at),
            Callback::Session(id) => id,
        };
        let recorders = self.event_recorders(SessionSet::default().with(id))?;
        let format = self.image.event(event).ok_or(ApplyError::NotAttached)?;
        let stub = EventStub {
            recorders,
            fields: arguments(format.fields.iter().map(|field| field.kind.clone())),
            tail: Tail::Return,
        };
        self.place(memory, event, stub, Gva(0))
    }

    /// Where this stub is: an earlier one when there is one, for stubs stay.
    fn place(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        event: EventId,
        stub: EventStub,
        continue_at: Gva,
    ) -> Result<Gva, ApplyError> {
        let is_it = |placed: &&PlacedStub| {
            placed.event == event && placed.continue_at == continue_at && placed.stub == stub
        };
        if let Some(placed) = self.event_stubs.iter().find(is_it) {
            return Ok(placed.at);
        }
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let near = Gva(ground.arena.start().0.wrapping_sub(TEMPLATE_MAX));
        let template = stub.template(near).map_err(PlanError::from)?;
        let room = ground.arena.allocate(template.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        // A record numbers events as it numbers functions.
        let bytes = template.stamp(at, FunctionId(event.0), continue_at);
        let bytes = bytes.map_err(PlanError::from)?;
        memory
            .write_window(physical, &bytes)
            .map_err(ApplyError::Stub)?;
        self.event_stubs.push(PlacedStub {
            event,
            stub,
            continue_at,
            at,
        });
        Ok(at)
    }

    /// Where the guest finds the list of these callbacks; none when there are none.
    fn list_of(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        callbacks: &[(Callback, Gva)],
    ) -> Result<Option<Gva>, ApplyError> {
        let addresses: Vec<Gva> = callbacks.iter().map(|(_, at)| *at).collect();
        if addresses.is_empty() {
            return Ok(None);
        }
        if let Some(at) = self.tracepoints.list(&addresses) {
            return Ok(Some(at));
        }
        let words = addresses.iter().map(|at| at.0).chain([0]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let room = ground.arena.allocate(bytes.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        memory
            .write_window(physical, &bytes)
            .map_err(ApplyError::Stub)?;
        self.tracepoints.add_list(addresses, at);
        Ok(Some(at))
    }

    /// What an event is called.
    #[must_use]
    pub fn event_name(&self, event: EventId) -> String {
        let format = self.image.event(event);
        format.map_or_else(|| "?".to_owned(), |format| format.name.to_string())
    }
}

impl Ground {
    /// Event rings that nobody has used yet, with room for `payload_bytes` beside each slot.
    fn make_event_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
        payload_bytes: u64,
    ) -> Result<SessionEvents, AttachError> {
        let cells = self.strategy.cells(self.cells.at, id.0);
        let payload_log2 = payload_bytes.min(PAYLOAD_BYTES_MAX);
        let payload_log2 = payload_log2
            .next_power_of_two()
            .ilog2()
            .max(PAYLOAD_LOG2_MIN);
        // Probes say much in few records: they may have an eighth of what is left.
        let rings = self.strategy.rings() as u64;
        let share = match 1 << payload_log2 >= PAYLOAD_BYTES_OF_PROBES {
            true => (self.window.left() / 8 / rings).min(EVENT_RING_MAX),
            false => 0,
        };
        let geometry = event_geometry(config.geometry, share, payload_log2);
        let records = geometry.bytes() * self.strategy.rings() as u64;
        let payloads = (records / RECORD_BYTES) << payload_log2;
        let rings = self.window.map(target, records + payloads, PageUse::Data)?;
        let place = |offset: &u64| {
            let cell: Gpa = self.cells.physical.wrapping_add(*offset);
            cell.wrapping_add(EVENT_CELL)
        };
        let memory = SessionMemory {
            cells: cells.offsets.iter().map(place).collect(),
            rings: rings.physical,
            format: Format::Calls,
            details: None,
            directory: None,
            room: rings.bytes,
            geometry,
            first: vec![geometry.first(); self.strategy.rings()],
        };
        let recorder = Recorder {
            cell: cells.place.events(),
            rings: rings.at,
            format: Format::Calls,
            details: None,
            geometry,
            clock: config.clock,
        };
        let recorder = EventRecorder {
            recorder,
            payload: rings.at.wrapping_add(records),
            payload_log2,
        };
        Ok(SessionEvents {
            memory,
            recorder,
            payload: rings.physical.wrapping_add(records),
        })
    }
}

/// Rings that take no more memory with their payloads than the session's others, twice over because a payload is
/// rounded up to a power of two, or `share`, as far as a ring can be so small.
fn event_geometry(rings: Geometry, share: u64, payload_log2: u32) -> Geometry {
    let of_slot = RECORD_BYTES + (1 << payload_log2);
    let slots = (2 * rings.bytes()).min(EVENT_RING_MAX).max(share) / of_slot;
    let log2 = (slots * RECORD_BYTES)
        .max(1)
        .ilog2()
        .max(*RING_BYTES_LOG2.start());
    Geometry::with_bytes(1 << log2).unwrap_or(rings)
}

#[cfg(test)]
mod tests;
