//! What a session has in the guest, and what is kept of one that was deleted.

use super::AttachError;
use super::foothold::Foothold;
use crate::filter::Selection;
use crate::record::Format;
use crate::ring::turnstile::WaitAt;
use crate::session::{CallMoments, Session, SessionConfig, SessionId, SessionMemory, TracerKind};
use crate::stub::profile::Profile;
use crate::stub::recorder::Recorder;
use crate::target::WindowMemory;
use crate::window::WindowError;

/// The memory of a deleted session.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) id: SessionId,
    pub(super) tracer: TracerKind,
    pub(super) format: Format,
    /// None when the guest has written to its cells: then its rings are never used again.
    pub(super) place: Option<Allotment>,
}

/// What a session has in the guest.
#[derive(Debug)]
pub(super) struct Allotment {
    pub(super) memory: SessionMemory,
    pub(super) recorder: Option<Recorder>,
    pub(super) profile: Option<Profile>,
}

impl Allotment {
    /// The counters, if it has any, begin at 0.
    ///
    /// # Errors
    /// [`AttachError::Counters`] when they cannot be written.
    fn clear_counters(
        &self,
        memory: &mut (impl WindowMemory + ?Sized),
        config: &SessionConfig,
    ) -> Result<(), AttachError> {
        let Some(profile) = &self.profile else {
            return Ok(());
        };
        let zeros = vec![0; usize::try_from(profile.layout.bytes()).unwrap_or_default()];
        let zeroed = memory.write_window(self.memory.rings, &zeros);
        zeroed.map_err(|source| AttachError::Counters {
            name: config.name.clone(),
            source,
        })
    }

    /// A session that has this and traces nothing yet. `waits` is where its stubs wait at a full ring.
    pub(super) fn session(self, config: SessionConfig, waits: Option<WaitAt>) -> Session {
        let clock = config.clock;
        let recorder = |recorder| Recorder {
            clock,
            waits,
            tasks: None,
            ..recorder
        };
        Session {
            memory: self.memory,
            recorder: self.recorder.map(recorder),
            profile: self.profile.map(|profile| Profile {
                clock,
                tasks: None,
                ..profile
            }),
            events: None,
            selection: Selection::default(),
            captures: CallMoments::default(),
            halts: Vec::new(),
            tasks: None,
            follows: false,
            config,
        }
    }
}

impl Retired {
    /// Memory that was made for a session as `config` says, which nobody has written to.
    pub(super) fn unused(id: SessionId, config: &SessionConfig, place: Allotment) -> Self {
        Self {
            id,
            tracer: config.tracer,
            format: config.format(),
            place: Some(place),
        }
    }

    /// Its memory, if that is rings.
    pub(super) fn rings(&self) -> Option<&SessionMemory> {
        let place = self.place.as_ref()?;
        place.recorder.map(|_| &place.memory)
    }

    /// Makes its memory that of a session as `config` says, where there are so many functions.
    ///
    /// # Errors
    /// An [`AttachError`]; then it can be tried again.
    pub(super) fn fit(
        &mut self,
        foothold: &Foothold,
        target: &mut (impl WindowMemory + ?Sized),
        config: &SessionConfig,
        functions: usize,
    ) -> Result<(), AttachError> {
        let suits = self.suits(config, functions);
        let place = self.place.as_mut().ok_or(WindowError::NoVcpu)?;
        if !suits {
            foothold.refit(target, place, config)?;
            (self.tracer, self.format) = (config.tracer, config.format());
        }
        place.clear_counters(target, config)
    }

    /// Whether a session as `config` says can have it as it is, where there are so many functions.
    pub(super) fn suits(&self, config: &SessionConfig, functions: usize) -> bool {
        let is_of = |place: &Allotment| match &place.profile {
            // Functions can have come since.
            Some(profile) => profile.layout.functions() as usize >= functions,
            None => place.memory.geometry == config.geometry,
        };
        (self.tracer, self.format) == (config.tracer, config.format())
            && self.place.as_ref().is_some_and(is_of)
    }
}
