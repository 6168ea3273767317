//! Images read from built bytes: every kind of site, every refusal, and mutated files.

use insn::nop::NOP5;
use proptest::prelude::*;

use super::testing::{ElfFile, TEXT, body, call, nop_image};
use super::*;

const LIST: u64 = 0xffff_ffff_8000_0000;
const SPLIT: [u8; 5] = [0x66, 0x90, 0x0f, 0x1f, 0x00];

/// Functions of 16 bytes each at [`TEXT`], with these names and heads.
fn file(functions: &[(&'static str, &[u8])]) -> ElfFile {
    let code: Vec<u8> = functions.iter().flat_map(|(_, head)| body(head)).collect();
    let mut file = ElfFile::new().text(TEXT, &code);
    for (index, (name, _)) in functions.iter().enumerate() {
        file = file.function(name, TEXT + 16 * index as u64, 16);
    }
    file
}

fn parse(file: &ElfFile) -> Image {
    Image::parse(&file.build()).unwrap()
}

fn summary(image: &Image) -> Vec<(&str, u64, SiteKind, SiteForm)> {
    image
        .sites
        .iter()
        .map(|s| (&*s.symbol, s.address.0 - TEXT, s.kind, s.form))
        .collect()
}

#[test]
fn a_list_of_nops_and_calls_becomes_sites() {
    let fentry = TEXT + 0x40;
    let file = file(&[
        ("nop", &NOP5),
        ("raw", &call(TEXT + 0x10, fentry)),
        ("late", &[0x55, 0x48, 0x89, 0xe5, 0x0f, 0x1f, 0x44, 0, 0]),
        ("plain", &[0xc3]),
        ("__fentry__", &[0xc3]),
    ])
    .list("__mcount_loc", LIST, &[TEXT + 0x24, TEXT, TEXT + 0x10, 0]);
    let image = parse(&file);
    let target = Gva(fentry);
    assert_eq!(
        summary(&image),
        [
            ("nop", 0, SiteKind::Fentry, SiteForm::Nop5),
            ("raw", 0x10, SiteKind::Fentry, SiteForm::RawCall { target }),
            ("late", 0x24, SiteKind::Mcount, SiteForm::Nop5),
        ]
    );
    let untraceable: Vec<&str> = image.untraceable.iter().map(|u| &*u.symbol).collect();
    assert_eq!(untraceable, ["plain", "__fentry__"]);
    assert!(
        image
            .notes
            .iter()
            .any(|note| note.contains("1 entries are 0")),
        "{:?}",
        image.notes
    );
    assert_eq!(image.function_at(Gva(TEXT + 0x1f)), Some(FunctionId(1)));
    assert_eq!(
        image.site_of(FunctionId(2)).unwrap().address,
        Gva(TEXT + 0x24)
    );
    assert_eq!(image.site_of(FunctionId(3)), None);
}

#[test]
fn patchable_entries_may_be_several_nops_or_begin_before_the_function() {
    let code = [
        [0x90; 16],
        body(&SPLIT),
        body(&[0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 8]),
    ];
    let file = ElfFile::new()
        .text(TEXT, &code.concat())
        .function("prefixed", TEXT + 5, 11)
        .function("split", TEXT + 0x10, 16)
        .function("padded", TEXT + 0x20, 16)
        .list(
            "__patchable_function_entries",
            LIST,
            &[TEXT, TEXT + 0x10, TEXT + 0x24],
        );
    assert_eq!(
        summary(&parse(&file)),
        [
            ("prefixed", 5, SiteKind::Patchable, SiteForm::MultiNop),
            ("split", 0x10, SiteKind::Patchable, SiteForm::MultiNop),
            ("padded", 0x24, SiteKind::Patchable, SiteForm::Nop5),
        ]
    );
}

/// `-fcf-protection=branch -fpatchable-function-entry=16,11`: what is listed are the nops before the function. A symbol
/// without a size reaches over those of the next one.
#[test]
fn entries_and_landing_pads_may_split_the_nops_that_are_listed() {
    const PAD: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let code = |entry: &[u8]| [&[0x90; 11][..], entry, &[0xc3; 32]].concat()[..32].to_vec();
    let text = [
        code(&[&PAD[..], &[0x90; 5]].concat()),
        code(&[&PAD[..], &NOP5].concat()),
        code(&NOP5),
        // All its nops are before the entry: there is no site.
        code(&[&PAD[..], &[0x55; 5]].concat()),
    ];
    for size in [12, 32] {
        let names = ["split", "one", "bare", "none"];
        let listed = [0, 0x20, 0x40, 0x60].map(|at| TEXT + at);
        let file = ElfFile::new().text(TEXT, &text.concat());
        let file = names
            .iter()
            .zip(listed)
            .fold(file, |file, (name, at)| file.function(name, at + 11, size));
        let file = file.list("__patchable_function_entries", LIST, &listed);
        let image = parse(&file);
        assert_eq!(
            summary(&image),
            [
                ("split", 15, SiteKind::Patchable, SiteForm::MultiNop),
                ("one", 0x2f, SiteKind::Patchable, SiteForm::Nop5),
                ("bare", 0x4b, SiteKind::Patchable, SiteForm::Nop5),
            ],
            "{size}"
        );
        assert_eq!(image.skipped.len(), 1);
        let skipped = &image.skipped[0];
        assert_eq!(skipped.address, Gva(TEXT + 0x6f), "{}", skipped.reason);
        assert!(matches!(skipped.reason, SkipReason::UnexpectedBytes(_)));
    }
}

#[test]
fn lists_are_found_by_symbols_where_sections_have_no_names() {
    let file = file(&[("f", &NOP5)])
        .list("__mcount_loc", LIST, &[TEXT])
        .label("__start_mcount_loc", LIST)
        .label("__stop_mcount_loc", LIST + 8)
        .without_names();
    assert_eq!(
        summary(&parse(&file)),
        [("f", 0, SiteKind::Fentry, SiteForm::Nop5)]
    );
    let lying = self::file(&[("f", &NOP5)])
        .list("__mcount_loc", LIST, &[TEXT])
        .label("__start_mcount_loc", LIST)
        .label("__stop_mcount_loc", LIST + (1 << 30))
        .without_names();
    let image = parse(&lying);
    assert!(image.sites.is_empty());
    assert!(
        image.notes[0].contains("is not in the file"),
        "{:?}",
        image.notes
    );
}

#[test]
fn unlisted_calls_are_found_by_decoding() {
    let mcount = TEXT + 0x30;
    let file = file(&[
        (
            "framed",
            &[&[0x55, 0x48, 0x89, 0xe5][..], &call(TEXT + 4, mcount)].concat(),
        ),
        ("listed", &NOP5),
        ("other", &call(TEXT + 0x20, TEXT)),
        ("mcount", &[0xc3]),
    ])
    .list("__patchable_function_entries", LIST, &[TEXT + 0x10]);
    let target = Gva(mcount);
    let image = parse(&file);
    assert_eq!(
        summary(&image),
        [
            ("framed", 4, SiteKind::Mcount, SiteForm::RawCall { target }),
            ("listed", 0x10, SiteKind::Patchable, SiteForm::Nop5),
        ]
    );
    assert!(
        image
            .notes
            .iter()
            .any(|note| note.contains("1 sites found by decoding"))
    );
}

#[test]
fn what_cannot_be_a_site_is_kept_with_its_reason() {
    let file = file(&[
        ("twice", &[NOP5, NOP5].concat()),
        ("odd", &[0x48, 0x89, 0xc3, 0xc3, 0xc3]),
        ("foreign", &call(TEXT + 0x20, TEXT)),
        ("pic", &[0xff, 0x15, 0, 0, 0, 0]),
        ("short", &[0x90; 16]),
    ])
    .function("after", TEXT + 0x50, 0)
    .list(
        "__mcount_loc",
        LIST,
        &[
            TEXT,
            TEXT + 5,
            TEXT + 0x10,
            TEXT + 0x20,
            TEXT + 0x30,
            TEXT + 0x4c,
            0x1234,
            u64::MAX,
        ],
    );
    let image = parse(&file);
    let reasons: Vec<&SkipReason> = image.skipped.iter().map(|place| &place.reason).collect();
    let unexpected = image.skipped[2].bytes.clone();
    assert_eq!(
        reasons,
        [
            &SkipReason::OutsideText,
            &SkipReason::SecondSite { first: Gva(TEXT) },
            &SkipReason::UnexpectedBytes(unexpected),
            &SkipReason::ForeignCall { target: Gva(TEXT) },
            &SkipReason::IndirectCall,
            &SkipReason::NoBytes,
            &SkipReason::OutsideText,
        ]
    );
    assert_eq!(
        image.sites.len() + image.untraceable.len(),
        image.functions.len()
    );
    assert!(
        image
            .untraceable(FunctionId(1))
            .unwrap()
            .reason
            .to_string()
            .contains("48 89 c3")
    );
}

#[test]
fn a_site_must_end_in_its_function() {
    let file = ElfFile::new()
        .text(TEXT, &[0x90; 32])
        .function("tiny", TEXT, 4)
        .function("next", TEXT + 4, 28)
        .list("__mcount_loc", LIST, &[TEXT]);
    let image = parse(&file);
    assert_eq!(image.skipped[0].reason, SkipReason::CrossesEnd);
}

#[test]
fn symbols_are_found_by_address_name_and_glob() {
    let file = file(&[("leaf", &NOP5), ("mid", &NOP5)])
        .local("leaf", TEXT + 0x18, 8)
        .label("alias", TEXT)
        .function("leaf_too", TEXT, 16)
        .function("_RNvCs1234_5guest4main", TEXT + 0x10, 16);
    let image = parse(&file);
    let (symbol, offset) = image.symbols.at(Gva(TEXT + 3)).unwrap();
    assert_eq!((&*symbol.name, offset), ("leaf", 3));
    assert_eq!(image.symbols.at(Gva(TEXT - 1)), None);
    assert_eq!(image.symbols.named("leaf").count(), 2);
    assert_eq!(image.symbols.address_of("leaf"), Some(Gva(TEXT)));
    assert_eq!(image.symbols.address_of("lea"), None);
    let glob = globset::Glob::new("guest::m*").unwrap().compile_matcher();
    assert_eq!(image.symbols.glob(&glob).count(), 1);
    assert_eq!(image.symbols.near_misses("leaff", 1), ["leaf"]);
    assert_eq!(image.functions.len(), 3);
    let names: Vec<&str> = image.functions[0].names().collect();
    assert!(
        names.contains(&"leaf") && names.contains(&"leaf_too"),
        "{names:?}"
    );
}

#[test]
fn names_cannot_carry_control_characters() {
    let image = parse(&file(&[("a\nb\u{1b}[2J", &NOP5)]));
    assert_eq!(&*image.functions[0].name, "a\\nb\\u{1b}[2J");
}

#[test]
fn nothing_to_trace_is_said() {
    let image = parse(&file(&[("f", &[0xc3])]));
    assert!(matches!(
        image.check_traceable(),
        Err(ImageError::NoSites { .. })
    ));
    let image = parse(&ElfFile::new().text(TEXT, &NOP5));
    assert_eq!(image.check_traceable(), Err(ImageError::NoSymbols));
    assert_eq!(nop_image(3).check_traceable(), Ok(()));
}

/// A good file with one change at an offset.
fn with(offset: usize, bytes: &[u8]) -> Result<Image, ImageError> {
    let mut file = file(&[("f", &NOP5)])
        .list("__mcount_loc", LIST, &[TEXT])
        .build();
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
    Image::parse(&file)
}

/// Program header fields of the first segment.
const OFFSET: usize = 64 + 8;
const VADDR: usize = 64 + 16;
const PADDR: usize = 64 + 24;
const FILESZ: usize = 64 + 32;
const MEMSZ: usize = 64 + 40;
const SECOND: usize = 56;

#[test]
fn files_that_are_no_guest_are_refused_by_name() {
    assert_eq!(Image::parse(&[]), Err(ImageError::Empty));
    assert!(matches!(
        Image::parse(b"#!/bin/sh"),
        Err(ImageError::NotElf { .. })
    ));
    assert!(matches!(
        Image::parse(b"\x7fELF\x02"),
        Err(ImageError::PastEnd { .. })
    ));
    assert_eq!(with(4, &[1]), Err(ImageError::Not64Bit { class: "32-bit" }));
    assert_eq!(
        with(5, &[2]),
        Err(ImageError::NotLittleEndian { encoding: 2 })
    );
    assert_eq!(
        with(18, &[183, 0]),
        Err(ImageError::NotX86 { machine: 183 })
    );
    assert!(matches!(
        with(16, &[1, 0]),
        Err(ImageError::NotExecutable { .. })
    ));
    assert!(matches!(
        with(32, &[0xff; 8]),
        Err(ImageError::PastEnd { .. })
    ));
    assert!(matches!(
        with(40, &[0xff; 8]),
        Err(ImageError::PastEnd { .. })
    ));
    assert_eq!(with(56, &[0, 0]), Err(ImageError::NoSegments));
}

#[test]
fn lying_segments_are_refused() {
    let word = |value: u64| value.to_le_bytes();
    assert!(matches!(
        with(OFFSET, &word(1 << 40)),
        Err(ImageError::PastEnd { .. })
    ));
    assert!(matches!(
        with(OFFSET, &word(u64::MAX)),
        Err(ImageError::PastEnd { .. })
    ));
    assert!(matches!(
        with(FILESZ, &word(17)),
        Err(ImageError::FileLargerThanMemory { .. })
    ));
    assert!(matches!(
        with(MEMSZ, &word(1 << 50)),
        Err(ImageError::AbsurdSegment { .. })
    ));
    assert!(matches!(
        with(VADDR, &word(u64::MAX - 3)),
        Err(ImageError::AbsurdSegment { .. })
    ));
    let overlap =
        |space| move |error| matches!(error, ImageError::Overlap { space: s, .. } if s == space);
    assert!(with(VADDR + SECOND, &word(TEXT + 15)).is_err_and(overlap("virtual")));
    assert!(with(PADDR + SECOND, &word(TEXT & 0x7fff_ffff)).is_err_and(overlap("physical")));
    with(VADDR + SECOND, &word(TEXT + 16)).unwrap();
}

#[test]
fn every_truncation_is_an_error() {
    let file = file(&[("f", &NOP5)])
        .list("__mcount_loc", LIST, &[TEXT])
        .build();
    Image::parse(&file).unwrap();
    for length in 0..file.len() {
        assert!(
            Image::parse(&file[..length]).is_err(),
            "cut at {length} of {}",
            file.len()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever a file says, reading it ends without a panic, and what comes out holds together.
    #[test]
    fn mutated_files_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), interesting()), 1..8),
    ) {
        let mut file = file(&[
            ("framed", &[&[0x55][..], &call(TEXT + 1, TEXT + 0x20)].concat()),
            ("nop", &NOP5),
            ("mcount", &[0xc3]),
        ])
        .list("__mcount_loc", LIST, &[TEXT + 0x10, TEXT + 1])
        .list("__patchable_function_entries", LIST + 0x1000, &[TEXT + 0x10])
        .build();
        for (index, bytes) in changes {
            let at = index.index(file.len());
            let end = file.len().min(at + bytes.len());
            file[at..end].copy_from_slice(&bytes[..end - at]);
        }
        if let Ok(image) = Image::parse(&file) {
            prop_assert_eq!(image.sites.len() + image.untraceable.len(), image.functions.len());
            for site in &image.sites {
                prop_assert!(image.is_text(site.address, 5));
                prop_assert_eq!(image.function_at(site.address), Some(site.function));
            }
            prop_assert!(image.functions.is_sorted_by_key(|function| function.address));
            let _ = image.check_traceable().map_err(|error| error.to_string());
        }
    }
}

