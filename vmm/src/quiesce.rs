//! Quiescing: all vCPUs out of the guest and consistent, for as long as a guard lives.
//!
//! Guards nest: the vCPUs run again when the last one is gone. A pause that the user asks for is
//! one more holder, so tracing can be changed while the guest is paused.

mod holders;

use std::cell::Cell;
use std::time::{Duration, Instant};

use tracer::addr::{Gpa, Gva};
use tracer::paging::{self, PageTableRoot};
use tracer::target::{MemoryError, PhysicalMemory, StoppedTarget, TargetMemory, VcpuRegisters};

use crate::memory::Memory;
use crate::scatter::{Piece, pieces, read_pieces, write_pieces};
use crate::vcpu::{AskVcpuError, FullRegisters, Reply, Request};
pub(crate) use holders::Holders;
pub use holders::PauseTimes;

/// Why the machine could not be quiesced.
#[derive(Debug, thiserror::Error)]
pub enum QuiesceError {
    /// One vCPU did not get out of the guest in time. All run again.
    #[error("vCPU {vcpu} did not pause within {deadline:?}; the guest runs on unchanged")]
    Missed {
        /// Which one.
        vcpu: u16,
        /// The time it had.
        deadline: Duration,
    },
    /// One vCPU's registers could not be read.
    #[error("vCPU {vcpu} paused, but KVM did not give its registers; the guest runs on unchanged")]
    NoRegisters {
        /// Which one.
        vcpu: u16,
    },
}

/// All vCPUs are out of the guest and consistent while this lives.
#[derive(Debug)]
pub struct Quiesced<'m> {
    holders: &'m Holders,
    memory: Memory,
    full: Vec<FullRegisters>,
    registers: Vec<VcpuRegisters>,
    requested: Instant,
    /// The page that was accessed last: most accesses go to neighbours, and walking the guest's
    /// tables takes longer than the access.
    page: Cell<Option<Page>>,
    /// Whether this guard is the one that paused the guest, and so the one to be measured.
    measured: bool,
}

impl<'m> Quiesced<'m> {
    pub(crate) fn hold(
        holders: &'m Holders,
        memory: Memory,
        patience: Duration,
    ) -> Result<Self, QuiesceError> {
        let requested = Instant::now();
        let measured = !holders.is_held();
        let full = holders.hold(patience)?;
        let registers = full.iter().map(VcpuRegisters::from).collect();
        Ok(Self {
            holders,
            memory,
            full,
            registers,
            requested,
            page: Cell::new(None),
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
        self.requested
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
        self.page.set(None);
        let index = usize::from(vcpu);
        if let Some(now) = handle.registers() {
            if let Some(full) = self.full.get_mut(index) {
                *full = now;
            }
            if let Some(registers) = self.registers.get_mut(index) {
                *registers = VcpuRegisters::from(&now);
            }
        }
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

    /// The page tables in force on the first vCPU that has any.
    fn root(&self) -> Option<PageTableRoot> {
        let online = self.registers.iter().filter(|vcpu| vcpu.online);
        online
            .filter_map(|vcpu| PageTableRoot::of(vcpu).ok())
            .next()
    }

    fn pieces(&self, at: Gva, length: usize) -> Result<Vec<Piece>, MemoryError> {
        pieces(at, length, |here| self.locate(here, length))
    }

    /// The physical address of a byte and how many bytes follow it in its page.
    fn locate(&self, at: Gva, length: usize) -> Result<(Gpa, u64), MemoryError> {
        if let Some(found) = self.page.get().and_then(|page| page.locate(at)) {
            return Ok(found);
        }
        let not_mapped = || MemoryError::NotMapped {
            address: at,
            length,
        };
        let root = self.root().ok_or_else(not_mapped)?;
        let translate = |root| paging::translate(&self.memory, root, at);
        // The vCPU may have been stopped in ring 3 with tables that leave the kernel out.
        let found = translate(root).or_else(|error| {
            let kernel = root.kernel_half().ok_or(error)?;
            translate(kernel)
        });
        let found = found.map_err(|_| not_mapped())?;
        self.page.set(Some(Page {
            start: Gva(at.0 & !(found.page_size - 1)),
            physical: Gpa(found.physical.0 & !(found.page_size - 1)),
            bytes: found.page_size,
        }));
        Ok((found.physical, found.bytes_left_in_page()))
    }

    /// The physical address of bytes that lie in one page, the usual case; `None` for others.
    fn in_one_page(&self, at: Gva, length: usize) -> Result<Option<Gpa>, MemoryError> {
        let (physical, left) = self.locate(at, length)?;
        let fits = usize::try_from(left).is_ok_and(|left| length <= left);
        Ok(fits.then_some(physical))
    }
}

/// A page of the guest and where it lies in physical memory.
#[derive(Debug, Clone, Copy)]
struct Page {
    start: Gva,
    physical: Gpa,
    bytes: u64,
}

impl Page {
    fn locate(self, at: Gva) -> Option<(Gpa, u64)> {
        let offset = at.0.wrapping_sub(self.start.0);
        (offset < self.bytes).then(|| (Gpa(self.physical.0 + offset), self.bytes - offset))
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

    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        // What is written may be a page table.
        self.page.set(None);
        self.memory.write_physical(at, bytes)
    }
}

impl TargetMemory for Quiesced<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        match self.in_one_page(at, into.len())? {
            Some(physical) => self.memory.read_physical(physical, into),
            None => read_pieces(&self.memory, &self.pieces(at, into.len())?, into),
        }
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        if let Some(physical) = self.in_one_page(at, bytes.len())? {
            return self.memory.write_physical(physical, bytes);
        }
        let pieces = self.pieces(at, bytes.len())?;
        write_pieces(&mut self.memory, &pieces, bytes)
    }
}

impl StoppedTarget for Quiesced<'_> {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &self.registers
    }
}
