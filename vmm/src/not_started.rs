//! The machine before its first vCPU has run: the kernel is loaded, nothing executes.
//!
//! There are no page tables of the kernel's own yet, so its virtual addresses are taken through
//! the program headers of its file.

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::target::{
    MemoryError, NotProvided, PhysicalMemory, StoppedTarget, TargetMemory, VcpuRegisters,
};

use crate::loader::ElfLayout;
use crate::memory::Memory;
use crate::scatter::{Piece, pieces, read_pieces, write_pieces};

/// Access to the loaded kernel before any vCPU has run.
#[derive(Debug)]
pub struct NotYetStarted<'m> {
    memory: &'m mut Memory,
    layout: &'m ElfLayout,
}

impl<'m> NotYetStarted<'m> {
    pub(crate) fn new(memory: &'m mut Memory, layout: &'m ElfLayout) -> Self {
        Self { memory, layout }
    }

    fn pieces(&self, at: Gva, length: usize) -> Result<Vec<Piece>, MemoryError> {
        pieces(at, length, |here| {
            self.layout.locate(here).ok_or(MemoryError::NotMapped {
                address: here,
                length,
            })
        })
    }
}

impl PhysicalMemory for NotYetStarted<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }

    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write_physical(at, bytes)
    }
}

impl TargetMemory for NotYetStarted<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        read_pieces(self.memory, &self.pieces(at, into.len())?, into)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        let pieces = self.pieces(at, bytes.len())?;
        write_pieces(self.memory, &pieces, bytes)
    }
}

impl StoppedTarget for NotYetStarted<'_> {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &[]
    }

    fn ram(&self) -> Vec<Region> {
        self.memory.ram()
    }

    /// Nothing is mapped yet.
    fn has_gigabyte_pages(&self) -> bool {
        false
    }

    /// No page tables could show it.
    fn provide(&mut self, part: Region) -> Result<(), NotProvided> {
        Err(NotProvided {
            at: part.start,
            bytes: part.bytes,
            why: "no vCPU has run yet".to_owned(),
        })
    }
}
