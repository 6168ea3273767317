//! What a kernel rewrites itself is found in its image, and no tactic displaces it.

use image::testing::{ElfFile, TEXT};
use image::{Image, TableError};
use terms::addr::Gva;

use super::{Refusal, Tactic, TacticError, choose};

const TABLE: u64 = TEXT + 0x1000;
const BANNER: u64 = TEXT - 0x1_0000;

/// Distances from every `apart` bytes on, each with the rest of its entry.
fn entries(apart: usize, all: &[(u64, &[u8])]) -> Vec<u8> {
    let entry = |(place, (to, rest)): (u64, &(u64, &[u8]))| {
        let distance = to.wrapping_sub(place).cast_signed();
        let mut entry = i32::try_from(distance).unwrap().to_le_bytes().to_vec();
        entry.extend(*rest);
        entry.resize(apart, 0);
        entry
    };
    let places = (TABLE..).step_by(apart);
    places.zip(all).flat_map(entry).collect()
}

/// A kernel with one table between these symbols, and code of 32 bytes.
fn with(bounds: (&'static str, &'static str), table: &[u8], code: &[u8]) -> Image {
    let end = TABLE + table.len() as u64;
    let file = ElfFile::new()
        .text(TEXT, code)
        .data(".rodata", TABLE, table)
        .function("code", TEXT, code.len() as u64)
        .label(bounds.0, TABLE)
        .label(bounds.1, end);
    Image::parse(&file.build()).unwrap()
}

/// nop2; mov eax, 1; nop5; lock inc [rdi]; jne +0; ret
const CODE: [u8; 22] = [
    0x66, 0x90, 0xb8, 1, 0, 0, 0, 0x0f, 0x1f, 0x44, 0, 0, 0xf0, 0xff, 0x07, 0x0f, 0x85, 0, 0, 0, 0,
    0xc3,
];
const SHORT: u64 = TEXT;
const LONG: u64 = TEXT + 7;
const LOCKED: u64 = TEXT + 12;
const BRANCH: u64 = TEXT + 15;

fn owned(image: &Image, from: u64, to: u64) -> Option<(u64, &'static str)> {
    let found = image.tables.rewritten(Gva(from), Gva(to));
    found.map(|(at, what)| (at.0, what))
}

#[test]
fn jump_labels_are_found_by_their_symbols_and_are_as_long_as_their_instruction() {
    let table = entries(16, &[(SHORT, &[]), (LONG, &[])]);
    let bounds = ("__start___jump_table", "__stop___jump_table");
    let image = with(bounds, &table, &CODE);
    let label = "a jump label";
    assert_eq!(image.tables.count(label), 2);
    assert_eq!(owned(&image, SHORT, SHORT + 1), Some((SHORT, label)));
    assert_eq!(owned(&image, SHORT + 1, SHORT + 2), Some((SHORT, label)));
    assert_eq!(owned(&image, SHORT + 2, LONG), None);
    assert_eq!(owned(&image, LONG + 4, LONG + 9), Some((LONG, label)));
    assert_eq!(owned(&image, LONG + 5, LONG + 9), None);
    for tactic in [2, 3, 4, 5] {
        for at in [SHORT, LONG] {
            let refused = choose(&image, Gva(at), Some(tactic)).unwrap_err();
            let TacticError::Refused { why, .. } = refused else {
                panic!("{refused}");
            };
            let is_too_short = matches!(why, Refusal::TooShort { .. });
            let at = Gva(at);
            assert!(is_too_short || why == Refusal::Owned { at, what: label });
        }
    }
    // What lies between two of them is free.
    let between = choose(&image, Gva(TEXT + 2), None).unwrap();
    assert_eq!((between.tactic, between.end()), (Tactic::One, Gva(LONG)));
}

#[test]
fn static_calls_and_lock_prefixes_have_their_own_lengths() {
    let bounds = ("__start_static_call_sites", "__stop_static_call_sites");
    let image = with(bounds, &entries(8, &[(BRANCH, &[])]), &CODE);
    let call = "a static call";
    assert_eq!(owned(&image, BRANCH + 5, BRANCH + 6), Some((BRANCH, call)));
    assert_eq!(owned(&image, BRANCH + 6, BRANCH + 7), None);
    let bounds = ("__smp_locks", "__smp_locks_end");
    let image = with(bounds, &entries(4, &[(LOCKED, &[])]), &CODE);
    let prefix = "a lock prefix";
    assert_eq!(owned(&image, LOCKED, LOCKED + 1), Some((LOCKED, prefix)));
    assert_eq!(owned(&image, LOCKED + 1, LOCKED + 9), None);
}

