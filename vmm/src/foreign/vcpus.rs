//! The vCPUs of a guest: those that it had when it was found, and those that it has got since (QEMU's `device_add` of a CPU).
//!
//! Who came later is held like the others: text is changed under nobody. It has no rings, so nothing of it is recorded, which is
//! said; it finds cells all the same, of zeros (`stub/cell.rs`). A vCPU's descriptor is there before its guest is told of it,
//! which has to start it then: some milliseconds. So descriptors that were listed just before all others stood still are
//! all that can execute anything. One that was closed and comes back could be entered at once; that none has is seen once all others
//! stand, in the table of descriptors of the first thread, which is that of all threads but those that were made without it: those were
//! each looked at when it was seen to be over ([`closed`](super::closed)). Nothing less than a look at each descriptor tells: their number
//! stays when one is closed and another one comes.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::closed::see_over;
use super::error::ForeignError;
use super::process::{Process, VcpuDescriptor};
use super::threads::open;
use super::vcpu::ForeignVcpu;

/// For so long a list holds good while the guest runs on: it starts no vCPU in less.
const FRESH: Duration = Duration::from_millis(1);

/// The vCPUs of one guest.
#[derive(Debug, Default)]
pub(crate) struct Vcpus {
    found: Vec<Arc<ForeignVcpu>>,
    late: RefCell<Vec<Arc<ForeignVcpu>>>,
}

/// When descriptors were listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed(Instant);

impl Vcpus {
    /// Those that `process` has now, by number.
    ///
    /// # Errors
    /// [`ForeignError::NotVmm`] and others.
    pub fn of(process: &Process) -> Result<Self, ForeignError> {
        let pid = process.pid();
        let descriptors = process.vcpu_descriptors()?;
        if descriptors.is_empty() {
            return Err(ForeignError::NotVmm { pid });
        }
        Ok(Self {
            found: open(process, &descriptors)?,
            late: RefCell::default(),
        })
    }

    /// Those that the guest had when it was found: the others have no rings.
    pub fn found(&self) -> &[Arc<ForeignVcpu>] {
        &self.found
    }

    /// How many these are.
    pub fn count(&self) -> u16 {
        u16::try_from(self.found.len()).unwrap_or(u16::MAX)
    }

    /// Those that came later.
    pub fn late(&self) -> Vec<Arc<ForeignVcpu>> {
        self.late.borrow().clone()
    }

    /// All of them; those that came later are the last.
    pub fn all(&self) -> Vec<Arc<ForeignVcpu>> {
        [self.found.clone(), self.late()].concat()
    }

    /// Looks for more of them.
    ///
    /// # Errors
    /// [`ForeignError::Proc`] and others.
    pub(super) fn list(&self, process: &Process) -> Result<Listed, ForeignError> {
        let listed = Listed(Instant::now());
        let mut descriptors = process.all_vcpu_descriptors()?;
        for vcpu in self.all() {
            vcpu.look_among(process, &descriptors);
        }
        let mut closed = self.all();
        closed.retain(|vcpu| vcpu.is_closed() && !vcpu.is_over());
        if !closed.is_empty() {
            see_over(process, &closed)?;
        }
        // One that was duplicated is the same vCPU.
        descriptors.dedup_by_key(|one| one.vcpu);
        let come = self.unknown(descriptors);
        if !come.is_empty() {
            let come = open(process, &come)?;
            for vcpu in &come {
                log::warn!(
                    "the guest has got vCPU {} since it was attached to: nothing of it is recorded; \
                     let the guest go and attach anew for that",
                    vcpu.number()
                );
            }
            self.late.borrow_mut().extend(come);
        }
        Ok(listed)
    }

    /// Whether none can have been started since they were listed that is not held: all others stand still now.
    ///
    /// # Errors
    /// [`ForeignError::Proc`].
    pub(super) fn are_all(&self, listed: Listed, process: &Process) -> Result<bool, ForeignError> {
        let is_fresh = listed.0.elapsed() < FRESH;
        let mut over = self.all();
        over.retain(|vcpu| vcpu.is_over());
        if is_fresh && over.is_empty() {
            return Ok(true);
        }
        let descriptors = process.all_vcpu_descriptors()?;
        // Its guest has been told of that one before.
        let is_back = over.iter().any(|vcpu| vcpu.is_among(process, &descriptors));
        Ok(!is_back && (is_fresh || self.unknown(descriptors).is_empty()))
    }

    fn unknown(&self, mut descriptors: Vec<VcpuDescriptor>) -> Vec<VcpuDescriptor> {
        let late = self.late.borrow();
        let is_known = |one: &VcpuDescriptor| {
            let mut all = self.found.iter().chain(late.iter());
            all.any(|vcpu| vcpu.number() == one.vcpu)
        };
        descriptors.retain(|one| !is_known(one));
        descriptors
    }

    /// Their VMM has ended.
    pub fn clear(&mut self) {
        self.found.clear();
        self.late.get_mut().clear();
    }
}
