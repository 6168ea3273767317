//! Changing words of a guest's text while its vCPUs run: a guest as an [`AtomicTarget`], where its RAM is mapped here.
//!
//! The guest's page tables at this moment are nobody's to say, for no vCPU is asked: where the kernel's text lies is known from
//! how it was loaded, or found (`Guest::locate`). Words that lie elsewhere are out of reach, and left to a pause.

use terms::addr::{Gpa, Gva};
use tracer::guest::Guest;
use tracer::target::{AtomicTarget, MemoryError, PhysicalMemory, TargetMemory};

use crate::memory::Ram;
use crate::scatter::{loaded_pieces, read_pieces};

/// What is exchanged at once.
const WORD: u64 = 8;

/// A guest all of whose vCPUs may run.
#[derive(Debug)]
pub struct Running<'g, G> {
    guest: &'g G,
    /// What of its memory is mapped here.
    mapped: &'g Ram,
}

impl<'g, G: Guest> Running<'g, G> {
    pub(crate) const fn of(guest: &'g G, mapped: &'g Ram) -> Self {
        Self { guest, mapped }
    }
}

impl<G: Guest> PhysicalMemory for Running<'_, G> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.guest.memory().read_physical(at, into)
    }
}

impl<G: Guest> TargetMemory for Running<'_, G> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        let found = loaded_pieces(at, into.len(), |here| self.guest.locate(here))?;
        read_pieces(self.guest.memory(), &found, into)
    }
}

impl<G: Guest> AtomicTarget for Running<'_, G> {
    fn reaches(&self, at: Gva) -> bool {
        let word = Gva(at.0 - at.0 % WORD);
        let found = self.guest.locate(word);
        found.is_some_and(|(at, left)| left >= WORD && self.mapped.can_exchange(at))
    }

    fn exchange(&mut self, at: Gva, old: u64, new: u64) -> Result<u64, MemoryError> {
        let (found, _) = self.guest.locate(at).ok_or(MemoryError::NotMapped {
            address: at,
            length: size_of::<u64>(),
        })?;
        self.mapped.exchange(found, old, new)
    }
}
