//! Windows that are opened, and the one that the guest does something to (`kept.rs`).

mod kept;

use terms::addr::Gva;

use super::*;
use crate::mock::{MockTarget, REGION_START, Rights};
use crate::paging::{PAGE_4K, TranslateError, bits};
use crate::target::{PhysicalMemory, TextMemory};

const TEXT: Gva = Gva(0xffff_ffff_8010_0000);
const RANGE: TextRange = TextRange {
    start: TEXT,
    end: Gva(TEXT.0 + 0x8000),
};

/// Where the guest has something that is no memory.
const DEVICE: Gpa = Gpa(0xfee0_0000);

fn machine(vcpus: u64, rights: Rights) -> MockTarget {
    let mut target = MockTarget::new(vcpus, 16 * PAGE_2M);
    for page in 0..8 {
        let offset = page * PAGE_4K;
        target
            .map(
                Gva(TEXT.0 + offset),
                Gpa(0x100_0000 + offset),
                PAGE_4K,
                rights,
            )
            .unwrap();
    }
    target
}

fn open(target: &mut MockTarget) -> Window {
    open_near(target, RANGE).unwrap()
}

fn open_near(target: &mut MockTarget, near: impl Into<Places>) -> Result<Window, WindowError> {
    let region = target.region();
    Window::open(target, region, near)
}

/// The entry that shows `at`.
fn entry(target: &mut MockTarget, at: Gva) -> Gpa {
    target.entry(at, 2).unwrap()
}

#[test]
fn shows_the_region_near_the_text_with_the_rights_asked_for() {
    for user in [false, true] {
        let mut target = machine(
            2,
            Rights {
                user,
                ..Rights::ALL
            },
        );
        let mut window = open(&mut target);
        assert_eq!(window.is_user(), user);
        let code = window.map(&mut target, 1, PageUse::Code).unwrap();
        let data = window.map(&mut target, PAGE_2M + 1, PageUse::Data).unwrap();
        assert_eq!((code.bytes, data.bytes), (PAGE_2M, 2 * PAGE_2M));
        assert_eq!(code.physical, REGION_START);
        assert_eq!(data.physical, Gpa(REGION_START.0 + PAGE_2M));
        let provided = [code, data].map(|extent| Region {
            start: extent.physical,
            bytes: extent.bytes,
        });
        let title = Region {
            start: REGION_START.wrapping_add(15 * PAGE_2M),
            bytes: PAGE_2M,
        };
        assert_eq!(target.provided, [&[title], &provided[..]].concat());
        for (extent, executable) in [(code, true), (data, false)] {
            assert!(extent.at.0.abs_diff(TEXT.0) + extent.bytes < REACH);
            for offset in [0, PAGE_2M - 1, extent.bytes - 1] {
                let seen =
                    translate(&target, target.root(), extent.at.wrapping_add(offset)).unwrap();
                assert_eq!(seen.physical, extent.physical.wrapping_add(offset));
                assert_eq!(
                    (seen.user, seen.writable, seen.executable),
                    (user, !executable, executable)
                );
            }
        }
    }
}

#[test]
fn puts_back_what_the_guest_cleared_and_notices_what_it_took() {
    let mut target = machine(2, Rights::ALL);
    let mut window = open(&mut target);
    let extent = window.map(&mut target, 2 * PAGE_2M, PageUse::Data).unwrap();
    let second = entry(&mut target, extent.at.wrapping_add(PAGE_2M));
    let value = target.read_word(second).unwrap();
    target.write_word(second, 0).unwrap();
    window.verify(&mut target).unwrap();
    assert_eq!(target.read_word(second).unwrap(), value);
    let foreign = 0x40_0000 | bits::PRESENT | bits::LARGE;
    target.write_word(second, foreign).unwrap();
    assert_eq!(
        window.verify(&mut target),
        Err(WindowError::Taken {
            at: extent.at.wrapping_add(PAGE_2M),
            entry: second,
            found: foreign
        })
    );
    assert_eq!(target.read_word(second).unwrap(), foreign);
}

