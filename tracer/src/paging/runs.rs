//! Everything that page tables map in some stretch of address space, as runs: the other direction than that of a
//! translation. Each table is read once and whole, for whoever reads the guest's memory from another process pays by
//! the call.

use image::Segment;
use terms::addr::{Gpa, Gva};

use super::{
    ADDRESS_MASK, PAGE_1G, PAGE_2M, PAGE_4K, PageTableRoot, TranslateError, bits, descend,
};
use crate::target::PhysicalMemory;

/// More runs than that in a stretch are none that a kernel makes.
pub const RUNS_MAX: usize = 4096;

/// The runs that are mapped in the GiB that `at` lies in, ascending: each in one piece in both kinds of addresses, with
/// the same rights. The first [`RUNS_MAX`] of them. A table that cannot be read maps nothing.
///
/// # Errors
/// A [`TranslateError`] when the tables do not reach down to that GiB.
pub fn mapped_in_gigabyte(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    at: Gva,
) -> Result<Vec<Segment>, TranslateError> {
    let start = Gva(at.0 & !(PAGE_1G - 1));
    let (level, step) = descend(memory, root, start, 3)?;
    if step.value & bits::PRESENT == 0 {
        let entry = step.entry;
        return Err(TranslateError::NotPresent {
            at: start,
            level,
            entry,
        });
    }
    let above = Rights {
        write: step.writable,
        execute: step.executable,
    };
    let mut runs = Runs(Vec::new());
    if step.value & bits::LARGE != 0 {
        runs.add(start, step.value, PAGE_1G, above);
        return Ok(runs.0);
    }
    for (index, value) in (0..).zip(table(memory, step.value)) {
        if value & bits::PRESENT == 0 {
            continue;
        }
        let here = start.wrapping_add(index * PAGE_2M);
        let rights = above.and(value, root);
        if value & bits::LARGE != 0 {
            runs.add(here, value, PAGE_2M, rights);
            continue;
        }
        for (index, value) in (0..).zip(table(memory, value)) {
            if value & bits::PRESENT != 0 {
                let here = here.wrapping_add(index * PAGE_4K);
                runs.add(here, value, PAGE_4K, rights.and(value, root));
            }
        }
    }
    Ok(runs.0)
}

/// The runs of `runs`, ascending, that are next to the one with `at`, with no more than `gap` between.
#[must_use]
pub fn around(runs: &[Segment], at: Gva, gap: u64) -> Vec<Segment> {
    let end = |run: &Segment| run.vaddr.0.saturating_add(run.memsz);
    let Some(own) = runs.iter().position(|run| run.locate(at).is_some()) else {
        return Vec::new();
    };
    let is_near = |(one, next): &(&Segment, &Segment)| next.vaddr.0.saturating_sub(end(one)) <= gap;
    let pairs = || runs.iter().zip(runs.iter().skip(1));
    let after = pairs().skip(own).take_while(is_near).count();
    let before = pairs().take(own).rev().take_while(is_near).count();
    let near = runs.get(own.saturating_sub(before)..=own.saturating_add(after));
    near.unwrap_or_default().to_vec()
}

/// What all levels allow.
#[derive(Debug, Clone, Copy)]
struct Rights {
    write: bool,
    execute: bool,
}

impl Rights {
    fn and(self, entry: u64, root: PageTableRoot) -> Self {
        Self {
            write: self.write && entry & bits::WRITE != 0,
            execute: self.execute && !(root.no_execute && entry & bits::NO_EXECUTE != 0),
        }
    }
}

/// The entries of the table that `entry` leads to; none when it cannot be read.
fn table(memory: &(impl PhysicalMemory + ?Sized), entry: u64) -> Vec<u64> {
    let mut bytes = vec![0; 4096];
    match memory.read_physical(Gpa(entry & ADDRESS_MASK), &mut bytes) {
        Ok(()) => bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|one| u64::from_le_bytes(*one))
            .collect(),
        Err(_) => Vec::new(),
    }
}

struct Runs(Vec<Segment>);

impl Runs {
    fn add(&mut self, at: Gva, entry: u64, bytes: u64, rights: Rights) {
        let physical = entry & ADDRESS_MASK & !(bytes - 1);
        if let Some(last) = self.0.last_mut() {
            let is_next = last.vaddr.0.wrapping_add(last.memsz) == at.0
                && last.paddr.0.wrapping_add(last.memsz) == physical
                && (last.write, last.execute) == (rights.write, rights.execute);
            if is_next {
                last.memsz += bytes;
                return;
            }
        }
        if self.0.len() < RUNS_MAX {
            self.0.push(Segment {
                vaddr: at,
                paddr: Gpa(physical),
                filesz: 0,
                memsz: bytes,
                read: true,
                write: rights.write,
                execute: rights.execute,
            });
        }
    }
}
