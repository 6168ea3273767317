//! Stopping a vCPU at an address: by a debug register or, on hosts whose debug registers do
//! nothing, by a *text trap*: two bytes in the guest's text that write to a port of ours.
//!
//! A port write leaves the guest on every KVM, from ring 0. The bytes go in through the physical
//! addresses of the kernel's file, so a trap can be armed before the kernel has page tables.

use std::cell::Cell;
use std::sync::OnceLock;

use insn::trap::{TRAP_LENGTH, trap};
use terms::addr::{Gpa, Gva};
use tracer::guest::StopError;
use tracer::target::MemoryError;

use crate::layout::TRAP_PORT;
use crate::loader::ElfLayout;
use crate::memory::Ram;
use crate::trial::features;
use crate::vcpu::AskVcpuError;

const TRAP: [u8; TRAP_LENGTH] = trap(TRAP_PORT);

/// Why the attach breakpoint could not be armed or disarmed.
#[derive(Debug, thiserror::Error)]
pub enum BreakpointError {
    /// The machine did not pause.
    #[error("the breakpoint needs a pause: {0}")]
    Quiesce(#[from] StopError),
    /// KVM refused.
    #[error("the breakpoint cannot be set: {0}; `vmm doctor` says which kinds this host has")]
    Ask(#[from] AskVcpuError),
    /// KVM refused, before the vCPUs were started.
    #[error("the breakpoint cannot be set: {0}; `vmm doctor` says which kinds this host has")]
    Refused(#[source] kvm_ioctls::Error),
    /// The address is not in the kernel's file.
    #[error(
        "no breakpoint at {0}: this host's debug registers do nothing, and a trap in the text needs an address in the kernel's file"
    )]
    NoText(Gva),
    /// The text is not there.
    #[error("the trap in the guest's text: {0}")]
    Memory(#[from] MemoryError),
    /// Somebody else has changed the text.
    #[error("the trap at {at} is gone: its bytes are {found:02x?}, they were {TRAP:02x?}")]
    Overwritten {
        /// Where.
        at: Gpa,
        /// What is there.
        found: [u8; 2],
    },
}

/// The part of a breakpoint that stands in the guest's text, on a host that needs one.
#[derive(Debug, Default)]
pub(crate) struct TextTrap(Cell<Option<ArmedTrap>>);

impl TextTrap {
    /// Takes the trap out where it is, and puts it at `at`. No vCPU may run.
    pub(crate) fn put(
        &self,
        at: Option<Gva>,
        text: &Ram,
        layout: &ElfLayout,
    ) -> Result<(), BreakpointError> {
        if let Some(trap) = self.0.take() {
            trap.disarm(text)?;
        }
        let Some(at) = at else { return Ok(()) };
        if !registers_exit() {
            let (at, _) = layout.locate(at).ok_or(BreakpointError::NoText(at))?;
            self.0.set(Some(ArmedTrap::arm(text, at)?));
        }
        Ok(())
    }
}

/// Whether the processor's own breakpoints leave the guest. Takes some milliseconds, the first time.
#[must_use]
pub fn registers_exit() -> bool {
    static TRIED: OnceLock<bool> = OnceLock::new();
    // A host on which even the trial fails has no tiny VM either: leave it to the register.
    *TRIED.get_or_init(|| features::hardware_breakpoints_exit().unwrap_or(true))
}

/// A text trap that is armed.
///
/// A function can be shorter than the trap: one byte of what follows is then changed too, which is
/// padding or a function that is not meant to run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ArmedTrap {
    at: Gpa,
    old: [u8; 2],
}

impl ArmedTrap {
    /// Puts the trap over the bytes at `at`. No vCPU may run.
    fn arm(text: &Ram, at: Gpa) -> Result<Self, BreakpointError> {
        let mut old = [0; 2];
        text.read(at, &mut old)?;
        text.write(at, &TRAP)?;
        Ok(Self { at, old })
    }

    /// Puts the old bytes back. No vCPU may run, and none may be past the trap's port write.
    fn disarm(self, text: &Ram) -> Result<(), BreakpointError> {
        let at = self.at;
        let mut found = [0; 2];
        text.read(at, &mut found)?;
        if found != TRAP {
            return Err(BreakpointError::Overwritten { at, found });
        }
        Ok(text.write(at, &self.old)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    const AT: Gpa = Gpa(0x1004);

    fn text(bytes: [u8; 8]) -> Ram {
        let ram = Ram::create(layout::MEMORY_MIN_MIB, 0x1000).unwrap();
        ram.write(Gpa(0x1000), &bytes).unwrap();
        ram
    }

    fn bytes(ram: &Ram) -> [u8; 8] {
        let mut bytes = [0; 8];
        ram.read(Gpa(0x1000), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn disarming_brings_the_exact_bytes_back() {
        let original = [0, 1, 2, 3, 4, 5, 6, 7];
        let ram = text(original);
        let trap = ArmedTrap::arm(&ram, AT).unwrap();
        assert_eq!(bytes(&ram), [0, 1, 2, 3, 0xe6, TRAP_PORT, 6, 7]);
        trap.disarm(&ram).unwrap();
        assert_eq!(bytes(&ram), original);
    }

    #[test]
    fn foreign_bytes_are_left() {
        let ram = text([0x90; 8]);
        let trap = ArmedTrap::arm(&ram, AT).unwrap();
        ram.write(AT, &[0xcc]).unwrap();
        let error = trap.disarm(&ram).unwrap_err().to_string();
        assert!(error.contains("cc, f5"), "{error}");
        assert_eq!(bytes(&ram)[4..6], [0xcc, TRAP_PORT]);
    }

    #[test]
    fn an_address_that_is_no_memory_is_an_error() {
        let ram = text([0x90; 8]);
        let nowhere = Gpa(u64::MAX - 0xfff);
        let error = ArmedTrap::arm(&ram, nowhere).unwrap_err();
        assert!(matches!(error, BreakpointError::Memory(_)), "{error}");
    }
}
