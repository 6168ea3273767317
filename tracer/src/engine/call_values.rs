//! Values of calls: what graph sessions have captured when functions are entered, and when they have returned.
//!
//! The stub of a function calls a routine for each, which writes what it captures, and the stack slot that the record
//! of the same step will have, to the event rings of the sessions that want it. The routine of a function stays, as
//! stubs do, and is found again.

use std::collections::HashMap;
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventId;
use terms::expression::Expression;
use terms::field::FieldType;
use terms::function::FunctionId;

use super::probes::Probe;
use super::{ApplyError, AttachError, Engine};
use crate::capture::{Capture, Captured, Source};
use crate::patch::functions::{PlanError, shape};
use crate::session::{CallMoments, SessionId};
use crate::stub::capture::{CapturePart, CaptureStub};
use crate::stub::event::Tail;
use crate::stub::graph::SiteShape;
use crate::stub::template::{Captures, TEMPLATE_MAX};
use crate::target::{StoppedTarget, WindowMemory};
use crate::window::WindowError;
use terms::session_set::SessionSet;
use trace::event::Moment;

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
    /// Of each function, what captures these parts is here.
    routines: HashMap<FunctionId, Vec<(Vec<CapturePart>, Gva)>>,
}

#[derive(Debug)]
struct Known {
    event: EventId,
    capture: Arc<Capture>,
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

    /// The routines that the stub of a function calls which these sessions trace, and at whose returns `returns` are
    /// captured, too. Writes those that are missing, which nothing leads to yet.
    pub(super) fn captures(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        function: FunctionId,
        sessions: SessionSet,
        returns: Vec<CapturePart>,
    ) -> Result<Captures, ApplyError> {
        let entry = self.parts(function, Moment::Entry, sessions);
        let mut exit = self.parts(function, Moment::Exit, sessions);
        exit.extend(returns);
        let entry = self.routine(memory, function, entry)?;
        Ok(Captures {
            entry: self.announcing(memory, function, entry)?,
            exit: self.routine(memory, function, exit)?,
        })
    }

    /// What probes capture at the returns of functions, when `session` records them.
    pub(super) fn return_parts(
        &self,
        session: impl Fn(&Probe) -> Option<SessionId>,
    ) -> HashMap<FunctionId, Vec<CapturePart>> {
        let mut parts: HashMap<FunctionId, Vec<CapturePart>> = HashMap::new();
        let probes = self.probes();
        for probe in probes.filter(|probe| probe.is_return && !probe.is_gone) {
            let recorder = session(probe).and_then(|id| {
                let events = self.session(id).ok()?.events.as_ref()?;
                Some(events.recorder)
            });
            if let Some(recorder) = recorder {
                let here = parts.entry(probe.place.function).or_default();
                here.push(CapturePart {
                    recorder,
                    event: probe.event,
                    capture: Arc::clone(&probe.capture),
                });
            }
        }
        parts
    }

    /// Has returns be hooked even if no session does so.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn hook_returns(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        let ground = self.ground.as_mut().ok_or(WindowError::NoVcpu)?;
        ground.make_mirror(target)
    }

    /// Whether any session has values of calls captured.
    pub(super) fn captures_calls(&self) -> bool {
        let sessions = self.sessions.iter().flatten();
        sessions.into_iter().any(|one| !one.captures.is_empty())
    }

    /// What sessions have captured of a function's calls.
    fn parts(
        &self,
        function: FunctionId,
        moment: Moment,
        sessions: SessionSet,
    ) -> Vec<CapturePart> {
        let Some(known) = self.calls.known.get(&(function, moment)) else {
            return Vec::new();
        };
        let bytes = known.capture.payload_bytes();
        let sessions = sessions.iter();
        let sessions = sessions.filter_map(|id| self.session(SessionId(id)).ok());
        let wanting = sessions.filter(|session| session.captures.has(moment));
        let recorders = wanting.filter_map(|session| Some(session.events.as_ref()?.recorder));
        let fitting = recorders.filter(|recorder| bytes <= 1 << recorder.payload_log2);
        let part = |recorder| CapturePart {
            recorder,
            event: known.event,
            capture: Arc::clone(&known.capture),
        };
        fitting.map(part).collect()
    }

    /// Where the routine is that captures these parts of a function's calls; none for none.
    fn routine(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        function: FunctionId,
        parts: Vec<CapturePart>,
    ) -> Result<Option<Gva>, ApplyError> {
        if parts.is_empty() {
            return Ok(None);
        }
        let routines = self.calls.routines.get(&function);
        let mut routines = routines.into_iter().flatten();
        if let Some((_, at)) = routines.find(|(of, _)| *of == parts) {
            return Ok(Some(*at));
        }
        let reach = self.reach();
        let stub = CaptureStub {
            parts,
            tail: Tail::Return,
            lowered: CALLED,
            is_between: true,
            reach,
        };
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let near = Gva(ground.arena.start().0.wrapping_sub(TEMPLATE_MAX));
        let template = stub.template(near).map_err(PlanError::from)?;
        let room = ground.arena.allocate(template.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        // The numbers of the events are in it already.
        let bytes = template.stamp(at, FunctionId(0), Gva(0));
        let bytes = bytes.map_err(PlanError::from)?;
        memory
            .write_window(physical, &bytes)
            .map_err(ApplyError::Stub)?;
        let routines = self.calls.routines.entry(function).or_default();
        routines.push((stub.parts, at));
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
