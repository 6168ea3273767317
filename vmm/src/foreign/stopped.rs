//! A guest of another VMM of which no vCPU runs.

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::guest::{RegisterError, StopError, StoppedGuest};
use tracer::target::{
    MemoryError, NotProvided, PhysicalMemory, StoppedTarget, TargetMemory, TextMemory,
    VcpuRegisters, WindowMemory,
};

use super::error::ForeignError;
use super::held_ram::HeldRam;
use super::machine::Foreign;
use super::memory::ForeignRam;
use super::parked::Parked;
use super::touched::touched;
use crate::all_memory::AllMemory;
use crate::translated::Translated;

/// `IA32_LSTAR`: where system calls enter.
pub(super) const LSTAR: u32 = 0xc000_0082;
/// `IA32_KERNEL_GS_BASE`.
const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// No physical address of a guest has more bits (AMD64 Architecture Programmer's Manual, volume 2, 5.1).
const ADDRESSED: u64 = 1 << 52;

/// All vCPUs are out of the guest and consistent while this lives.
#[derive(Debug)]
pub struct ForeignStopped<'g> {
    guest: &'g Foreign,
    memory: Translated<HeldRam<&'g ForeignRam>>,
    registers: Vec<VcpuRegisters>,
}

impl<'g> ForeignStopped<'g> {
    /// Stops it.
    ///
    /// # Errors
    /// [`StopError`]; then the guest runs on.
    pub(super) fn stop(guest: &'g Foreign) -> Result<Self, StopError> {
        let full = guest.hold()?;
        let registers: Vec<_> = full.iter().map(VcpuRegisters::from).collect();
        let ram = guest.all_memory();
        let held = HeldRam::new(ram, ram.take_wanted());
        Ok(Self {
            guest,
            memory: Translated::new(held, &registers, guest.kernel_text()),
            registers,
        })
    }

    /// Where memory begins, or may begin, that the guest has got since it was attached to. It was not mapped: it cannot be read.
    fn added(&self) -> Option<Gpa> {
        match self.guest.added_memory() {
            Ok(None) => None,
            Ok(Some(start)) => {
                log::warn!(
                    "the guest has memory at {start} that it had not when it was attached to: \
                     `vmm attach --restore` finds it, and takes away what stays now"
                );
                Some(start)
            }
            // Nothing stays in what has ended.
            Err(_) if self.guest.process().is_ending() => None,
            Err(error) => {
                log::warn!(
                    "whether the guest has got memory since it was attached to cannot be found out: {error}; \
                     `vmm attach --restore` looks again, and takes away what stays now"
                );
                Some(Gpa(self.guest.all_memory().memory().ram().end()))
            }
        }
    }

    fn msr(&self, vcpu: u16, index: u32) -> Result<u64, RegisterError> {
        let read = |parked: &mut Parked, deadline| parked.msr(index, deadline);
        Ok(self.guest.with_parked(vcpu, read)?)
    }
}

impl From<ForeignError> for RegisterError {
    fn from(error: ForeignError) -> Self {
        Self {
            why: error.to_string(),
        }
    }
}

impl Drop for ForeignStopped<'_> {
    fn drop(&mut self) {
        self.guest.release();
        let pages = self.memory.physical().wanted();
        self.guest.all_memory().set_wanted(pages);
    }
}

impl StoppedGuest for ForeignStopped<'_> {
    fn fetch_kernel_gs_base(&mut self) -> Result<(), RegisterError> {
        for vcpu in 0..u16::try_from(self.registers.len()).unwrap_or(u16::MAX) {
            let known = self.registers.get(usize::from(vcpu));
            let is_unknown =
                known.is_some_and(|vcpu| vcpu.online && vcpu.supervisor_gs_base().is_none());
            if !is_unknown {
                continue;
            }
            let base = self.msr(vcpu, KERNEL_GS_BASE)?;
            if let Some(registers) = self.registers.get_mut(usize::from(vcpu)) {
                registers.kernel_gs_base = Some(base);
            }
        }
        Ok(())
    }

    fn syscall_entry(&mut self, vcpu: u16) -> Result<Gva, RegisterError> {
        self.msr(vcpu, LSTAR).map(Gva)
    }
}

impl PhysicalMemory for ForeignStopped<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl WindowMemory for ForeignStopped<'_> {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_window(at, bytes)
    }
}

impl TargetMemory for ForeignStopped<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(at, into)
    }

    fn read_all(&self, places: &mut [(Gva, &mut [u8])]) -> Result<(), MemoryError> {
        self.memory.read_all(places)
    }
}

impl TextMemory for ForeignStopped<'_> {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_physical(at, bytes)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, bytes)
    }

    fn write_all(&mut self, places: &[(Gva, &[u8])]) -> Result<(), MemoryError> {
        self.memory.write_all(places)
    }
}

impl StoppedTarget for ForeignStopped<'_> {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &self.registers
    }

    fn recorded(&self) -> &[VcpuRegisters] {
        let found = usize::from(self.guest.vcpus().count());
        self.registers.get(..found).unwrap_or(&self.registers)
    }

    /// What the guest has got since it was attached to begins where it says, and may go on to the end of what can be addressed.
    fn ram(&self) -> Vec<Region> {
        let mut regions = self.guest.all_memory().ram();
        let added = self.added();
        regions.extend(added.map(|start| Region {
            start,
            bytes: ADDRESSED.saturating_sub(start.0),
        }));
        regions
    }

    /// What the guest has got since it was attached to is there, too, and cannot be read: whoever has to know all of it is told so.
    fn touched(&self) -> Vec<Region> {
        let ram = self.guest.all_memory();
        let mut regions = match self.guest.process().mappings() {
            Ok(mappings) => {
                let pid = self.guest.process().pid();
                touched(pid, ram.memory().ram().ranges(), &mappings)
            }
            Err(_) => ram.ram(),
        };
        let added = self.added();
        regions.extend(added.map(|start| Region { start, bytes: 8 }));
        regions
    }

    fn has_gigabyte_pages(&self) -> bool {
        self.guest.has_gigabyte_pages()
    }

    /// The guest has had all of the window since it was made.
    fn provide(&mut self, part: Region) -> Result<(), NotProvided> {
        let window = self
            .guest
            .window()
            .map(super::window::ForeignWindow::region);
        match window.is_some_and(|window| window.holds(part.start, part.bytes)) {
            true => Ok(()),
            false => Err(NotProvided {
                at: part.start,
                bytes: part.bytes,
                why: "it is not in the tracing memory".to_owned(),
            }),
        }
    }
}
