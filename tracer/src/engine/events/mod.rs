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
use super::plan::{Called, Plan, PlanStep, What};
use super::planning::Planning;
pub use super::rings::PAYLOAD_BYTES_OF_PROBES;
use crate::capture::Capture;
use crate::points::events::{self, Callback, Callbacks, Dispatch};
use crate::points::markers;
use crate::session::SessionId;
use crate::stub::capture::{CapturePart, CaptureStub, Standing};
use crate::stub::event::{Tail, arguments};
use crate::stub::store::Piece;
use crate::target::WindowMemory;
use crate::text::sites::Sites;

/// Who is called at the events of the image. Who records a marker, the table of sites knows.
#[derive(Debug)]
pub struct Events {
    dispatch: Dispatch,
    /// Who is called at each tracepoint.
    called: Vec<Callbacks>,
}

impl Events {
    /// Nobody is called anywhere; a tracepoint will lead to its only callback in this way.
    pub(super) fn new(image: &Image, dispatch: Dispatch) -> Self {
        Self {
            dispatch,
            called: vec![Vec::new(); image.tracepoints.len()],
        }
    }

    /// Who is called at a tracepoint, in order, and where that is.
    #[must_use]
    pub fn called(&self, event: EventId) -> &[(Callback, Gva)] {
        self.called
            .get(event.index())
            .map(|called| &**called)
            .unwrap_or_default()
    }

    /// What stands at the sites of a tracepoint: `nop`, `direct` or `iterator`.
    #[must_use]
    pub fn state(&self, event: EventId) -> &'static str {
        self.dispatch.state(self.called(event).len())
    }

    /// Notes who is called at a tracepoint now.
    pub(super) fn is_called(&mut self, called: &Called) {
        if let Some(slot) = self.called.get_mut(called.event.index()) {
            slot.clone_from(&called.after);
        }
    }

    /// At how many events a session is called.
    pub(super) fn recorded_by(&self, image: &Image, sites: &Sites, id: SessionId) -> usize {
        let calls_it = |called: &&Callbacks| {
            let mut called = called.iter();
            called.any(|(called, _)| *called == Callback::Session(id.0))
        };
        let tracepoints = self.called.iter().filter(calls_it).count();
        tracepoints + markers::of(image, sites, id.0).count()
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
            steps.extend(match with.image.marker(*event).is_some() {
                true => plan_marker(with, *event, callbacks, on)?,
                false => self.plan_tracepoint(with, *event, callbacks, on)?,
            });
        }
        Ok(Plan::whole(steps))
    }

    fn plan_tracepoint<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        event: EventId,
        callbacks: &[Callback],
        on: bool,
    ) -> Result<Option<PlanStep>, ApplyError> {
        let Some(tracepoint) = with.image.tracepoints.get(event.index()) else {
            return Ok(None);
        };
        let before = self.called(event).to_vec();
        let mut after = before.clone();
        if on {
            for callback in callbacks {
                match after.iter_mut().find(|(there, _)| there == callback) {
                    None => after.push((*callback, address(with, *callback, event)?)),
                    // Its stub is another one.
                    Some((_, at)) if is_anew(with, *callback) => {
                        *at = address(with, *callback, event)?;
                    }
                    Some(_) => {}
                }
            }
        } else {
            after.retain(|(there, _)| !callbacks.contains(there));
        }
        let list = place_list(with, &after)?;
        if before == after {
            return Ok(None);
        }
        let edits = events::edits(with.sites, tracepoint, self.dispatch, &after)?;
        let word = events::list_word(with.sites, tracepoint, list);
        let what = What::Tracepoint(Called {
            event,
            before,
            after,
        });
        Ok(Some(PlanStep { what, edits, word }))
    }
}

/// Whether the stub of a callback does something else than the one that is called now.
fn is_anew<M: WindowMemory + ?Sized>(with: &Planning<'_, M>, callback: Callback) -> bool {
    match callback {
        Callback::Session(id) => with.sessions.anew().has(id),
        Callback::Guest(_) => false,
    }
}

/// Only sessions record markers.
fn plan_marker<M: WindowMemory + ?Sized>(
    with: &mut Planning<'_, M>,
    event: EventId,
    callbacks: &[Callback],
    on: bool,
) -> Result<Option<PlanStep>, ApplyError> {
    let Some(marker) = with.image.marker(event) else {
        return Ok(None);
    };
    let sessions = callbacks.iter().filter_map(|callback| match callback {
        Callback::Session(id) => Some(*id),
        Callback::Guest(_) => None,
    });
    let before = markers::recorded_by(with.sites, marker);
    let sessions = sessions.fold(before, |set, id| match on {
        true => set.with(id),
        false => set.without(id),
    });
    let mut stubs = Vec::new();
    for site in marker.sites.iter().filter(|_| !sessions.is_empty()) {
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
        stubs.push(with.place(Piece::Capture { stub, go_on })?);
    }
    let edits = markers::plan(with.sites, marker, sessions, &stubs)?;
    Ok((!edits.is_empty()).then(|| PlanStep::of(What::Marker(event), edits)))
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
    let name = with.image.event(event).map(|event| &*event.name);
    let name = name.unwrap_or_default();
    let part = |id| {
        Ok(CapturePart {
            recorder: with.event_recorder(SessionId(id), name)?,
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
