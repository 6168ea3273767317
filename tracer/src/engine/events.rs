//! Events of the guest, enabled and disabled from outside.
//!
//! The first event of a session gives it *event rings*: one for each vCPU, with a cell of its own beside that
//! of the records. They come and go with the session as its other memory does.

use std::sync::Arc;

use image::Image;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::session_set::SessionSet;
use terms::site::SITE_LENGTH;

use super::ApplyError;
use super::plan::{Plan, Step};
use super::planning::Planning;
pub use super::rings::PAYLOAD_BYTES_OF_PROBES;
use crate::capture::Capture;
use crate::patch::events::{Callback, Dispatch, TracepointChange, TracepointTable};
use crate::patch::markers::{MarkerChange, MarkerState, MarkerTable};
use crate::session::SessionId;
use crate::stub::capture::{CapturePart, CaptureStub, Standing};
use crate::stub::event::{Tail, arguments};
use crate::stub::store::Piece;
use crate::target::WindowMemory;

/// Who is called at the events of the image.
#[derive(Debug)]
pub struct Events {
    pub(super) tracepoints: TracepointTable,
    pub(super) markers: MarkerTable,
}

impl Events {
    /// Nobody is called anywhere; a tracepoint will lead to its only callback in this way.
    pub(super) fn new(image: &Image, dispatch: Dispatch) -> Self {
        Self {
            tracepoints: TracepointTable::new(image, dispatch),
            markers: MarkerTable::new(image),
        }
    }

    /// Who records the markers.
    #[must_use]
    pub const fn markers(&self) -> &MarkerTable {
        &self.markers
    }

    /// Who is called at the tracepoints.
    #[must_use]
    pub const fn tracepoints(&self) -> &TracepointTable {
        &self.tracepoints
    }

    /// At how many events a session is called.
    pub(super) fn recorded_by(&self, id: SessionId) -> usize {
        let tracepoints = self.tracepoints.of(Callback::Session(id.0)).count();
        tracepoints + self.markers.of(id.0).count()
    }

    /// Plans that these callbacks are called at events, or are not called there any more. Writes the stubs and
    /// lists that this needs, which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub(super) fn plan<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        calls: &[(EventId, Vec<Callback>)],
        on: bool,
    ) -> Result<Plan, ApplyError> {
        let mut steps = Vec::new();
        for (event, callbacks) in calls {
            if with.image.marker(*event).is_some() {
                let change = self.plan_marker(with, *event, callbacks, on)?;
                steps.extend(change.map(Step::Marker));
            } else {
                let change = self.plan_tracepoint(with, *event, callbacks, on)?;
                steps.extend(change.map(Step::Tracepoint));
            }
        }
        Ok(Plan::whole(steps))
    }

    fn plan_tracepoint<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
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
                    called.push((*callback, address(with, *callback, event)?));
                }
            }
        } else {
            called.retain(|(there, _)| !callbacks.contains(there));
        }
        let list = place_list(with, &called)?;
        Ok(self.tracepoints.plan(with.image, event, called, list)?)
    }

    /// Only sessions record markers.
    fn plan_marker<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        event: EventId,
        callbacks: &[Callback],
        on: bool,
    ) -> Result<Option<MarkerChange>, ApplyError> {
        let image = with.image;
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
            for site in &marker.sites {
                let fields = marker.format.fields.iter().cloned();
                let capture = Capture::of_fields(fields.zip(site.operands.iter().copied()));
                let stub = CaptureStub {
                    parts: parts(with, sessions, event, capture)?,
                    tail: Tail::Continue,
                    lowered: 0,
                    standing: Standing::Marker,
                    reach: None,
                };
                let go_on = site.at.wrapping_add(SITE_LENGTH as u64);
                let stub = Box::new(stub);
                after
                    .stubs
                    .push(with.place(Piece::Capture { stub, go_on })?);
            }
        }
        Ok(self.markers.plan(event, marker, after)?)
    }
}

/// Where a callback is to be called.
fn address<M: WindowMemory + ?Sized>(
    with: &mut Planning<'_, M>,
    callback: Callback,
    event: EventId,
) -> Result<Gva, ApplyError> {
    let id = match callback {
        Callback::Guest(at) => return Ok(at),
        Callback::Session(id) => id,
    };
    let format = with.image.event(event).ok_or(ApplyError::NotAttached)?;
    let capture = Capture::of_fields(arguments(format.fields.iter().cloned()));
    let stub = CaptureStub {
        parts: parts(with, SessionSet::default().with(id), event, capture)?,
        tail: Tail::Return,
        lowered: 0,
        standing: Standing::Between,
        reach: None,
    };
    let stub = Box::new(stub);
    let go_on = Gva(0);
    with.place(Piece::Capture { stub, go_on })
}

/// What each of these sessions records of an event.
fn parts<M: WindowMemory + ?Sized>(
    with: &Planning<'_, M>,
    sessions: SessionSet,
    event: EventId,
    capture: Capture,
) -> Result<Vec<CapturePart>, ApplyError> {
    let capture = Arc::new(capture);
    let part = |id| {
        Ok(CapturePart {
            recorder: with.event_recorder(SessionId(id))?,
            event,
            capture: Arc::clone(&capture),
        })
    };
    sessions.iter().map(part).collect()
}

/// Where the guest finds the list of these callbacks; none when there are none.
fn place_list<M: WindowMemory + ?Sized>(
    with: &mut Planning<'_, M>,
    callbacks: &[(Callback, Gva)],
) -> Result<Option<Gva>, ApplyError> {
    if callbacks.is_empty() {
        return Ok(None);
    }
    let words = callbacks.iter().map(|(_, at)| at.0).chain([0]);
    with.place(Piece::words(words)).map(Some)
}

#[cfg(test)]
mod tests;
