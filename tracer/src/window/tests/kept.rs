//! What stands in a window's entries while the guest runs: they are put back, left alone or missed.

use super::*;
use crate::paging::entry_for;

/// A window with two pages shown, and their entries.
fn two_pages(target: &mut MockTarget) -> (Window, [Gpa; 2]) {
    let mut window = open(target);
    let extent = window.map(target, 2 * PAGE_2M, PageUse::Data).unwrap();
    let entries = [0, 1].map(|n| entry(target, extent.at.wrapping_add(n * PAGE_2M)));
    (window, entries)
}

fn words<const N: usize>(target: &MockTarget, at: [Gpa; N]) -> [u64; N] {
    at.map(|at| target.read_word(at).unwrap())
}

#[test]
fn a_page_that_is_no_page_table_any_more_is_not_written() {
    // The guest builds its tables anew (kexec, say), without the window, and the old ones are its data, with a zero
    // where the window's entry was.
    for follow in [1, 2] {
        let mut target = machine(2, Rights::ALL);
        let (window, [first, second]) = two_pages(&mut target);
        target.write_word(first, 0).unwrap();
        for vcpu in 0..follow {
            target.separate(vcpu).unwrap();
        }
        let before = words(&target, [first, second]);
        let error = window.verify(&mut target).unwrap_err();
        assert!(
            matches!(error, WindowError::NotShared { vcpu: 0, .. }),
            "{error}"
        );
        assert_eq!(words(&target, [first, second]), before);
        assert!(!window.is_untouched(&target));
        // Nor is one written where nobody tells what are page tables.
        target
            .vcpus_mut()
            .iter_mut()
            .for_each(|vcpu| vcpu.online = false);
        assert_eq!(window.verify(&mut target), Err(WindowError::NoVcpu));
        assert_eq!(words(&target, [first, second]), before);
    }
}

#[test]
fn what_cannot_be_put_back_as_a_whole_is_not_put_back() {
    let mut target = machine(1, Rights::ALL);
    let (window, entries) = two_pages(&mut target);
    assert!(window.is_untouched(&target));
    for entry in entries {
        target.write_word(entry, 0).unwrap();
    }
    target.faults.unwritable_physical.insert(entries[1]);
    let error = window.verify(&mut target).unwrap_err();
    assert!(
        matches!(error, WindowError::Entry { entry, .. } if entry == entries[1]),
        "{error}"
    );
    assert_eq!(words(&target, entries), [0; 2]);
    target.faults.unwritable_physical.clear();
    // A foreign entry beside a cleared one: neither is written.
    target.write_word(entries[1], 0x40_0083).unwrap();
    let error = window.verify(&mut target).unwrap_err();
    assert!(
        matches!(error, WindowError::Taken { entry, .. } if entry == entries[1]),
        "{error}"
    );
    assert_eq!(words(&target, entries), [0, 0x40_0083]);
}

#[test]
fn what_the_guest_has_cleared_is_not_given_away() {
    let mut target = machine(1, Rights::ALL);
    let (mut window, entries) = two_pages(&mut target);
    target.write_word(entries[0], 0).unwrap();
    let extent = window.map(&mut target, 1, PageUse::Data).unwrap();
    assert_ne!(entry(&mut target, extent.at), entries[0]);
    window.verify(&mut target).unwrap();
    assert!(window.is_untouched(&target));
}

#[test]
fn an_entry_that_the_processor_has_marked_is_ours() {
    let mut target = machine(1, Rights::ALL);
    let mut window = open(&mut target);
    let extent = window.map(&mut target, 1, PageUse::Code).unwrap();
    let entry = entry(&mut target, extent.at);
    let value = target.read_word(entry).unwrap();
    target.write_word(entry, value | bits::DIRTY).unwrap();
    window.verify(&mut target).unwrap();
    target.write_word(entry, value & !bits::ACCESSED).unwrap();
    window.verify(&mut target).unwrap();
    assert!(window.is_untouched(&target));
    for other in [
        value | bits::WRITE,
        value ^ bits::USER,
        value + PAGE_2M,
        value & !bits::PRESENT,
    ] {
        target.write_word(entry, other).unwrap();
        assert!(window.verify(&mut target).is_err());
        assert!(!window.is_untouched(&target));
    }
}

