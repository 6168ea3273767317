//! What a policy plans with: the image, the sessions, and the store that its stubs go to. Nothing leads to a new stub
//! before the plan is carried out, so the guest may run.

use std::sync::Arc;

use image::Image;
use terms::addr::Gva;

use super::{ApplyError, Foothold, Sessions};
use crate::session::SessionId;
use crate::stub::event::EventRecorder;
use crate::stub::reach::Reach;
use crate::stub::store::Piece;
use crate::target::WindowMemory;
use crate::text::sites::Sites;

/// What a policy plans with.
#[derive(Debug)]
pub struct Planning<'a, M: ?Sized> {
    /// What is known of the guest's text.
    pub image: &'a Arc<Image>,
    /// What stands where.
    pub sites: &'a mut Sites,
    /// Who records.
    pub sessions: &'a Sessions,
    /// Where stubs go; none before somebody attaches.
    pub foothold: Option<&'a mut Foothold>,
    /// The window's memory.
    pub memory: &'a mut M,
}

impl<M: WindowMemory + ?Sized> Planning<'_, M> {
    /// The foothold, with the memory that its store writes to.
    pub fn foothold(&mut self) -> Result<(&mut Foothold, &mut M), ApplyError> {
        let foothold = self.foothold.as_deref_mut();
        Ok((foothold.ok_or(ApplyError::NotAttached)?, self.memory))
    }

    /// Where this piece is, from now on.
    pub fn place(&mut self, piece: Piece) -> Result<Gva, ApplyError> {
        let (foothold, memory) = self.foothold()?;
        Ok(foothold.stubs.place(memory, piece)?)
    }

    /// Where an event of a session goes.
    pub fn event_recorder(&self, id: SessionId, event: &str) -> Result<EventRecorder, ApplyError> {
        let recorder = self.sessions.get(id)?.event_recorder(event);
        recorder.ok_or(ApplyError::NotAttached)
    }

    /// The routines that read the guest's memory.
    pub fn reach(&self) -> Option<Reach> {
        self.foothold.as_ref()?.reach()
    }
}
