//! What a session has in the guest, and what is kept of one that was deleted.

use crate::record::Format;
use crate::session::{SessionConfig, SessionEvents, SessionId, SessionMemory, TracerKind};
use crate::stub::profile::Profile;
use crate::stub::recorder::Recorder;

/// The memory of a deleted session.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) id: SessionId,
    pub(super) tracer: TracerKind,
    pub(super) format: Format,
    /// None when the guest has written to its cells: then its rings are never used again.
    pub(super) place: Option<Place>,
}

/// What a session has in the guest.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) memory: SessionMemory,
    pub(super) recorder: Option<Recorder>,
    pub(super) profile: Option<Profile>,
    pub(super) events: Option<SessionEvents>,
}

impl Retired {
    /// Its memory, if that is rings.
    pub(super) fn rings(&self) -> Option<&SessionMemory> {
        let place = self.place.as_ref()?;
        place.recorder.map(|_| &place.memory)
    }

    /// Whether a session as `config` says can have it as it is.
    pub(super) fn suits(&self, config: &SessionConfig) -> bool {
        let is_of =
            |place: &Place| place.recorder.is_none() || place.memory.geometry == config.geometry;
        (self.tracer, self.format) == (config.tracer, config.format())
            && self.place.as_ref().is_some_and(is_of)
    }
}
