//! What can be asked of one session without the guest.

use std::collections::BTreeSet;

use terms::function::FunctionId;
use trace::export::uftrace::Fired;
use trace::live::{Listener, Occasion};

use super::attachment::Attachment;
use super::session::{Choosing, HaltAt, Halting, Shared, TraceSession};
use super::{Tracing, TracingError};
use crate::collect::Polled;
use status::{Profile, Switched, TaskStatus};

/// A session that there is.
#[derive(Debug)]
pub struct OneSession<'a> {
    pub(super) on: &'a mut Attachment,
    pub(super) index: usize,
}

impl OneSession<'_> {
    /// Has what these sessions have recorded by now told to who listens, by who writes it. Returns those of which that is not so: it is waited for
    /// five seconds for all of them together, and no longer, however long what is written takes.
    #[must_use]
    pub fn read_now(tracing: &Tracing, names: &BTreeSet<&str>) -> BTreeSet<String> {
        let sessions = tracing.attachment.sessions.iter();
        let wanted = sessions.filter(|session| names.contains(&*session.name));
        let read =
            wanted.filter_map(|session| Some((&session.name, session.live.as_ref()?.polled()?)));
        let (names, rings): (Vec<_>, Vec<_>) = read.unzip();
        let unread = names.into_iter().zip(Polled::rounds(&rings));
        let unread = unread.filter(|(_, is_read)| !is_read);
        unread.map(|(name, _)| name.clone()).collect()
    }

    fn halting(&mut self) -> Result<Halting<'_>, TracingError> {
        Ok(Halting(self.on.sessions.at(self.index)?))
    }

    /// Lets stubs record or not; no text is touched.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn switch(self, on: bool) -> Result<Switched, TracingError> {
        Ok(self.on.sessions.at(self.index)?.switch(on))
    }

    /// Records only these vCPUs from now on, all when none is named; no text is touched.
    ///
    /// # Errors
    /// [`TracingError::NoSuchVcpu`] or [`TracingError::VcpusAlike`].
    pub fn record_only(self, vcpus: &[u16]) -> Result<Switched, TracingError> {
        let session = self.on.sessions.at(self.index)?;
        Choosing(session).record_only(vcpus, &self.on.shared)
    }

    /// Which tasks it records.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn tasks(self) -> Result<TaskStatus, TracingError> {
        Ok(TaskStatus::from(&self.on.sessions.at(self.index)?.tasks))
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

    /// Has what it records end at once there, in the guest, from its first start on. Returns the number of this halt, or
    /// why only who reads its records can do that.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn halt_at(mut self, at: HaltAt) -> Result<Result<usize, &'static str>, TracingError> {
        Ok(self.halting()?.halt_at(at))
    }

    /// How often a halt can still end recording; none before the session was started.
    ///
    /// # Errors
    /// As of [`Self::halt_at`].
    pub fn halt_left(mut self, number: usize) -> Result<Option<u64>, TracingError> {
        Ok(self.halting()?.halt_left(number))
    }

    /// It can so often from now on.
    ///
    /// # Errors
    /// As of [`Self::halt_at`].
    pub fn set_halt_left(mut self, number: usize, left: u64) -> Result<(), TracingError> {
        self.halting()?.set_halt_left(number, left);
        Ok(())
    }

    /// Lets stubs record again if they are to, whatever has ended it.
    ///
    /// # Errors
    /// As of [`Self::halt_at`].
    pub fn record_on(mut self) -> Result<(), TracingError> {
        self.halting()?.record_on();
        Ok(())
    }

    /// A trigger has fired because of something that it has recorded: its trace says so.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn has_fired(self, fired: Fired) -> Result<(), TracingError> {
        self.on.sessions.at(self.index)?.has_fired(fired);
        Ok(())
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

    /// Whether its filter, as it is now, has a function that the occasion is about. Of what is about no function it is said to.
    ///
    /// # Errors
    /// None as long as there is the session.
    pub fn selects_some_of(self, occasion: &Occasion) -> Result<bool, TracingError> {
        let session = self.on.sessions.at(self.index)?;
        Ok(selects_some_of(session, occasion, &self.on.shared))
    }
}

/// Whether a session's filter has a function that the occasion is about, or may have one of a module that comes.
fn selects_some_of(session: &TraceSession, occasion: &Occasion, shared: &Shared) -> bool {
    let (Occasion::Call(name) | Occasion::Longer(name, _)) = occasion else {
        return true;
    };
    let image = &shared.image;
    let is_it = |id: &FunctionId| {
        let function = image.functions.get(id.index());
        function.is_some_and(|function| name.matches(function))
    };
    let selection = session.select(&session.filter, shared).ok();
    // What is wrong with a filter is said where it is used.
    name.is_for_modules() || selection.is_none_or(|all| all.selected.iter().any(is_it))
}