/// Bytes that break readers: all ones, zero, off-by-one sizes, anything.
fn interesting() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![0xff; 8]),
        Just(vec![0; 8]),
        Just(0x7fff_ffff_ffff_ffffu64.to_le_bytes().to_vec()),
        Just(TEXT.to_le_bytes().to_vec()),
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<u64>().prop_map(|word| word.to_le_bytes().to_vec()),
    ]
}

#[test]
fn functions_that_return_otherwise_are_told() {
    let frame = [0x55, 0x48, 0x89, 0xe5];
    let with = |before: &[u8], after: &[u8]| [before, &NOP5, after].concat();
    let plain = with(&[], &[0xc3]);
    let interrupt = with(&[], &[0x48, 0xcf]);
    let pops = with(&[], &[0x90, 0xc2, 0x08, 0x00]);
    let framed = with(&frame, &[0x5d, 0xc3]);
    let realigned = with(&[0x4c, 0x8d, 0x54, 0x24, 0x08], &[0xc3]);
    let file = file(&[
        ("plain", &plain),
        ("interrupt", &interrupt),
        ("pops", &pops),
        ("framed", &framed),
        ("realigned", &realigned),
    ]);
    let places = [0, 0x10, 0x20, 0x34, 0x45].map(|offset| TEXT + offset);
    let image = parse(&file.list("__mcount_loc", LIST, &places));
    assert_eq!(image.sites.len(), 5, "{:?}", image.skipped);
    let why = |name: &str| {
        let site = image.sites.iter().find(|site| &*site.symbol == name);
        image.unhookable(site.unwrap().function)
    };
    let at = |offset| {
        Some(Unhookable::OtherReturn {
            at: Gva(TEXT + offset),
        })
    };
    assert_eq!(why("plain"), None);
    assert_eq!(why("interrupt"), at(0x15));
    assert_eq!(why("pops"), at(0x26));
    assert_eq!(why("framed"), None);
    assert_eq!(why("realigned"), Some(Unhookable::NoFrame));
    // Others are known by their names; what the code shows stays.
    let mut image = image.clone();
    image.leave_returns(&["interrupt", "plain", "absent"], "it unwinds");
    let why = |name: &str| {
        let site = image.sites.iter().find(|site| &*site.symbol == name);
        image.unhookable(site.unwrap().function)
    };
    assert_eq!(why("plain"), Some(Unhookable::Known { why: "it unwinds" }));
    assert_eq!(why("interrupt"), at(0x15));
    assert_eq!(why("pops"), at(0x26));
    assert_eq!(why("framed"), None);
    assert!(image.unhookable.is_sorted_by_key(|(function, _)| *function));
}