#[test]
fn between_changes_only_who_has_the_text_has_to_see_the_window() {
    let mut target = machine(2, Rights::ALL);
    let (window, [first, _]) = two_pages(&mut target);
    let vcpus = target.vcpus().to_vec();
    // vCPU 1 is being started: in real mode, then with tables that have next to nothing.
    let empty = Gpa(0xf0_0000);
    for (cr0, cr3) in [(1, 0), (vcpus[0].cr0, empty.0)] {
        let started = &mut target.vcpus_mut()[1];
        (started.cr0, started.cr3) = (cr0, cr3);
        let vcpus = target.vcpus().to_vec();
        window.verify_with_text(&mut target, &vcpus).unwrap();
        assert!(window.verify(&mut target).is_err());
    }
    // Nobody has the text: nothing is known, and nothing is written.
    target.vcpus_mut()[0].cr3 = empty.0;
    target.write_word(first, 0).unwrap();
    let registers = target.vcpus().to_vec();
    window.verify_with_text(&mut target, &registers).unwrap();
    assert_eq!(target.read_word(first).unwrap(), 0);
    // All are there again.
    target.vcpus_mut().copy_from_slice(&vcpus);
    window.verify_with_text(&mut target, &vcpus).unwrap();
    assert!(window.is_untouched(&target));
    // Somebody has the text, but not the window.
    target.separate(1).unwrap();
    target.write_word(first, 0).unwrap();
    let registers = target.vcpus().to_vec();
    let error = window
        .verify_with_text(&mut target, &registers)
        .unwrap_err();
    assert!(matches!(error, WindowError::NotShared { .. }), "{error}");
    assert_eq!(target.read_word(first).unwrap(), 0);
}

#[test]
fn what_the_guest_has_taken_stays_when_the_window_goes() {
    let mut target = machine(1, Rights::ALL);
    let (window, entries) = two_pages(&mut target);
    target.write_word(entries[1], 0x40_0083).unwrap();
    window.close(&mut target);
    assert_eq!(words(&target, entries), [0, 0x40_0083]);
}

/// Linux calls EFI with a copy of the table that an alias is in: tracing once ended when a look met a vCPU there.
#[test]
fn a_vcpu_with_a_copy_of_the_entries_sees_the_window() {
    for lowest in [2, 3] {
        let mut target = machine(2, Rights::ALL);
        target.ram = vec![Region {
            start: Gpa(0),
            bytes: 1 << 30,
        }];
        let (mut window, [first, _]) = two_pages(&mut target);
        let alias = window.make_alias(&mut target).unwrap().ram[0].at;
        target.separate_above(1, lowest).unwrap();
        let registers = target.vcpus().to_vec();
        window.verify_with_text(&mut target, &registers).unwrap();
        window.verify(&mut target).unwrap();
        // What is cleared is written only where all lead to it.
        let alias_entry = target.entry(alias, 3).unwrap();
        let copied = match lowest {
            2 => vec![first, alias_entry],
            _ => vec![alias_entry],
        };
        for entry in copied {
            let value = target.read_word(entry).unwrap();
            target.write_word(entry, 0).unwrap();
            let error = window.verify(&mut target).unwrap_err();
            assert!(
                matches!(error, WindowError::NotShared { vcpu: 1, .. }),
                "{error}"
            );
            assert_eq!(target.read_word(entry).unwrap(), 0);
            target.write_word(entry, value).unwrap();
        }
        // A copy that leads elsewhere shows nothing.
        let root = PageTableRoot::of(&target.vcpus()[1]).unwrap();
        let copy = entry_for(&target, root, alias, 3).unwrap().unwrap();
        assert_ne!(copy, alias_entry);
        target.write_word(copy, 0).unwrap();
        let error = window.verify(&mut target).unwrap_err();
        let at = alias;
        assert_eq!(error, WindowError::NotShared { vcpu: 1, at });
    }
}
