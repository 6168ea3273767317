//! Which memory a kernel can write outside of some stretches of its address space.

use std::collections::BTreeSet;

use image::TextRange;
use terms::addr::{Gpa, Gva};
use terms::region::{Region, joined};

use super::{ADDRESS_MASK, PageTableRoot, bits};
use crate::target::{MemoryError, PhysicalMemory};

/// Tables that are read in one walk, at most: those of 32 GiB of small pages.
const TABLES_MAX: usize = 1 << 14;
/// Stretches of memory that are found, at most.
const REGIONS_MAX: usize = 1 << 20;

/// Why it is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A table is not there.
    #[error("a page table of the guest's: {0}")]
    Memory(#[from] MemoryError),
    /// There is no end to them.
    #[error(
        "the guest has more than {TABLES_MAX} page tables, or they map more than {REGIONS_MAX} pieces of memory"
    )]
    Endless,
}

/// The memory that the upper half of the address space maps outside of `except` such that it can be written: sorted, without
/// overlap.
///
/// # Errors
/// A [`WalkError`] when a table cannot be read, or there is no end to what they map.
pub fn writable_outside(
    memory: &(impl PhysicalMemory + ?Sized),
    root: PageTableRoot,
    except: &[TextRange],
) -> Result<Vec<Region>, WalkError> {
    let mut walk = Walk {
        memory,
        except,
        seen: BTreeSet::new(),
        read: 0,
        found: Vec::new(),
    };
    walk.table(root.table, root.levels, upper_half(root))?;
    Ok(joined(walk.found))
}

/// Where the upper half of the address space begins: all bits from the highest one that is translated on are set.
const fn upper_half(root: PageTableRoot) -> Gva {
    Gva(u64::MAX << (11 + 9 * root.levels as u32))
}

/// What an entry of each level has to allow.
const WRITABLE: u64 = bits::PRESENT | bits::WRITE;

struct Walk<'a, M: ?Sized> {
    memory: &'a M,
    except: &'a [TextRange],
    /// Tables all of which was looked at. One that maps several stretches, as some do, is read once.
    seen: BTreeSet<(Gpa, u8)>,
    /// How many tables were read.
    read: usize,
    found: Vec<Region>,
}

