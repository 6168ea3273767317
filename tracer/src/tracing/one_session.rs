//! What can be asked of one session without the guest.

use trace::live::Listener;

use super::TracingError;
use super::attachment::Attachment;
use super::status::{Profile, Switched};

/// A session that there is.
#[derive(Debug)]
pub struct OneSession<'a> {
    pub(super) on: &'a mut Attachment,
    pub(super) index: usize,
}

impl OneSession<'_> {
    /// Lets stubs record or not; no text is touched.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn switch(self, on: bool) -> Result<Switched, TracingError> {
        Ok(self.on.sessions.at(self.index)?.switch(on))
    }

    /// What a profile session has counted so far.
    ///
    /// # Errors
    /// [`TracingError::NoProfile`] for another session.
    pub fn profile(self) -> Result<Profile, TracingError> {
        let knows_vcpus = self.on.knows_vcpus();
        let (image, clock) = (&self.on.shared.image, self.on.time.clock);
        let session = self.on.sessions.at(self.index)?;
        session.profile(image, clock, knows_vcpus)
    }

    /// One more listens to what it records.
    ///
    /// # Errors
    /// [`TracingError::NoRecords`] of a profile.
    pub fn listen(self, listener: Listener) -> Result<(), TracingError> {
        let found = self.on.found();
        let session = self.on.sessions.at(self.index)?;
        session.listen(listener, &self.on.shared, found)
    }
}
