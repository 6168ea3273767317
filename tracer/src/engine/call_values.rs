//! Values of calls: what graph sessions have captured when functions are entered, and when they have returned.
//!
//! The stub of a function calls a routine for each, which writes what it captures, and the stack slot that the record
//! of the same step will have, to the event rings of the sessions that want it. The routine of a function stays, as
//! stubs do, and is found again.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ApplyError, Engine};
use crate::addr::Gva;
use crate::capture::{Capture, Captured, Expression, Source};
use crate::event::{FunctionId, Moment};
use crate::image::field::FieldType;
use crate::image::points::EventId;
use crate::patch::functions::{PlanError, SessionSet, shape};
use crate::session::{CallMoments, SessionId};
use crate::stub::capture::{CapturePart, CaptureStub};
use crate::stub::event::{EventRecorder, Tail};
use crate::stub::graph::SiteShape;
use crate::stub::template::{Captures, TEMPLATE_MAX};
use crate::target::PhysicalMemory;

/// The number of `rsp`.
const STACK_POINTER: u8 = 4;
/// The number of `rbp`.
const FRAME_POINTER: u8 = 5;
/// Bytes that the stack pointer is lower when a routine is called than it was at the function.
const CALLED: u32 = 8;

/// What can be captured of calls, and the routines that do.
#[derive(Debug, Default)]
pub(super) struct CallCaptures {
    known: HashMap<(FunctionId, Moment), Known>,
}

#[derive(Debug)]
struct Known {
    event: EventId,
    capture: Arc<Capture>,
    /// For these recorders it is here.
    routines: Vec<(Vec<EventRecorder>, Gva)>,
}

/// Why values of a function's calls cannot be captured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallValuesError {
    /// Records cannot number the event.
    #[error("there are too many functions and probes to number the values of calls")]
    TooMany,
    /// It does not return as others do.
    #[error("its return cannot be hooked")]
    NoReturn,
}

impl Engine {
    /// Says what can be captured of a function's calls at a moment. What was said first stays.
    ///
    /// # Errors
    /// A [`CallValuesError`].
    pub fn know_call(
        &mut self,
        function: FunctionId,
        moment: Moment,
        capture: Capture,
    ) -> Result<(), CallValuesError> {
        if self.calls.known.contains_key(&(function, moment)) {
            return Ok(());
        }
        if moment == Moment::Exit && self.image.unhookable(function).is_some() {
            return Err(CallValuesError::NoReturn);
        }
        let name = self.image.function(function).map(|of| of.display.clone());
        let name: Arc<str> = name.as_deref().unwrap_or_default().into();
        let capture = Arc::new(self.with_slot(function, moment, capture));
        let format = capture.format(name);
        let event = Arc::make_mut(&mut self.formats).add_call(function, moment, format);
        let known = Known {
            event: event.ok_or(CallValuesError::TooMany)?,
            capture,
            routines: Vec::new(),
        };
        self.calls.known.insert((function, moment), known);
        Ok(())
    }

    /// Bytes of payload that a record of calls' values needs, at most.
    #[must_use]
    pub fn call_bytes(&self, moments: CallMoments) -> u64 {
        let known = self.calls.known.iter();
        let wanted = known.filter(|((_, moment), _)| moments.has(*moment));
        let bytes = wanted.map(|(_, known)| known.capture.payload_bytes());
        bytes.max().unwrap_or(0)
    }

    /// Has values of calls captured for a session, which has event rings, from its next plan on.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub fn capture_calls(&mut self, id: SessionId, moments: CallMoments) -> Result<(), ApplyError> {
        let slot = self.sessions.get_mut(usize::from(id.0));
        let session = slot.and_then(Option::as_mut);
        session.ok_or(ApplyError::NoSession(id.0))?.captures = moments;
        Ok(())
    }

    /// The routines that the stub of a function calls which these sessions trace. Writes those that are missing, which
    /// nothing leads to yet.
    pub(super) fn captures(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        function: FunctionId,
        sessions: SessionSet,
    ) -> Result<Captures, ApplyError> {
        Ok(Captures {
            entry: self.routine(memory, function, Moment::Entry, sessions)?,
            exit: self.routine(memory, function, Moment::Exit, sessions)?,
        })
    }

    /// Whether any session has values of calls captured.
    pub(super) fn captures_calls(&self) -> bool {
        let sessions = self.sessions.iter().flatten();
        sessions.into_iter().any(|one| !one.captures.is_empty())
    }

    fn routine(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        function: FunctionId,
        moment: Moment,
        sessions: SessionSet,
    ) -> Result<Option<Gva>, ApplyError> {
        let Some(known) = self.calls.known.get(&(function, moment)) else {
            return Ok(None);
        };
        let sessions = sessions
            .iter()
            .filter_map(|id| self.session(SessionId(id)).ok());
        let wanting = sessions.filter(|session| session.captures.has(moment));
        let recorders: Vec<EventRecorder> = wanting
            .filter_map(|session| Some(session.events.as_ref()?.recorder))
            .filter(|recorder| known.capture.payload_bytes() <= 1 << recorder.payload_log2)
            .collect();
        if recorders.is_empty() {
            return Ok(None);
        }
        if let Some((_, at)) = known.routines.iter().find(|(of, _)| *of == recorders) {
            return Ok(Some(*at));
        }
        let parts = recorders.iter().map(|recorder| CapturePart {
            recorder: *recorder,
            event: known.event,
            capture: Arc::clone(&known.capture),
        });
        let stub = CaptureStub {
            parts: parts.collect(),
            tail: Tail::Return,
            lowered: CALLED,
            is_between: true,
            reach: None,
        };
        let event = FunctionId(known.event.0);
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let near = Gva(ground.arena.start().0.wrapping_sub(TEMPLATE_MAX));
        let template = stub.template(near).map_err(PlanError::from)?;
        let room = ground.arena.allocate(template.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        let bytes = template.stamp(at, event, Gva(0)).map_err(PlanError::from)?;
        memory
            .write_physical(physical, &bytes)
            .map_err(ApplyError::Stub)?;
        if let Some(known) = self.calls.known.get_mut(&(function, moment)) {
            known.routines.push((recorders, at));
        }
        Ok(Some(at))
    }

    /// What a routine writes: the stack slot, and the values. At an entry the slot is where the stack pointer is, or
    /// above the saved frame pointer; when the function has returned, right below the stack pointer.
    fn with_slot(&self, function: FunctionId, moment: Moment, capture: Capture) -> Capture {
        let site = self.image.site_of(function);
        let shape = site.map(|site| shape(&self.image, site));
        let slot = match (moment, shape) {
            (Moment::Entry, Some(SiteShape::AfterPrologue)) => {
                Expression::Register(FRAME_POINTER).offset(8)
            }
            (Moment::Entry, _) => Expression::Register(STACK_POINTER),
            (Moment::Exit, _) => Expression::Register(STACK_POINTER).offset(-8),
        };
        let slot = FieldType::named("x64").map(|kind| Captured {
            name: "slot".into(),
            kind,
            source: Source::Number(slot),
        });
        Capture {
            values: slot.into_iter().chain(capture.values).collect(),
            condition: None,
        }
    }
}
