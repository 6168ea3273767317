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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{MockTarget, Rights};

    const AT: Gva = Gva(0xffff_ffff_8100_0000);

    fn rights(write: bool, execute: bool) -> Rights {
        Rights {
            user: false,
            write,
            execute,
        }
    }

    fn runs(target: &MockTarget) -> Vec<(u64, u64, u64, bool, bool)> {
        let runs = mapped_in_gigabyte(target, target.root(), AT).unwrap();
        let one = |run: &Segment| (run.vaddr.0, run.paddr.0, run.memsz, run.write, run.execute);
        runs.iter().map(one).collect()
    }

    #[test]
    fn pages_of_both_sizes_with_the_same_rights_are_one_run() {
        let mut target = MockTarget::new(1, 64 << 20);
        let text = rights(false, true);
        let mut map = |offset: u64, to: u64, size: u64, rights| {
            target
                .map(AT.wrapping_add(offset), Gpa(to), size, rights)
                .unwrap();
        };
        map(0, 0x400_0000, PAGE_2M, text);
        map(PAGE_2M, 0x420_0000, PAGE_4K, text);
        map(PAGE_2M + PAGE_4K, 0x420_1000, PAGE_4K, rights(true, false));
        // Next to it, but somewhere else; and after a hole.
        map(
            PAGE_2M + 2 * PAGE_4K,
            0x500_0000,
            PAGE_4K,
            rights(true, false),
        );
        map(3 * PAGE_2M, 0x500_1000, PAGE_4K, rights(true, false));
        let found = runs(&target);
        assert_eq!(
            found,
            [
                (AT.0, 0x400_0000, PAGE_2M + PAGE_4K, false, true),
                (AT.0 + PAGE_2M + PAGE_4K, 0x420_1000, PAGE_4K, true, false),
                (
                    AT.0 + PAGE_2M + 2 * PAGE_4K,
                    0x500_0000,
                    PAGE_4K,
                    true,
                    false
                ),
                (AT.0 + 3 * PAGE_2M, 0x500_1000, PAGE_4K, true, false),
            ]
        );
        let all = mapped_in_gigabyte(&target, target.root(), AT).unwrap();
        let near = |gap| around(&all, AT.wrapping_add(PAGE_2M), gap).len();
        assert_eq!((near(0), near(2 * PAGE_2M)), (3, 4));
        assert_eq!(around(&all, Gva(0), PAGE_2M), []);
    }

    #[test]
    fn a_page_of_a_gigabyte_is_a_run() {
        let mut target = MockTarget::new(1, 64 << 20);
        let start = Gva(AT.0 & !(PAGE_1G - 1));
        target
            .map(start, Gpa(0), PAGE_1G, rights(true, true))
            .unwrap();
        assert_eq!(runs(&target), [(start.0, 0, PAGE_1G, true, true)]);
    }

    #[test]
    fn tables_outside_of_memory_map_nothing_and_runs_are_bounded() {
        let mut target = MockTarget::new(1, 64 << 20);
        let nothing = mapped_in_gigabyte(&target, target.root(), AT);
        assert!(matches!(nothing, Err(TranslateError::NotPresent { .. })));
        let entry = target.entry(AT, 2).unwrap();
        target
            .write_word(entry, 0x7fff_f000_0000 | bits::PRESENT)
            .unwrap();
        assert_eq!(runs(&target), []);
        // Every page somewhere else than the one before: a table that all entries of the directory lead to.
        let table = 0x300_0000_u64;
        for index in 0..512 {
            let page = (index * 2 % 512 * PAGE_4K) | bits::PRESENT;
            target.write_word(Gpa(table + 8 * index), page).unwrap();
        }
        for number in 0..16 {
            let entry = target.entry(AT.wrapping_add(number * PAGE_2M), 2).unwrap();
            target.write_word(entry, table | bits::PRESENT).unwrap();
        }
        assert_eq!(runs(&target).len(), RUNS_MAX);
    }
}
