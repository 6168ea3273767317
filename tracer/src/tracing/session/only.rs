//! Which vCPUs a session records, told before it starts or while it does.

use super::{Live, Reader, Shared, TraceSession};
use crate::collect::only_vcpus::OnlyVcpus;
use crate::tracing::TracingError;
use status::Switched;

/// A session, as far as its vCPUs are chosen.
#[derive(Debug)]
pub(in crate::tracing) struct Choosing<'a>(pub &'a mut TraceSession);

/// Those that are named, of those that there are.
pub(super) fn vcpus(wanted: &[u16], shared: &Shared) -> Result<OnlyVcpus, TracingError> {
    let vcpus = shared.vcpus;
    let only = OnlyVcpus::new(wanted, vcpus);
    only.map_err(|vcpu| TracingError::NoSuchVcpu { vcpu, vcpus })
}

/// Whether some can be recorded alone by a session with so many rings.
pub(super) fn check(
    session: &str,
    only: &OnlyVcpus,
    rings: usize,
    shared: &Shared,
) -> Result<(), TracingError> {
    if only.is_all() || rings >= usize::from(shared.vcpus) {
        return Ok(());
    }
    Err(TracingError::VcpusAlike {
        session: session.to_owned(),
    })
}

impl Choosing<'_> {
    /// Whether the vCPUs that were chosen can be recorded alone, still.
    ///
    /// # Errors
    /// [`TracingError::VcpusAlike`].
    pub fn check(self, shared: &Shared) -> Result<(), TracingError> {
        self.can_record(&self.0.only, shared)
    }

    /// Before the session starts nobody knows how many rings there will be.
    fn can_record(&self, only: &OnlyVcpus, shared: &Shared) -> Result<(), TracingError> {
        let rings = self.0.live.as_ref().map_or(usize::MAX, Live::rings);
        check(&self.0.name, only, rings, shared)
    }

    /// Records only these vCPUs from now on; all when none is named. No text is touched.
    ///
    /// # Errors
    /// [`TracingError::NoSuchVcpu`], or [`TracingError::VcpusAlike`] where they cannot be told apart.
    pub fn record_only(self, wanted: &[u16], shared: &Shared) -> Result<Switched, TracingError> {
        let only = vcpus(wanted, shared)?;
        self.can_record(&only, shared)?;
        let session = self.0;
        let changed = session.only != only;
        session.only = only;
        if let Some(Reader::Rings(drain)) = session.live.as_ref().map(|live| &live.reader) {
            drain.lock().record_only(session.only.clone());
        }
        if changed {
            session.switch(session.switched_on);
        }
        Ok(Switched { changed })
    }
}