#[test]
fn a_vcpu_with_other_tables_is_an_error_and_nothing_stays_shown() {
    let mut target = machine(3, Rights::ALL);
    target.separate(2).unwrap();
    let mut window = open(&mut target);
    let free = |target: &MockTarget| {
        let range = TextRange {
            start: TEXT,
            end: Gva(TEXT.0 + (1 << 29)),
        };
        free_slots(target, target.root(), range, true).unwrap()
    };
    let before = free(&target);
    let error = window.map(&mut target, PAGE_2M, PageUse::Data).unwrap_err();
    assert!(
        matches!(error, WindowError::NotShared { vcpu: 2, .. }),
        "{error}"
    );
    assert_eq!(free(&target), before);
    // Once it has come back to the shared tables, or was never started, there is nothing to say.
    target.vcpus_mut()[2].online = false;
    let extent = window.map(&mut target, PAGE_2M, PageUse::Data).unwrap();
    assert_eq!(extent.physical, REGION_START);
    target.vcpus_mut()[2].online = true;
    let error = window.verify(&mut target).unwrap_err();
    assert_eq!(
        error,
        WindowError::NotShared {
            vcpu: 2,
            at: extent.at
        }
    );
}

#[test]
fn follows_the_guest_to_other_tables_that_share_the_entries() {
    let mut target = machine(1, Rights::ALL);
    let mut window = open(&mut target);
    window.map(&mut target, 1, PageUse::Code).unwrap();
    // Another process: a topmost table of its own with the same upper half; the old one is freed.
    let (old, new) = (target.root().table, Gpa(0xf0_0000));
    let mut table = vec![0; 4096];
    target.read_physical(old, &mut table).unwrap();
    target.write_physical(new, &table).unwrap();
    target.write_physical(old, &[0xff; 4096]).unwrap();
    target.vcpus_mut()[0].cr3 = new.0;
    window.verify(&mut target).unwrap();
    window.map(&mut target, 1, PageUse::Data).unwrap();
}

#[test]
fn two_addresses_in_one_table_are_no_two_slots() {
    let mut target = machine(1, Rights::ALL);
    // The next GiB shows the same page directory once more.
    let next = target.entry(Gva(TEXT.0 + (1 << 30)), 3).unwrap();
    let this = target.entry(TEXT, 3).unwrap();
    let shared = target.read_word(this).unwrap();
    target.write_word(next, shared).unwrap();
    let mut window = open(&mut target);
    let mut seen = Vec::new();
    while let Ok(extent) = window.map(&mut target, PAGE_2M, PageUse::Data) {
        let at = translate(&target, target.root(), extent.at).unwrap();
        assert_eq!(at.physical, extent.physical);
        seen.push(extent.physical);
    }
    assert_eq!(seen.len(), 15, "and the title");
    window.verify(&mut target).unwrap();
}

/// Should that be overlooked when a place is looked for, it is found when the pages are there.
#[test]
fn a_page_that_shows_what_another_should_is_an_error_and_neither_stays() {
    let mut target = machine(1, Rights::ALL);
    let addresses = [TEXT.0 + (4 << 21), TEXT.0 + (4 << 21) + (1 << 30)].map(Gva);
    let [this, next] = addresses.map(|at| target.entry(at, 3).unwrap());
    let shared = target.read_word(this).unwrap();
    target.write_word(next, shared).unwrap();
    let shown = entry(&mut target, addresses[0]);
    assert_eq!(entry(&mut target, addresses[1]), shown);
    let page = |index: usize| {
        let physical = Gpa(REGION_START.0 + index as u64 * PAGE_2M);
        let (address, entry) = (addresses[index], shown);
        entries::Page {
            slot: FreeSlot {
                address,
                entry,
                holds: 0,
            },
            level: 2,
            physical,
            value: physical.0 | bits::PRESENT | bits::WRITE | bits::LARGE,
        }
    };
    let roots = Roots::new(&target, target.vcpus(), TEXT);
    let error = entries::show(&mut target, &roots, &[page(0), page(1)]).unwrap_err();
    let (vcpu, at) = (0, addresses[0]);
    assert_eq!(error, WindowError::NotShared { vcpu, at });
    assert_eq!(target.read_word(shown).unwrap(), 0);
}

