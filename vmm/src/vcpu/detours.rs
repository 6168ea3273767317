//! Probes that leave the guest: two bytes of its text write to a port of ours, and the vCPU continues elsewhere.
//!
//! Of last resort, where no jump fits and the guest serves no breakpoints: a port write leaves the guest on every KVM,
//! from ring 0, while `int3` does on few. It costs an exit each time; everything else is done by the stub that the vCPU
//! continues at.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use insn::trap::TRAP_LENGTH;
use parking_lot::RwLock;
use terms::addr::Gva;

/// Where vCPUs continue that have left the guest at a probe.
#[derive(Debug, Default)]
pub struct Detours {
    places: RwLock<HashMap<Gva, Gva>>,
    exits: AtomicU64,
}

impl Detours {
    /// Replaces all of them. The vCPUs have to be parked when the text is changed with them.
    pub fn set(&self, places: impl IntoIterator<Item = (Gva, Gva)>) {
        *self.places.write() = places.into_iter().collect();
    }

    /// Where a vCPU continues whose port write is complete, with `rip` after it; none when that was no
    /// probe's.
    pub(super) fn of(&self, rip: Gva) -> Option<Gva> {
        let at = Gva(rip.0.wrapping_sub(TRAP_LENGTH as u64));
        let found = self.places.read().get(&at).copied();
        self.exits
            .fetch_add(u64::from(found.is_some()), Ordering::Relaxed);
        found
    }

    /// How often a vCPU has left the guest at a probe.
    #[must_use]
    pub fn exits(&self) -> u64 {
        self.exits.load(Ordering::Relaxed)
    }
}
