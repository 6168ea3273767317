use insn::nop::NOP5;

use super::testing::{Guest, KERNEL, MODULES_AREA};
use super::*;
use crate::introspection::{Loaded, ModuleError};
use crate::linux::kernel_view::KernelView;
use crate::mock::MockTarget;
use crate::target::TextMemory;

fn names(loaded: &[Loaded]) -> Vec<(&str, bool)> {
    loaded
        .iter()
        .map(|loaded| (&*loaded.module.name, loaded.is_live))
        .collect()
}

fn read(guest: &Guest) -> Result<Vec<Loaded>, ModuleError> {
    let target: &MockTarget = &guest.target;
    loaded(
        &KernelView::new(target, guest.layout.tables),
        &guest.layout,
        &[KERNEL],
    )
}

#[test]
fn modules_are_read_with_their_functions_and_sites() {
    let mut guest = Guest::new();
    let one = guest.module("one", &["one_init", "one_read", "one_write"]);
    guest.module("two", &["two_read"]);
    guest.set_state("two", 1);
    let found = read(&guest).unwrap();
    assert_eq!(names(&found), [("one", true), ("two", false)]);
    assert_eq!(found[0].module.text.start, one);
    let view = KernelView::new(&guest.target, guest.layout.tables);
    let contents = contents(&view, &guest.layout, &found[0].module).unwrap();
    let functions: Vec<(u64, &str)> = contents
        .functions
        .iter()
        .map(|(address, name)| (address.0 - one.0, &**name))
        .collect();
    assert_eq!(
        functions,
        [(0, "one_init"), (64, "one_read"), (128, "one_write")]
    );
    let sites: Vec<_> = contents
        .sites
        .iter()
        .map(|(site, bytes)| (site.0 - one.0, *bytes))
        .collect();
    assert_eq!(sites, [0, 64, 128].map(|at| (at, NOP5)));
}