#[test]
fn alternatives_of_all_layouts_are_read() {
    let bounds = ("__alt_instructions", "__alt_instructions_end");
    // Distance of the replacement, feature, lengths: 5.10 with a length of padding, 5.13, 6.3 with flags.
    let layouts: [(usize, &[u8]); 3] = [
        (13, &[0, 0, 0, 0, 9, 9, 5, 2, 3]),
        (12, &[0, 0, 0, 0, 9, 9, 5, 2]),
        (14, &[0, 0, 0, 0, 9, 9, 1, 0, 5, 2]),
    ];
    for (apart, rest) in layouts {
        let table = entries(apart, &[(LONG, rest), (TEXT + 2, rest), (LOCKED, rest)]);
        let image = with(bounds, &table, &CODE);
        let what = "an alternative";
        assert_eq!(image.tables.count(what), 3, "{apart}");
        assert_eq!(owned(&image, LONG + 4, LONG + 5), Some((LONG, what)));
        assert_eq!(owned(&image, LOCKED + 5, LOCKED + 9), None);
        assert_eq!(image.tables.missing(), None, "only Linux has to have all");
    }
}

/// A Linux with all tables but the one whose first symbol is `without`, the jump table of which is so long.
fn linux(without: &str, jump_table: u64) -> Image {
    Image::parse(&kernel(without, jump_table).label(LOCKS, TEXT + 21).build()).unwrap()
}

/// What changes lock prefixes.
const LOCKS: &str = "alternatives_smp_module_add";

/// The same without what changes lock prefixes.
fn kernel(without: &str, jump_table: u64) -> ElfFile {
    let names = [
        ("__start___jump_table", "__stop___jump_table"),
        ("__start_static_call_sites", "__stop_static_call_sites"),
        ("__alt_instructions", "__alt_instructions_end"),
        ("__smp_locks", "__smp_locks_end"),
        ("__start___ex_table", "__stop___ex_table"),
    ];
    let banner = b"Linux version 6.1.0 (made by hand)\0";
    let mut file = ElfFile::new()
        .data(".banner", BANNER, banner)
        .text(TEXT, &CODE)
        .data(".rodata", TABLE, &[0; 64])
        .function("code", TEXT, CODE.len() as u64)
        .function("__SCT__one", TEXT + 21, 1);
    for (start, stop) in names.into_iter().filter(|(start, _)| *start != without) {
        let is_first = start == "__start___jump_table";
        let length = if is_first { jump_table } else { 0 };
        file = file.label(start, TABLE);
        file = file.label(stop, TABLE.wrapping_add(length));
    }
    file
}

/// Linux 7.3 has no lock prefixes that it changes, and no list of them.
#[test]
fn lock_prefixes_are_missed_only_where_something_changes_them() {
    let free = Gva(TEXT + 2);
    let newer = Image::parse(&kernel("__smp_locks", 16).build()).unwrap();
    assert_eq!(newer.tables.missing(), None);
    choose(&newer, free, None).unwrap();
    let error = linux("__smp_locks", 16);
    let error = error.tables.missing();
    let is_named =
        matches!(error, Some(TableError::NotNamed { start, .. }) if *start == "__smp_locks");
    assert!(is_named, "{error:?}");
}

#[test]
fn a_linux_without_its_tables_is_not_displaced_and_the_reason_names_the_symbols() {
    let free = Gva(TEXT + 2);
    let whole = linux("", 16);
    assert_eq!(whole.tables.missing(), None);
    choose(&whole, free, None).unwrap();
    for (without, what) in [
        ("__start___jump_table", "jump labels"),
        ("__start_static_call_sites", "static calls"),
        ("__alt_instructions", "alternatives"),
        ("__smp_locks", "lock prefixes"),
        ("__start___ex_table", "instructions that may fault"),
    ] {
        let image = linux(without, 16);
        let said = choose(&image, free, Some(2)).unwrap_err().to_string();
        for word in [
            "rewrites its own text",
            what,
            without,
            "CONFIG_KALLSYMS_ALL",
        ] {
            assert!(said.contains(word), "{said}");
        }
        let notes = image.notes.join("\n");
        assert!(notes.contains("nothing can be displaced"), "{notes}");
    }
}

#[test]
fn bounds_that_cannot_be_are_no_table() {
    for length in [1 << 40, 0u64.wrapping_sub(8)] {
        let image = linux("", length);
        let error = TableError::NotUnderstood {
            what: "jump labels",
            at: Gva(TABLE),
        };
        assert_eq!(image.tables.missing(), Some(&error));
    }
}

/// Whatever the words of the tables are, nothing but places in the file is believed.
#[test]
fn nonsense_in_a_table_goes_by() {
    let bounds = ("__start___jump_table", "__stop___jump_table");
    for word in [1u64, u64::MAX, 0x8000_0000, 0x7fff_ffff_7fff_ffff] {
        let table = word.to_le_bytes().repeat(8);
        let image = with(bounds, &table, &CODE);
        assert!(image.tables.count("a jump label") <= 4);
    }
}
