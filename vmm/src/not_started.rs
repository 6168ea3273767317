//! The machine before its first vCPU has run: the kernel is loaded, nothing executes.
//!
//! There are no page tables of the kernel's own yet, so its virtual addresses are taken through
//! the program headers of its file.

use terms::addr::{Gpa, Gva};
use terms::region::Region;
use tracer::target::{
    MemoryError, NotProvided, PhysicalMemory, StoppedTarget, TargetMemory, TextMemory,
    VcpuRegisters, WindowMemory,
};

use crate::loader::ElfLayout;
use crate::memory::Ram;
use crate::scatter::{Piece, pieces, read_pieces, write_pieces};

/// Access to the loaded kernel before any vCPU has run.
#[derive(Debug)]
pub struct NotYetStarted<'m> {
    ram: &'m Ram,
    layout: &'m ElfLayout,
}

impl<'m> NotYetStarted<'m> {
    pub(crate) fn new(ram: &'m Ram, layout: &'m ElfLayout) -> Self {
        Self { ram, layout }
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
        self.ram.read(at, into)
    }
}

impl WindowMemory for NotYetStarted<'_> {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ram.memory().clone().write_window(at, bytes)
    }
}

impl TargetMemory for NotYetStarted<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        read_pieces(self.ram.memory(), &self.pieces(at, into.len())?, into)
    }
}

impl TextMemory for NotYetStarted<'_> {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ram.write(at, bytes)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        let pieces = self.pieces(at, bytes.len())?;
        write_pieces(self.ram, &pieces, bytes)
    }
}

impl StoppedTarget for NotYetStarted<'_> {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &[]
    }

    fn ram(&self) -> Vec<Region> {
        self.ram.memory().ram()
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
