//! Where a trace is kept, and what keeps it.

use std::path::PathBuf;

use trace::export::budget::Steps;
use trace::export::store::Store;
use trace::export::uftrace::{ExportError, is_gone};

use super::recording::Recording;

/// Where a trace is kept.
#[derive(Debug)]
pub(super) struct Kept {
    /// By whom.
    pub store: Keeper,
    /// Where.
    pub directory: PathBuf,
    /// How far the writing is.
    pub steps: Steps,
}

impl Kept {
    /// Whether it was taken away, or is just being so: then its first files may still be there.
    pub fn is_gone(&self) -> bool {
        let is_kept = !matches!(self.store, Keeper::Nothing(_));
        is_kept
            && (self.error().is_some_and(ExportError::is_of_removed) || is_gone(&self.directory))
    }

    /// Why not everything was written.
    pub fn error(&self) -> Option<&ExportError> {
        match &self.store {
            Keeper::Events(store) => store.error(),
            Keeper::Records(recording) => recording.error(),
            Keeper::Nothing(why) => Some(why),
        }
    }

    /// What keeps what the rings bring, if that is kept.
    pub fn recording(&mut self) -> Option<&mut Recording> {
        match &mut self.store {
            Keeper::Records(recording) => Some(recording),
            Keeper::Events(_) | Keeper::Nothing(_) => None,
        }
    }
}

/// What keeps it.
#[derive(Debug)]
pub(super) enum Keeper {
    /// The events of the stream.
    Events(Box<dyn Store>),
    /// What the rings bring; it goes through the stream for who listens only.
    Records(Box<Recording>),
    /// Nothing any more, for this reason.
    Nothing(ExportError),
}