/// Fills all tables near the text with pages of 2 MiB that map what is at their numbers, where there was nothing.
fn map_everything(target: &mut MockTarget, first: u64) -> Vec<(Gpa, u64)> {
    let mut entries = Vec::new();
    for number in 0..1024 {
        let at = Gva(0xffff_ffff_8000_0000 + number * PAGE_2M);
        let entry = entry(target, at);
        if target.read_word(entry).unwrap() == 0 {
            target
                .write_word(entry, (first + number * PAGE_2M) | 0x83)
                .unwrap();
        }
        entries.push((entry, target.read_word(entry).unwrap()));
    }
    entries
}

#[test]
fn entries_that_lead_to_no_memory_are_as_good_as_free_and_lead_there_again_afterwards() {
    let rights = Rights {
        user: false,
        ..Rights::ALL
    };
    let mut target = machine(1, rights);
    let entries = map_everything(&mut target, 0);
    let now = |target: &MockTarget| {
        let value = |(entry, _): &(Gpa, u64)| (*entry, target.read_word(*entry).unwrap());
        entries.iter().map(value).collect::<Vec<_>>()
    };
    let ram = target.ram();
    let mut window = open(&mut target);
    let extent = window.map(&mut target, 3 * PAGE_2M, PageUse::Data).unwrap();
    let changed = entries.iter().zip(now(&target));
    let changed: Vec<_> = changed.filter(|(before, after)| *before != after).collect();
    assert_eq!(changed.len(), 3);
    for ((_, before), _) in &changed {
        let led = Region {
            start: Gpa(before & !0xfff),
            bytes: PAGE_2M,
        };
        let is_memory = |piece: &Region| piece.start < Gpa(led.end()) && led.start.0 < piece.end();
        assert!(!ram.iter().any(is_memory), "{before:#x} is memory");
    }
    // The guest has built its tables anew: that is noticed, and ours are there again.
    let (entry, before) = *changed[1].0;
    target.write_word(entry, before | bits::ACCESSED).unwrap();
    window.verify(&mut target).unwrap();
    let seen = translate(&target, target.root(), extent.at.wrapping_add(PAGE_2M)).unwrap();
    assert_eq!(seen.physical, extent.physical.wrapping_add(PAGE_2M));
    window.close(&mut target);
    assert_eq!(now(&target), entries);
}

/// A guest had most of its memory still to come to when it was attached to: it would have found our stubs there.
#[test]
fn entries_that_lead_to_memory_that_nobody_has_touched_are_not_free() {
    let rights = Rights {
        user: false,
        ..Rights::ALL
    };
    let mut target = machine(1, rights);
    map_everything(&mut target, 0);
    let touched = target.touched();
    target.ram = vec![Region {
        start: Gpa(0),
        bytes: 1 << 40,
    }];
    assert_eq!(target.touched(), touched);
    let mut window = open(&mut target);
    let refused = window.map(&mut target, 1, PageUse::Code).unwrap_err();
    assert!(
        matches!(refused, WindowError::NoSlots { free: 0, .. }),
        "{refused}"
    );
}

#[test]
fn entries_that_may_lead_to_devices_are_not_free() {
    for first in [1 << 31, 1 << 40] {
        let rights = Rights {
            user: false,
            ..Rights::ALL
        };
        let mut target = machine(1, rights);
        map_everything(&mut target, first);
        let mut window = open(&mut target);
        let refused = window.map(&mut target, 1, PageUse::Code).unwrap_err();
        assert!(
            matches!(refused, WindowError::NoSlots { free: 0, .. }),
            "{refused}"
        );
    }
}

#[test]
fn text_suits_when_ring_3_may_execute_both_or_neither() {
    let with = |user| {
        let rights = Rights {
            user,
            ..Rights::ALL
        };
        machine(1, rights)
    };
    for (of_window, of_text) in [(false, false), (false, true), (true, false), (true, true)] {
        let (window, target) = (open(&mut with(of_window)), with(of_text));
        let suits = window.suits(&target, target.vcpus(), TEXT);
        assert_eq!(suits, of_window == of_text, "{of_window} {of_text}");
        // What is not mapped says so itself.
        assert!(window.suits(&target, target.vcpus(), Gva(TEXT.0 + PAGE_2M)));
    }
}

