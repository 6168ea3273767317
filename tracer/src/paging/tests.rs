use std::cell::Cell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::mock::{MockTarget, Rights};
use crate::target::StoppedTarget;

/// 2 MiB slots near the end of the address space, over two gibibytes.
const BASE: u64 = 0xffff_ffff_0000_0000;
const SLOTS: u64 = 1024;

#[derive(Debug, Clone, Copy)]
struct Mapping {
    at: u64,
    to: u64,
    size: u64,
    rights: Rights,
}

impl Mapping {
    fn holds(&self, at: Gva) -> bool {
        at.0.wrapping_sub(self.at) < self.size
    }
}

/// Each 2 MiB slot is free, one large page, or has some small ones; one gibibyte may be one page.
fn mappings() -> impl Strategy<Value = Vec<Mapping>> {
    let rights =
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(user, write, execute)| Rights {
            user,
            write,
            execute,
        });
    let size = prop_oneof![
        8 => Just(PAGE_4K), 6 => Just(PAGE_2M), 1 => Just(PAGE_1G),
    ];
    let one = (0..SLOTS, 0..512u64, 0..32u64, size, rights).prop_map(
        |(slot, page, frame, size, rights)| {
            let at = BASE + slot * PAGE_2M + page * PAGE_4K;
            Mapping {
                at: at & !(size - 1),
                to: frame * size,
                size,
                rights,
            }
        },
    );
    prop::collection::vec(one, 0..40).prop_map(|all| {
        // Mappings do not overlap: the larger ones win.
        let mut kept: Vec<Mapping> = Vec::new();
        let mut all = all;
        all.sort_by_key(|one| std::cmp::Reverse(one.size));
        for one in all {
            if !kept.iter().any(|other| other.holds(Gva(one.at))) {
                kept.push(one);
            }
        }
        kept
    })
}

