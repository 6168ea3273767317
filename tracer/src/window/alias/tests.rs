use image::TextRange;

use super::*;
use crate::mock::{MockTarget, RAM_BYTES, Rights};
use crate::paging::{PageUse, translate};
use crate::window::Places;

const TEXT: Gva = Gva(0xffff_ffff_8010_0000);

fn machine(user: bool) -> (MockTarget, Window) {
    machine_with(user, None)
}

fn machine_with(user: bool, tables: Option<Gva>) -> (MockTarget, Window) {
    let mut target = MockTarget::new(2, 16 * PAGE_2M);
    target.ram = vec![Region {
        start: Gpa(0),
        bytes: RAM_BYTES,
    }];
    let rights = Rights {
        user,
        ..Rights::ALL
    };
    target.map(TEXT, Gpa(0x100_0000), PAGE_4K, rights).unwrap();
    let text = TextRange {
        start: TEXT,
        end: TEXT.wrapping_add(PAGE_4K),
    };
    let region = target.region();
    let places = Places {
        tables,
        ..Places::from(text)
    };
    let window = Window::open(&mut target, region, places).unwrap();
    (target, window)
}

#[test]
fn shows_all_ram_for_reading_only_with_either_size_of_page() {
    for (giant, user) in [(true, false), (true, true), (false, false), (false, true)] {
        let (mut target, mut window) = machine(user);
        target.has_gigabyte_pages = giant;
        let left = window.left();
        let memory = window.make_alias(&mut target).unwrap().clone();
        assert_eq!(window.make_alias(&mut target).unwrap(), &memory);
        assert_eq!(left, window.left(), "tables lie beside the title");
        assert_eq!(memory.levels, 4);
        assert_eq!(memory.root == Root::Cr3, !user);
        let [shown] = memory.ram[..] else {
            panic!("one piece of RAM: {memory:?}")
        };
        assert_eq!((shown.start, shown.bytes), (Gpa(0), RAM_BYTES));
        for offset in [0, 1, PAGE_2M - 1, PAGE_2M, RAM_BYTES - 1] {
            let seen = translate(&target, target.root(), shown.at.wrapping_add(offset)).unwrap();
            assert_eq!(seen.physical, Gpa(offset));
            assert_eq!(
                (seen.user, seen.writable, seen.executable),
                (user, false, false)
            );
        }
        window.verify(&mut target).unwrap();
        let entry = target.entry(shown.at, 3).unwrap();
        let value = target.read_word(entry).unwrap();
        target.write_word(entry, 0).unwrap();
        window.verify(&mut target).unwrap();
        assert_eq!(target.read_word(entry).unwrap(), value);
        target.write_word(entry, 0x5000 | bits::PRESENT).unwrap();
        let error = window.verify(&mut target).unwrap_err();
        assert!(matches!(error, WindowError::Taken { .. }), "{error}");
        target.write_word(entry, value).unwrap();
        window.close(&mut target);
        assert_eq!(target.read_word(entry).unwrap(), 0);
    }
}

#[test]
fn extents_and_tables_of_the_region_do_not_overlap() {
    let (mut target, mut window) = machine(false);
    target.has_gigabyte_pages = false;
    window.make_alias(&mut target).unwrap();
    let all = window.left();
    let shown = window.map(&mut target, all, PageUse::Data).unwrap();
    let region = target.region();
    assert_eq!(
        shown.physical.0 + shown.bytes,
        region.start.0 + region.bytes - PAGE_2M
    );
    assert!(matches!(
        window.map(&mut target, 1, PageUse::Data),
        Err(WindowError::RegionFull { left: 0, .. })
    ));
}

#[test]
fn where_nothing_is_free_registers_can_still_be_captured() {
    let (mut target, mut window) = machine(false);
    let first = TEXT.0 & !(512 * PAGE_1G - 1);
    for number in 0..512 {
        let at = Gva(first + number * PAGE_1G);
        let entry = target.entry(at, 3).unwrap();
        if target.read_word(entry).unwrap() == 0 {
            target
                .write_word(entry, bits::LARGE | bits::PRESENT)
                .unwrap();
        }
    }
    let error = window.make_alias(&mut target).unwrap_err();
    assert!(
        matches!(
            error,
            WindowError::NoAlias {
                gigabytes: 1,
                free: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("registers can be captured"));
    assert!(window.alias.is_none());
    window.verify(&mut target).unwrap();
}

/// It was once in the tables of a call of EFI alone, and the next look ended tracing.
#[test]
fn no_alias_is_made_in_tables_that_are_there_for_a_moment() {
    let tables = TEXT.wrapping_add(PAGE_4K);
    for (is_named, is_mapped) in [(true, true), (true, false), (false, true)] {
        let (mut target, mut window) = machine_with(false, is_named.then_some(tables));
        // One vCPU alone: nobody else shows that its tables are others.
        target.vcpus_mut()[1].online = false;
        if is_mapped {
            let (to, rights) = (target.root().table, Rights::ALL);
            target.map(tables, to, PAGE_4K, rights).unwrap();
        }
        let own = target.vcpus()[0].cr3;
        target.separate_above(0, 3).unwrap();
        let before = target.own_memory();
        let made = window.make_alias(&mut target).map(|_| ());
        if is_named && is_mapped {
            let error = made.unwrap_err();
            assert!(
                matches!(error, WindowError::NotShared { vcpu: 0, .. }),
                "{error}"
            );
            assert_eq!(target.own_memory(), before);
            target.vcpus_mut()[0].cr3 = own;
            window.make_alias(&mut target).unwrap();
            window.verify(&mut target).unwrap();
        } else {
            // Nobody says which they are.
            made.unwrap();
        }
    }
}

/// Tables that do not have the text where the vCPU has it are none of the kernel's, whatever their name.
#[test]
fn tables_without_the_text_are_not_believed() {
    let tables = TEXT.wrapping_add(PAGE_4K);
    let (mut target, mut window) = machine_with(false, Some(tables));
    target
        .map(tables, Gpa(0xf0_0000), PAGE_4K, Rights::ALL)
        .unwrap();
    window.make_alias(&mut target).unwrap();
    window.verify(&mut target).unwrap();
}