/// As in a kernel whose own tracer has switched itself off.
#[test]
fn sites_that_were_not_made_nops_are_told_as_they_are() {
    let call = |number: u8| [0xe8, number, 0, 0, 0];
    for (first, expected) in [
        (call(1), [call(1), call(2), NOP5]),
        // All or none: where the first one is a nop, nobody looks at the others.
        (NOP5, [NOP5; 3]),
    ] {
        let mut guest = Guest::new();
        let one = guest.module("one", &["a", "b", "c"]);
        for (offset, bytes) in [(0, first), (64, call(2))] {
            guest
                .target
                .write(one.wrapping_add(offset), &bytes)
                .unwrap();
        }
        let module = read(&guest).unwrap().remove(0).module;
        let view = KernelView::new(&guest.target, guest.layout.tables);
        let found = contents(&view, &guest.layout, &module).unwrap().sites;
        let found: Vec<_> = found.into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn unformed_modules_and_impossible_ones_are_left_out() {
    let mut guest = Guest::new();
    guest.module("one", &["a"]);
    guest.module("two", &["b"]);
    guest.module("three", &["c"]);
    guest.set_state("one", 3);
    guest.set_text("two", KERNEL.start.0, 4096);
    assert_eq!(names(&read(&guest).unwrap()), [("three", true)]);
    guest.set_text("three", MODULES_AREA, 1 << 40);
    assert_eq!(names(&read(&guest).unwrap()), []);
    guest.set_text("three", 0x1000, 4096);
    assert_eq!(names(&read(&guest).unwrap()), []);
}

#[test]
fn a_list_that_does_not_end_is_an_error() {
    let mut guest = Guest::new();
    guest.module("one", &["a"]);
    guest.tie("one", "one");
    assert_eq!(read(&guest).unwrap_err(), ModuleError::Endless(1024));
    guest.tie_to("one", 0xdead_0000_0000_0000);
    assert!(matches!(read(&guest), Err(ModuleError::Memory(_))));
}

#[test]
fn absurd_counts_are_errors() {
    let mut guest = Guest::new();
    guest.module("one", &["a"]);
    let module = read(&guest).unwrap().remove(0).module;
    guest.set_sites_count("one", u32::MAX);
    let view = KernelView::new(&guest.target, guest.layout.tables);
    let refused = contents(&view, &guest.layout, &module).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "module 'one' says that it has 4294967295 call sites, more than 65536"
    );
}

#[test]
fn texts_may_touch_and_are_of_a_size_that_modules_have() {
    let mut guest = Guest::new();
    let one = guest.module("one", &["a"]);
    guest.module("two", &["b"]);
    guest.set_text("one", one.0, 0x1000);
    guest.set_text("two", one.0 + 0x1000, 0x1000);
    assert_eq!(
        names(&read(&guest).unwrap()),
        [("one", true), ("two", true)]
    );
    guest.set_text("two", one.0 + 0xfff, 0x1000);
    assert_eq!(names(&read(&guest).unwrap()), [("one", true)]);
    let largest = 64 << 20;
    guest.set_text("two", MODULES_AREA + 0x100_0000, largest);
    assert_eq!(
        names(&read(&guest).unwrap()),
        [("one", true), ("two", true)]
    );
    guest.set_text("two", MODULES_AREA + 0x100_0000, largest + 1);
    assert_eq!(names(&read(&guest).unwrap()), [("one", true)]);
}

#[test]
fn a_name_that_is_none_is_no_modules() {
    let mut guest = Guest::new();
    guest.module("a\x1bb", &["a"]);
    guest.module("two", &["b"]);
    assert_eq!(names(&read(&guest).unwrap()), [("two", true)]);
}

/// Symbols and sites that are not in the module's own text are not its own.
#[test]
fn what_lies_elsewhere_is_left_out() {
    let mut guest = Guest::new();
    let one = guest.module("one", &["a", "b", "c"]);
    let module = read(&guest).unwrap().remove(0).module;
    let found = |guest: &Guest| {
        let view = KernelView::new(&guest.target, guest.layout.tables);
        let found = contents(&view, &guest.layout, &module).unwrap();
        let names: Vec<String> = found.functions.into_iter().map(|(_, name)| name).collect();
        let sites: Vec<u64> = found.sites.iter().map(|(site, _)| site.0 - one.0).collect();
        (names, sites)
    };
    let (symbol, site) = (0x1000 / 8, 0x400 / 8);
    // The first symbol is the kernel's, the second is of no section.
    guest.set_word("one", symbol + 1, KERNEL.start.0);
    guest.set_word("one", symbol + 3, 3);
    assert_eq!(found(&guest).0, ["c"]);
    let end = module.text.end.0;
    guest.set_word("one", site, end - 4);
    guest.set_word("one", site + 1, end - 5);
    guest.set_word("one", site + 2, one.0 - 1);
    assert_eq!(found(&guest).1, [end - 5 - one.0]);
}

#[test]
fn a_name_without_an_end_is_read_for_some_bytes() {
    let mut guest = Guest::new();
    guest.module("one", &["a"]);
    for word in 0x3000 / 8..0x4000 / 8 {
        guest.set_word("one", word, u64::from_le_bytes(*b"aaaaaaaa"));
    }
    let module = read(&guest).unwrap().remove(0).module;
    let view = KernelView::new(&guest.target, guest.layout.tables);
    let found = contents(&view, &guest.layout, &module).unwrap();
    assert!(found.functions[0].1.len() < 1024, "{found:?}");
}

/// Every word of a module's description replaced by nonsense: an error or less, never a panic.
#[test]
fn nonsense_anywhere_is_an_error_or_goes_by() {
    for nonsense in [0, 1, u64::MAX, 0xffff_ffff_c000_0ff8, 1 << 32] {
        for word in 0..Guest::WORDS {
            let mut guest = Guest::new();
            guest.module("one", &["one_init", "one_read"]);
            guest.set_word("one", word, nonsense);
            let Ok(found) = read(&guest) else { continue };
            let view = KernelView::new(&guest.target, guest.layout.tables);
            for Loaded { module, .. } in &found {
                let _ = contents(&view, &guest.layout, module);
            }
        }
    }
}