impl<M: PhysicalMemory + ?Sized> Walk<'_, M> {
    /// Looks at the entries of the table at `table`, the first of which, or the first one of its upper half, is that of `start`.
    fn table(&mut self, table: Gpa, level: u8, start: Gva) -> Result<(), WalkError> {
        let shift = 3 + 9 * u32::from(level);
        let all = stretch(start, 512 << shift);
        let is_whole = self.except.iter().all(|one| one.common(all).is_none());
        if is_whole && !self.seen.insert((table, level)) {
            return Ok(());
        }
        self.read += 1;
        if self.read > TABLES_MAX {
            return Err(WalkError::Endless);
        }
        let mut bytes = vec![0; 4096];
        self.memory.read_physical(table, &mut bytes)?;
        let first = start.0 >> shift & 0x1ff;
        let entries = bytes.as_chunks::<8>().0.iter();
        let entries = entries.map(|entry| u64::from_le_bytes(*entry));
        for (index, entry) in (0..).zip(entries).skip(usize::try_from(first).unwrap_or(0)) {
            let at = start.wrapping_add((index - first) << shift);
            let here = stretch(at, 1 << shift);
            let is_excepted = self.except.iter().any(|one| one.common(here) == Some(here));
            if entry & WRITABLE == WRITABLE && !is_excepted {
                self.entry(entry, level, at, 1 << shift)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: u64, level: u8, at: Gva, bytes: u64) -> Result<(), WalkError> {
        let is_page = level == 1 || (level <= 3 && entry & bits::LARGE != 0);
        let to = entry & ADDRESS_MASK;
        if !is_page {
            return self.table(Gpa(to), level - 1, at);
        }
        let start = to & !(bytes - 1);
        if let Some(last) = self.found.last_mut()
            && last.end() == start
        {
            last.bytes += bytes;
            return Ok(());
        }
        if self.found.len() == REGIONS_MAX {
            return Err(WalkError::Endless);
        }
        self.found.push(Region {
            start: Gpa(start),
            bytes,
        });
        Ok(())
    }
}

const fn stretch(start: Gva, bytes: u64) -> TextRange {
    TextRange {
        start,
        end: Gva(start.0.saturating_add(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{MockTarget, Rights};
    use crate::paging::{PAGE_1G, PAGE_2M, PAGE_4K};

    const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
    const ELSEWHERE: u64 = 0xffff_c900_0000_0000;
    const NONE: [u64; 0] = [];

    fn rights(write: bool) -> Rights {
        Rights {
            user: false,
            write,
            execute: true,
        }
    }

    fn found(
        target: &MockTarget,
        except: &[(u64, u64)],
        pages: &[u64],
    ) -> Result<Vec<u64>, WalkError> {
        let except: Vec<TextRange> = except
            .iter()
            .map(|(start, bytes)| stretch(Gva(*start), *bytes))
            .collect();
        let found = writable_outside(target, target.root(), &except)?;
        let is_found = |at: &&u64| found.iter().any(|part| part.holds(Gpa(**at), PAGE_4K));
        Ok(pages.iter().filter(is_found).copied().collect())
    }

    #[test]
    fn pages_of_all_sizes_are_found_where_they_can_be_written() {
        let mut target = MockTarget::new(1, 64 << 20);
        let mut map = |at: u64, to: u64, size, write| {
            target.map(Gva(at), Gpa(to), size, rights(write)).unwrap();
        };
        map(DIRECT_MAP, 0, PAGE_1G, true);
        map(ELSEWHERE, 0x400_0000, PAGE_4K, true);
        map(ELSEWHERE + PAGE_4K, 0x400_1000, PAGE_4K, false);
        map(ELSEWHERE + PAGE_2M, 0x500_0000, PAGE_2M, true);
        // The lower half is that of programs.
        map(0x40_0000, 0x400_2000, PAGE_4K, true);
        let pages = [0x400_0000, 0x400_1000, 0x400_2000, 0x51f_f000, 0x520_0000];
        assert_eq!(found(&target, &[], &pages).unwrap(), pages);
        let direct_map = (DIRECT_MAP, PAGE_1G);
        let writable = [0x400_0000, 0x51f_f000];
        assert_eq!(found(&target, &[direct_map], &pages).unwrap(), writable);
        // A part of a page is not excepted, nor is what begins where a stretch ends.
        let part = (DIRECT_MAP, PAGE_1G - PAGE_4K);
        assert_eq!(found(&target, &[part], &pages).unwrap(), pages);
        let both = [direct_map, (ELSEWHERE, PAGE_2M)];
        assert_eq!(found(&target, &both, &pages).unwrap(), [0x51f_f000]);
        let entry = target.entry(Gva(ELSEWHERE), 3).unwrap();
        let value = target.read_word(entry).unwrap();
        target.write_word(entry, value & !bits::WRITE).unwrap();
        assert_eq!(found(&target, &[direct_map], &pages).unwrap(), NONE);
    }

    #[test]
    fn a_table_that_is_excepted_in_one_place_is_looked_at_in_another() {
        let mut target = MockTarget::new(1, 64 << 20);
        let at = Gva(DIRECT_MAP);
        target
            .map(at, Gpa(0x400_0000), PAGE_4K, rights(true))
            .unwrap();
        let entry = target.entry(at, 2).unwrap();
        let table = target.read_word(entry).unwrap();
        let except = [(DIRECT_MAP, PAGE_4K)];
        assert_eq!(found(&target, &except, &[0x400_0000]).unwrap(), NONE);
        let other = target.entry(Gva(ELSEWHERE), 2).unwrap();
        target.write_word(other, table).unwrap();
        assert_eq!(
            found(&target, &except, &[0x400_0000]).unwrap(),
            [0x400_0000]
        );
    }

    #[test]
    fn tables_that_lead_into_each_other_end_and_those_outside_of_memory_are_said() {
        let mut target = MockTarget::new(1, 64 << 20);
        let page = 0x400_0000;
        target
            .map(Gva(ELSEWHERE), Gpa(page), PAGE_4K, rights(true))
            .unwrap();
        let entry = target.entry(Gva(ELSEWHERE), 2).unwrap();
        // Every entry of a directory leads to the same table: it is read once.
        let value = target.read_word(entry).unwrap();
        for index in 0..512 {
            let at = Gpa((entry.0 & !0xfff) + 8 * index);
            target.write_word(at, value).unwrap();
        }
        assert_eq!(found(&target, &[], &[page]).unwrap(), [page]);
        // And no two lead to the same.
        let directories = target.entry(Gva(ELSEWHERE), 3).unwrap();
        for index in 1..64 {
            let directory = 0x100_0000 + index * PAGE_4K;
            let at = Gva(ELSEWHERE + index * PAGE_1G);
            let entry = target.entry(at, 3).unwrap();
            target.write_word(entry, directory | WRITABLE).unwrap();
            for table in 0..512 {
                let at = Gpa(directory + 8 * table);
                let table = 0x200_0000 + (512 * index + table) * PAGE_4K;
                target.write_word(at, table | WRITABLE).unwrap();
            }
        }
        assert_eq!(found(&target, &[], &[page]), Err(WalkError::Endless));
        target
            .write_word(directories, 0x7fff_f000_0000 | WRITABLE)
            .unwrap();
        assert!(matches!(
            found(&target, &[], &[page]),
            Err(WalkError::Memory(_))
        ));
    }
}
