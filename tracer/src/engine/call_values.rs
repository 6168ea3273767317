//! Values of calls: what graph sessions have captured when functions are entered, and when they have returned.
//!
//! The stub of a function calls a routine for each, which writes what it captures, and the stack slot that the record
//! of the same step will have, to the event rings of the sessions that want it. The routine of a function stays, as
//! stubs do, and is found again.

use std::collections::HashMap;
use std::sync::Arc;

use image::Image;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::expression::Expression;
use terms::field::FieldType;
use terms::function::FunctionId;

use super::ApplyError;
use super::planning::Planning;
use crate::capture::{Capture, Captured, Source};
use crate::event_formats::EventFormats;
use crate::points::functions::shape;
use crate::session::{CallMoments, SessionId};
use crate::stub::capture::{CapturePart, CaptureStub, Standing};
use crate::stub::event::Tail;
use crate::stub::spec::SiteShape;
use crate::stub::store::Piece;
use crate::target::WindowMemory;
use terms::session_set::SessionSet;
use trace::event::Moment;

/// The number of `rsp`.
const STACK_POINTER: u8 = 4;
/// The number of `rbp`.
const FRAME_POINTER: u8 = 5;
/// Bytes that the stack pointer is lower when a routine is called than it was at the function.
const CALLED: u32 = 8;

/// What can be captured of calls.
#[derive(Debug, Default)]
pub struct CallCaptures {
    known: HashMap<(FunctionId, Moment), Known>,
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

impl CallCaptures {
    /// Says what can be captured of a function's calls at a moment. What was said first stays.
    ///
    /// # Errors
    /// A [`CallValuesError`].
    pub(super) fn know(
        &mut self,
        image: &Image,
        formats: &mut EventFormats,
        function: FunctionId,
        moment: Moment,
        capture: Capture,
    ) -> Result<(), CallValuesError> {
        if self.known.contains_key(&(function, moment)) {
            return Ok(());
        }
        if moment == Moment::Exit && image.unhookable(function).is_some() {
            return Err(CallValuesError::NoReturn);
        }
        let name = image.function(function).map(|of| of.display.clone());
        let name: Arc<str> = name.as_deref().unwrap_or_default().into();
        let capture = Arc::new(with_slot(image, function, moment, capture));
        let format = capture.format(name);
        let event = formats.add_call(function, moment, format);
        let known = Known {
            event: event.ok_or(CallValuesError::TooMany)?,
            capture,
        };
        self.known.insert((function, moment), known);
        Ok(())
    }

    /// Bytes of payload that a record of calls' values needs, at most.
    #[must_use]
    pub fn bytes(&self, moments: CallMoments) -> u64 {
        let known = self.known.iter();
        let wanted = known.filter(|((_, moment), _)| moments.has(*moment));
        let bytes = wanted.map(|(_, known)| known.capture.payload_bytes());
        bytes.max().unwrap_or(0)
    }

    /// What sessions have captured of a function's calls.
    pub(super) fn parts<M: WindowMemory + ?Sized>(
        &self,
        with: &Planning<'_, M>,
        function: FunctionId,
        moment: Moment,
        sessions: SessionSet,
    ) -> Vec<CapturePart> {
        let Some(known) = self.known.get(&(function, moment)) else {
            return Vec::new();
        };
        let bytes = known.capture.payload_bytes();
        let sessions = sessions.iter();
        let sessions = sessions.filter_map(|id| with.sessions.get(SessionId(id)).ok());
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
}

/// What is somebody's where a function is entered and where it has returned.
pub(super) fn standing_at(image: &Image, function: FunctionId) -> Standing {
    let shape = image.site_of(function).map(|site| shape(image, site));
    match shape.is_some_and(SiteShape::keeps_all) {
        true => Standing::Inside,
        false => Standing::Between,
    }
}

/// Where the routine is that captures these parts of a function's calls; none for none.
pub(super) fn place_routine<M: WindowMemory + ?Sized>(
    with: &mut Planning<'_, M>,
    standing: Standing,
    parts: Vec<CapturePart>,
) -> Result<Option<Gva>, ApplyError> {
    if parts.is_empty() {
        return Ok(None);
    }
    let stub = CaptureStub {
        parts,
        tail: Tail::Return,
        lowered: CALLED,
        standing,
        reach: with.reach(),
    };
    let piece = Piece::Capture {
        stub: Box::new(stub),
        go_on: Gva(0),
    };
    with.place(piece).map(Some)
}

/// What a routine writes: the stack slot, and the values. At an entry the slot is where the stack pointer is, or
/// above the saved frame pointer; when the function has returned, right below the stack pointer.
fn with_slot(image: &Image, function: FunctionId, moment: Moment, capture: Capture) -> Capture {
    let site = image.site_of(function);
    let shape = site.map(|site| shape(image, site));
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
