//! A guest that makes up where its kernel is: page tables, and the list of its function sites.

use std::cell::Cell;

use image::TextRange;
use terms::addr::{Gpa, Gva};
use tracer::PageTableRoot;
use tracer::linux::in_memory::sites::{SitesLayout, listed};
use tracer::paging::runs::{RUNS_MAX, around, mapped_in_gigabyte};
use tracer::target::{MemoryError, PhysicalMemory};

use super::guest_memory::{BYTES, GuestMemory, image};

const TEXT: TextRange = TextRange {
    start: Gva(0xffff_ffff_8100_0000),
    end: Gva(0xffff_ffff_8200_0000),
};
const START: Gva = Gva(0xffff_ffff_8300_f000);
const PAGE: u64 = 0xffff_ffff_8300_1000;
const GIGABYTE: u64 = 1 << 30;
/// A topmost table, two below it, and one for each entry of the last.
const TABLES_MAX: u64 = 2 + 1 + 512;
/// Four words of each page, and what its entries are read in.
const LIST_MAX: u64 = 1 << 17;

/// Memory of which every byte is the input's, found again and again.
struct Tables<'a> {
    bytes: &'a [u8],
    reads: Cell<u64>,
}

impl PhysicalMemory for Tables<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() <= TABLES_MAX, "a table is read twice");
        for (byte, address) in into.iter_mut().zip(at.0..) {
            if address >> 20 & 0xff == 0xee {
                let length = 1;
                return Err(MemoryError::NotMemory {
                    address: at,
                    length,
                });
            }
            let offset = usize::try_from(address % BYTES).unwrap_or_default();
            *byte = self.bytes.get(offset).copied().unwrap_or_default();
        }
        Ok(())
    }
}

/// Both.
pub fn run(bytes: &[u8]) {
    tables(bytes);
    let memory = GuestMemory::new(bytes, LIST_MAX);
    if let Ok(found) = listed(&memory, SitesLayout::USUAL, START, &[TEXT]) {
        assert!(found.sites.is_sorted_by(|one, next| one < next));
        assert!(found.sites.iter().all(|site| TEXT.holds(*site, 5)));
        assert!(found.sites.len() <= found.entries);
    }
}

fn tables(bytes: &[u8]) {
    let root = PageTableRoot {
        table: Gpa(0),
        levels: 4,
        no_execute: true,
    };
    let memory = Tables {
        bytes,
        reads: Cell::new(0),
    };
    let Ok(runs) = mapped_in_gigabyte(&memory, root, TEXT.start) else {
        return;
    };
    assert!(runs.len() <= RUNS_MAX);
    let first = TEXT.start.0 & !(GIGABYTE - 1);
    let mut end = first;
    for run in &runs {
        assert!(run.vaddr.0 >= end && run.memsz > 0, "runs overlap");
        end = run.vaddr.0 + run.memsz;
        assert!(end <= first + GIGABYTE);
    }
    let near = around(&runs, TEXT.start, 1 << 21);
    assert!(near.is_empty() || near.iter().any(|run| run.locate(TEXT.start).is_some()));
}

/// Tables that map a kernel in pages of both sizes, and a list of two pages with three sites.
pub fn seeds() -> Vec<Vec<u8>> {
    let next = |at: u64| at | 7;
    let text = TEXT.start.0;
    let large = |index: u64| (0x4000 + 8 * index, index << 21 | 0x81);
    let tables = [
        (511 * 8, next(0x3000)),
        (0x3000 + 510 * 8, next(0x4000)),
        large(8),
        large(9),
        (0x4000 + 10 * 8, next(0x5000)),
        (0x5000, 0x140_0001),
        (0x5008, 0x140_1001 | 1 << 63),
        (0x5010, 0x140_2003 | 1 << 63),
    ];
    let list = [
        (START.0, PAGE),
        (PAGE, PAGE + 0x100),
        (PAGE + 8, PAGE + 0x800),
        (PAGE + 16, 2),
        (PAGE + 0x800, text + 0x10),
        (PAGE + 0x810, text + 0x30),
        (PAGE + 0x108, PAGE + 0x900),
        (PAGE + 0x110, 1),
        (PAGE + 0x900, text + 0x20),
    ];
    vec![image(&tables, &[]), image(&list, &[])]
}