fn machine(mappings: &[Mapping]) -> MockTarget {
    let mut target = MockTarget::new(1, 0);
    for one in mappings {
        target
            .map(Gva(one.at), Gpa(one.to), one.size, one.rights)
            .unwrap();
    }
    target
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn translates_as_mapped(
        mappings in mappings(),
        probes in prop::collection::vec((0..40usize, any::<u64>(), any::<bool>()), 40),
    ) {
        let target = machine(&mappings);
        let root = PageTableRoot::of(&target.vcpus()[0]).unwrap();
        prop_assert_eq!(root, target.root());
        for (number, offset, is_inside) in probes {
            let at = match mappings.get(number) {
                Some(one) if is_inside => Gva(one.at + offset % one.size),
                _ => Gva(BASE + offset % (SLOTS * PAGE_2M)),
            };
            let expected = mappings.iter().find(|one| one.holds(at));
            match (translate(&target, root, at), expected) {
                (Ok(seen), Some(one)) => {
                    prop_assert_eq!(seen.physical, Gpa(one.to + (at.0 - one.at)));
                    prop_assert_eq!(seen.page_size, one.size);
                    prop_assert_eq!(seen.bytes_left_in_page(), one.size - (at.0 - one.at));
                    prop_assert_eq!(
                        (seen.user, seen.writable, seen.executable),
                        (one.rights.user, one.rights.write, one.rights.execute)
                    );
                }
                (Err(TranslateError::NotPresent { at: where_at, .. }), None) => {
                    prop_assert_eq!(where_at, at);
                }
                (found, expected) => prop_assert!(false, "{found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn a_slot_is_free_when_its_directory_is_there_and_it_maps_nothing(
        mappings in mappings(), from in 0..SLOTS, length in 0..SLOTS,
    ) {
        let target = machine(&mappings);
        // Directories exist where something smaller than a gibibyte is mapped.
        let mut directories: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for one in mappings.iter().filter(|one| one.size < PAGE_1G) {
            directories.entry(one.at >> 30).or_default().push(one.at & !(PAGE_2M - 1));
        }
        let (from, to) = (BASE + from * PAGE_2M - 1, BASE + (from + length).min(SLOTS) * PAGE_2M);
        let expected: Vec<Gva> = (0..SLOTS)
            .map(|slot| BASE + slot * PAGE_2M)
            .filter(|at| *at >= from && at + PAGE_2M <= to)
            .filter(|at| directories.get(&(at >> 30)).is_some_and(|used| !used.contains(at)))
            .map(Gva)
            .collect();
        let found = free_slots(&target, target.root(), range(from, to), true).unwrap();
        prop_assert_eq!(found.iter().map(|slot| slot.address).collect::<Vec<_>>(), expected);
        let mut target = target;
        for slot in found {
            let value = large_page_entry(Gpa(0x20_0000), true, PageUse::Data, target.root());
            target.write_word(slot.entry, value).unwrap();
            let seen = translate(&target, target.root(), slot.address).unwrap();
            prop_assert_eq!(seen.physical, Gpa(0x20_0000));
            prop_assert_eq!((seen.user, seen.writable, seen.executable), (true, true, false));
        }
    }
}

fn range(start: u64, end: u64) -> TextRange {
    TextRange {
        start: Gva(start),
        end: Gva(end),
    }
}

#[test]
fn no_page_of_ours_can_be_written_and_executed() {
    use bits::{ACCESSED, DIRTY, LARGE, NO_EXECUTE, PRESENT, USER, WRITE};
    let root = MockTarget::new(1, 0).root();
    let base = 0x20_0000 | PRESENT | ACCESSED | LARGE;
    for (user, bit) in [(true, USER), (false, 0)] {
        let entry = |page_use| large_page_entry(Gpa(0x20_0000), user, page_use, root);
        assert_eq!(entry(PageUse::Code), base | bit);
        assert_eq!(
            entry(PageUse::Data),
            base | bit | WRITE | DIRTY | NO_EXECUTE
        );
    }
    // Where the bit is reserved, it is not set.
    let root = PageTableRoot {
        no_execute: false,
        ..root
    };
    let data = large_page_entry(Gpa(0x20_0000), false, PageUse::Data, root);
    assert_eq!(data, base | WRITE | DIRTY);
}

#[test]
fn the_entry_for_an_address_is_the_one_that_maps_it() {
    let mut target = MockTarget::new(1, 0);
    let rights = Rights::ALL;
    target
        .map(Gva(BASE), Gpa(0x20_0000), PAGE_2M, rights)
        .unwrap();
    let root = target.root();
    let large = target.entry(Gva(BASE), 2).unwrap();
    assert_eq!(entry_for(&target, root, Gva(BASE + 5), 2), Ok(Some(large)));
    assert_eq!(entry_for(&target, root, Gva(BASE), 1), Ok(None));
    let free = target.entry(Gva(BASE + PAGE_2M), 2).unwrap();
    assert_eq!(
        entry_for(&target, root, Gva(BASE + PAGE_2M), 2),
        Ok(Some(free))
    );
    let missing = entry_for(&target, root, Gva(BASE + PAGE_2M), 1);
    assert!(
        matches!(missing, Err(TranslateError::NotPresent { level: 2, .. })),
        "{missing:?}"
    );
}

/// Physical memory in which every read finds another word.
struct Garbage {
    words: Vec<u64>,
    reads: Cell<usize>,
    end: u64,
}

impl PhysicalMemory for Garbage {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let reads = self.reads.get();
        self.reads.set(reads + 1);
        if at.0 >= self.end {
            return Err(MemoryError::NotMemory {
                address: at,
                length: into.len(),
            });
        }
        into.copy_from_slice(&self.words[reads % self.words.len()].to_le_bytes());
        Ok(())
    }
}

proptest! {
    #[test]
    fn garbage_neither_panics_nor_loops(
        words in prop::collection::vec(
            prop_oneof![any::<u64>(), any::<u64>().prop_map(|word| word | 7), Just(0), Just(!0)], 1..20),
        at in prop_oneof![any::<u64>(), any::<u64>().prop_map(|at| at | 0xffff_8000_0000_0000)],
        end in prop_oneof![Just(u64::MAX), any::<u64>()],
        cr3 in any::<u64>(),
        la57 in any::<bool>(),
        span in 0..1u64 << 31,
    ) {
        let memory = Garbage { words, reads: Cell::new(0), end };
        let registers = VcpuRegisters {
            cr0: CR0_PG,
            cr3,
            cr4: if la57 { CR4_LA57 } else { 0 },
            efer: EFER_LMA,
            ..VcpuRegisters::default()
        };
        let root = PageTableRoot::of(&registers).unwrap();
        if let Ok(seen) = translate(&memory, root, Gva(at)) {
            prop_assert!(seen.physical.0 < 1 << 52);
            prop_assert!(seen.bytes_left_in_page() <= seen.page_size);
        }
        prop_assert!(memory.reads.get() <= 5);
        memory.reads.set(0);
        let _ = free_slots(&memory, root, range(at, at.saturating_add(span)), true);
        prop_assert!(memory.reads.get() <= 5 * 1025);
    }
}

#[test]
fn tables_that_contain_themselves_end() {
    let mut target = MockTarget::new(1, 0);
    let root = target.root();
    for index in 0..512 {
        let entry = Gpa(root.table.0 + 8 * index);
        target.write_word(entry, root.table.0 | 7).unwrap();
    }
    for at in [0, 0x7fff_ffff_ffff, 0xffff_8000_0000_0000, u64::MAX] {
        let seen = translate(&target, root, Gva(at)).unwrap();
        assert_eq!(seen.physical, Gpa(root.table.0 | at & 0xfff));
    }
    let slots = free_slots(&target, root, range(BASE, u64::MAX), true).unwrap();
    assert_eq!(slots, []);
}

#[test]
fn the_ends_of_the_address_space_are_no_overflow() {
    let target = MockTarget::new(1, 0);
    let root = target.root();
    let search = |from, to| free_slots(&target, root, range(from, to), false);
    assert_eq!(search(u64::MAX, u64::MAX), Ok(Vec::new()));
    assert_eq!(search(u64::MAX - PAGE_2M, u64::MAX), Ok(Vec::new()));
    assert_eq!(search(BASE, BASE - 1), Ok(Vec::new()));
    let middle = 0x8000_0000_0000;
    assert_eq!(
        search(middle, middle + PAGE_2M),
        Err(TranslateError::NotCanonical(Gva(middle)))
    );
}

#[test]
fn says_that_long_mode_is_not_on() {
    for (cr0, efer) in [(0, EFER_LMA), (CR0_PG, 0)] {
        let registers = VcpuRegisters {
            cr0,
            efer,
            ..VcpuRegisters::default()
        };
        let error = PageTableRoot::of(&registers).unwrap_err();
        assert_eq!(error, TranslateError::NoLongMode { cr0, efer });
    }
}
