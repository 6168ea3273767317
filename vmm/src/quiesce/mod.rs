//! Quiescing: all vCPUs out of the guest and consistent, for as long as a guard lives.
//!
//! Guards nest: the vCPUs run again when the last one is gone. A pause that the user asks for is
//! one more holder, so tracing can be changed while the guest is paused.

mod holders;

use std::time::{Duration, Instant};

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::guest::StopError;
use tracer::target::{
    MemoryError, NotProvided, PhysicalMemory, StoppedTarget, TargetMemory, TextMemory,
    VcpuRegisters, WindowMemory,
};

use crate::memory::Ram;
use crate::translated::Translated;
use crate::vcpu::{AskVcpuError, FullRegisters, Reply, Request};
pub(crate) use holders::{Holders, Requested};

/// All vCPUs are out of the guest and consistent while this lives.
#[derive(Debug)]
pub struct Quiesced<'m> {
    holders: &'m Holders,
    memory: Translated<&'m Ram>,
    full: Vec<FullRegisters>,
    registers: Vec<VcpuRegisters>,
    requested: Requested,
    /// Whether this guard is the one that paused the guest, and so the one to be measured.
    measured: bool,
}

impl<'m> Quiesced<'m> {
    pub(crate) fn hold(
        holders: &'m Holders,
        ram: &'m Ram,
        patience: Duration,
    ) -> Result<Self, StopError> {
        let requested = Requested::now(holders.time().counter());
        let measured = !holders.is_held();
        let full = hold_outside_guests(holders, requested.at, patience)?;
        let registers: Vec<_> = full.iter().map(VcpuRegisters::from).collect();
        Ok(Self {
            holders,
            memory: Translated::new(ram, &registers, None),
            full,
            registers,
            requested,
            measured,
        })
    }

    /// All registers of each vCPU.
    #[must_use]
    pub fn full_registers(&self) -> &[FullRegisters] {
        &self.full
    }

    /// When the pause was asked for.
    #[must_use]
    pub fn requested(&self) -> Instant {
        self.requested.at
    }

    /// Has vCPU `vcpu` do `request`, and reads all registers anew.
    ///
    /// # Errors
    /// [`AskVcpuError`] when KVM refuses or the thread does not answer within `patience`.
    pub fn ask(
        &mut self,
        vcpu: u16,
        request: Request,
        patience: Duration,
    ) -> Result<Reply, AskVcpuError> {
        let handle = self.holders.vcpus().get(usize::from(vcpu));
        let handle = handle.ok_or(AskVcpuError::NotParked { vcpu })?;
        let reply = handle.ask(request, Instant::now() + patience)?;
        let index = usize::from(vcpu);
        if let Some(now) = handle.registers() {
            if let Some(full) = self.full.get_mut(index) {
                *full = now;
            }
            if let Some(registers) = self.registers.get_mut(index) {
                *registers = VcpuRegisters::from(&now);
            }
        }
        self.memory.seen_by(&self.registers);
        Ok(reply)
    }

    /// Fills in `kernel_gs_base`, which a pause alone does not, of every vCPU whose other registers do
    /// not tell with which GS base its ring 0 executes.
    ///
    /// # Errors
    /// [`AskVcpuError`] when KVM refuses or a thread does not answer within `patience`.
    pub fn fetch_kernel_gs_base(&mut self, patience: Duration) -> Result<(), AskVcpuError> {
        let unknown =
            |(_, vcpu): &(u16, &VcpuRegisters)| vcpu.online && vcpu.supervisor_gs_base().is_none();
        let vcpus: Vec<_> = (0..).zip(&self.registers).filter(unknown).collect();
        let vcpus: Vec<u16> = vcpus.into_iter().map(|(number, _)| number).collect();
        for vcpu in vcpus {
            self.ask(vcpu, Request::ReadKernelGsBase, patience)?;
        }
        Ok(())
    }
}

/// Holds all vCPUs at a moment in which none executes a guest of the guest, for as many attempts as `patience`
/// lasts. The guest runs between two of them.
fn hold_outside_guests(
    holders: &Holders,
    since: Instant,
    patience: Duration,
) -> Result<Vec<FullRegisters>, StopError> {
    loop {
        let full = holders.hold(patience)?;
        let nested = (0..).zip(&full).find(|(_, vcpu)| vcpu.is_nested);
        let Some((vcpu, _)) = nested else {
            return Ok(full);
        };
        holders.release();
        // Whoever else holds the guest keeps it where it is.
        if holders.is_held() || since.elapsed() >= patience {
            let deadline = patience;
            return Err(StopError::Nested { vcpu, deadline });
        }
        std::thread::yield_now();
    }
}

impl Drop for Quiesced<'_> {
    fn drop(&mut self) {
        if self.measured {
            self.holders.ends(self.requested);
        }
        self.holders.release();
    }
}

impl PhysicalMemory for Quiesced<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl WindowMemory for Quiesced<'_> {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_window(at, bytes)
    }
}

impl TargetMemory for Quiesced<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(at, into)
    }
}

impl TextMemory for Quiesced<'_> {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_physical(at, bytes)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, bytes)
    }
}

impl StoppedTarget for Quiesced<'_> {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &self.registers
    }

    fn ram(&self) -> Vec<Region> {
        self.memory.ram()
    }

    fn has_gigabyte_pages(&self) -> bool {
        self.holders.has_gigabyte_pages()
    }

    fn provide(&mut self, part: Region) -> Result<(), NotProvided> {
        self.holders.provide(part)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::vcpu::fake::FakeVcpu;
    use crate::vcpu::{Gate, VcpuState};

    /// Longer than any machine needs to run a thread.
    const LONG: Duration = Duration::from_secs(60);

    fn vcpus() -> ([FakeVcpu; 2], Holders) {
        let gate = Arc::new(Gate::default());
        let vcpus = [0, 1].map(|number| FakeVcpu::start(number, &gate));
        let handles = vcpus.iter().map(FakeVcpu::handle).collect();
        let time = std::sync::Arc::new(tracer::clock::HeldTime::new(crate::clock::HOST));
        let holders = Holders::new(handles, gate, time);
        (vcpus, holders)
    }

    #[test]
    fn the_registers_of_a_guest_of_the_guest_are_not_taken_for_its_own() {
        let (vcpus, holders) = vcpus();
        vcpus[1].be_nested(u32::MAX);
        let short = Duration::from_millis(20);
        let error = hold_outside_guests(&holders, Instant::now(), short).unwrap_err();
        assert!(matches!(error, StopError::Nested { vcpu: 1, .. }));
        assert!(!holders.is_held());
        for vcpu in &vcpus {
            vcpu.wait_until(VcpuState::Running, LONG);
        }
    }

    #[test]
    fn a_moment_outside_of_it_is_waited_for() {
        let (vcpus, holders) = vcpus();
        vcpus[0].be_nested(5);
        let full = hold_outside_guests(&holders, Instant::now(), LONG).unwrap();
        assert!(full.iter().all(|vcpu| !vcpu.is_nested));
        assert!(holders.is_held());
        holders.release();
    }

    #[test]
    fn who_is_held_there_by_somebody_else_is_not_waited_for() {
        let (vcpus, holders) = vcpus();
        vcpus[0].be_nested(1);
        holders.hold(LONG).unwrap();
        let error = hold_outside_guests(&holders, Instant::now(), LONG).unwrap_err();
        assert!(matches!(error, StopError::Nested { vcpu: 0, .. }));
        assert!(holders.is_held(), "by the first one");
        holders.release();
    }
}