#[test]
fn says_when_slots_or_region_run_out() {
    let mut target = machine(1, Rights::ALL);
    let mut window = open(&mut target);
    assert_eq!(
        window.map(&mut target, 17 * PAGE_2M, PageUse::Data),
        Err(WindowError::RegionFull {
            bytes: 17 * PAGE_2M,
            left: 15 * PAGE_2M
        })
    );
    // Every second entry of the directory is taken: no two are in a row.
    for slot in (1..512).step_by(2) {
        let at = Gva(0xffff_ffff_8000_0000 + slot * PAGE_2M);
        target.map(at, DEVICE, PAGE_2M, Rights::ALL).unwrap();
    }
    let error = window
        .map(&mut target, 2 * PAGE_2M, PageUse::Data)
        .unwrap_err();
    assert!(
        matches!(
            error,
            WindowError::NoSlots {
                pages: 2,
                free: 255,
                ..
            }
        ),
        "{error}"
    );
    window.map(&mut target, PAGE_2M, PageUse::Data).unwrap();
}

#[test]
fn an_entry_that_cannot_be_written_leaves_nothing() {
    let mut target = machine(1, Rights::ALL);
    let mut window = open(&mut target);
    let probe = window.map(&mut target, 3 * PAGE_2M, PageUse::Data).unwrap();
    let entries = [0, 1, 2].map(|n| entry(&mut target, probe.at.wrapping_add(n * PAGE_2M)));
    window.close(&mut target);
    assert_eq!(entries.map(|at| target.read_word(at).unwrap()), [0; 3]);
    target.faults.unwritable_physical.insert(entries[1]);
    let mut window = open(&mut target);
    let error = window
        .map(&mut target, 3 * PAGE_2M, PageUse::Data)
        .unwrap_err();
    assert!(
        matches!(error, WindowError::Entry { entry, .. } if entry == entries[1]),
        "{error}"
    );
    assert_eq!(entries.map(|at| target.read_word(at).unwrap()), [0; 3]);
}

#[test]
fn needs_a_running_vcpu_in_long_mode() {
    let mut target = machine(1, Rights::ALL);
    target.vcpus_mut()[0].cr0 = 1;
    let opened = open_near(&mut target, RANGE);
    assert!(matches!(
        opened,
        Err(WindowError::Translate(TranslateError::NoLongMode { .. }))
    ));
    target.vcpus_mut()[0].online = false;
    let opened = open_near(&mut target, RANGE);
    assert!(matches!(opened, Err(WindowError::NoVcpu)));
}

#[test]
fn all_of_the_window_is_within_reach_of_itself() {
    // Only a slot far after the text and slots far before it are free.
    const TEXT: Gva = Gva(0xffff_ffff_0000_0000);
    let range = TextRange {
        start: TEXT,
        end: Gva(TEXT.0 + PAGE_4K),
    };
    let after = Gva(TEXT.0 + (1 << 30) + (1 << 29));
    let before = Gva(TEXT.0 - (1 << 30) - (1 << 29));
    let nearer = Gva(TEXT.0 - (1 << 28));
    let machine = |free: &[Gva]| {
        let mut target = MockTarget::new(1, 16 * PAGE_2M);
        for slot in 0..2048 {
            let at = Gva(TEXT.0 - (2 << 30) + slot * PAGE_2M);
            if !free.contains(&at) {
                target.map(at, DEVICE, PAGE_2M, Rights::ALL).unwrap();
            }
        }
        target
    };
    let mut target = machine(&[after, before]);
    let mut window = open_near(&mut target, range).unwrap();
    assert_eq!(window.map(&mut target, 1, PageUse::Code).unwrap().at, after);
    let error = window.map(&mut target, 1, PageUse::Data).unwrap_err();
    assert!(
        matches!(error, WindowError::NoSlots { free: 0, .. }),
        "{error}"
    );
    let mut target = machine(&[after, before, nearer]);
    let mut window = open_near(&mut target, range).unwrap();
    assert_eq!(window.map(&mut target, 1, PageUse::Code).unwrap().at, after);
    assert_eq!(
        window.map(&mut target, 1, PageUse::Data).unwrap().at,
        nearer
    );
}

/// Gives vCPU 0 a pair of topmost tables as Linux' page-table isolation has them, and stops it in ring 3:
/// the user half maps `entries` of the kernel's.
fn isolate(target: &mut MockTarget, entries: &[u64]) {
    const KERNEL: Gpa = Gpa(0x800_0000);
    let table = target.root().table;
    for index in 0..512 {
        let entry = target.read_word(table.wrapping_add(8 * index)).unwrap();
        target
            .write_word(KERNEL.wrapping_add(8 * index), entry)
            .unwrap();
        if entries.contains(&index) {
            let user = KERNEL.wrapping_add(PAGE_4K + 8 * index);
            target.write_word(user, entry).unwrap();
        }
    }
    let vcpu = &mut target.vcpus_mut()[0];
    (vcpu.cr3, vcpu.cpl) = (KERNEL.0 + PAGE_4K, 3);
}

#[test]
fn a_vcpu_in_ring_3_with_page_table_isolation_is_seen_with_the_kernel_s_tables() {
    // The user half maps nothing of the kernel, or its text (Linux without PCID).
    for entries in [&[][..], &[511]] {
        let supervisor = Rights {
            user: false,
            ..Rights::ALL
        };
        let mut target = machine(2, supervisor);
        isolate(&mut target, entries);
        let mut window = open(&mut target);
        assert!(!window.is_user());
        let extent = window.map(&mut target, 1, PageUse::Code).unwrap();
        window.verify(&mut target).unwrap();
        let seen = translate(&target, target.root(), extent.at).unwrap();
        assert_eq!(seen.physical, extent.physical, "the other vCPU sees it too");
    }
}

#[test]
fn slots_are_taken_only_where_the_places_are() {
    let mut target = machine(1, Rights::ALL);
    let slot = |number| Gva((TEXT.0 & !(PAGE_2M - 1)) + number * PAGE_2M);
    let pages = [
        (slot(7).0 + 1, slot(9).0),
        (slot(3).0, slot(5).0 + PAGE_2M - 1),
        (slot(20).0, slot(21).0),
    ];
    let places = Places {
        pages: pages
            .map(|(start, end)| TextRange {
                start: Gva(start),
                end: Gva(end),
            })
            .to_vec(),
        ..Places::from(RANGE)
    };
    let mut window = open_near(&mut target, places).unwrap();
    let mut at = |pages| {
        window
            .map(&mut target, pages * PAGE_2M, PageUse::Data)
            .map(|shown| shown.at)
    };
    assert_eq!(
        at(2),
        Ok(slot(3)),
        "the first range has one whole slot only"
    );
    assert_eq!(at(1), Ok(slot(8)));
    assert_eq!(at(1), Ok(slot(20)));
    assert_eq!(
        at(1),
        Err(WindowError::NoSlots {
            pages: 1,
            text: TEXT,
            free: 0
        })
    );
}

/// A kernel that starts has entries that map nothing and hold something, and clears them later.
#[test]
fn entries_that_a_kernel_will_clear_are_used_and_put_back() {
    let mut target = machine(2, Rights::ALL);
    let at = Gva((TEXT.0 & !(PAGE_2M - 1)) + 8 * PAGE_2M);
    let entry = entry(&mut target, at);
    let absent = 0x1_2345_6000 & !bits::PRESENT;
    target.write_physical(entry, &absent.to_le_bytes()).unwrap();
    let places = |others| Places {
        pages: vec![TextRange {
            start: at,
            end: Gva(at.0 + PAGE_2M),
        }],
        others,
        ..Places::from(RANGE)
    };
    for others in [Others::None, Others::Idle] {
        let mut window = open_near(&mut target, places(others)).unwrap();
        let shown = window.map(&mut target, 1, PageUse::Data);
        assert!(
            matches!(shown, Err(WindowError::NoSlots { .. })),
            "{others:?}"
        );
        assert!(!window.is_to_be_cleared());
    }
    let mut window = open_near(&mut target, places(Others::Absent)).unwrap();
    assert!(!window.is_to_be_cleared());
    let shown = window.map(&mut target, 1, PageUse::Data).unwrap();
    assert_eq!(shown.at, at);
    assert!(window.is_to_be_cleared());
    target.write_physical(entry, &[0; 8]).unwrap();
    assert!(!window.is_untouched(&target));
    window.verify(&mut target).unwrap();
    assert!(window.is_untouched(&target));
    window.close(&mut target);
    let mut held = [0; 8];
    target.read_physical(entry, &mut held).unwrap();
    assert_eq!(u64::from_le_bytes(held), absent);
}
