use image::testing::{ElfFile, TEXT};

use super::*;

/// Padding that the kernel rewrites is no room for a hop.
#[test]
fn a_hop_takes_no_padding_that_the_kernel_rewrites() {
    let code = [
        0x31, 0xc0, 0x53, 0x75, 0xfd, 0xc3, INT3, INT3, INT3, INT3, INT3,
    ];
    let data = TEXT + 0x1000;
    let distance = |to: u64| i32::try_from(to.wrapping_sub(data).cast_signed()).unwrap();
    let with_site = |at: u64| {
        with(&[&code, &WIDE], move |file| {
            file.data(".smp_locks", data, &distance(at).to_le_bytes())
        })
    };
    choose(&with_site(TEXT + 11), AT, Some(4)).unwrap();
    let error = refusal(&with_site(TEXT + 10), AT, Tactic::Hop);
    assert_eq!(error, Refusal::NoPadding);
}

/// Functions one after the other, as wide as they are.
fn image(functions: &[&[u8]]) -> Image {
    with(functions, |file| file)
}

fn with(functions: &[&[u8]], more: impl Fn(ElfFile) -> ElfFile) -> Image {
    const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];
    let mut file = ElfFile::new().text(TEXT, &functions.concat());
    let mut at = TEXT;
    for (name, code) in NAMES.into_iter().zip(functions) {
        // Padding is no part of a function.
        let padding = code.iter().rev().take_while(|byte| **byte == INT3).count();
        file = file.function(name, at, (code.len() - padding) as u64);
        at += code.len() as u64;
    }
    Image::parse(&more(file).build()).unwrap()
}

fn refusal(image: &Image, at: Gva, tactic: Tactic) -> Refusal {
    match choose(image, at, Some(tactic.number())).unwrap_err() {
        TacticError::Refused { why, .. } => why,
        other => panic!("{other}"),
    }
}

const AT: Gva = Gva(TEXT);
/// push rbx; mov rbp, rsp; xor eax, eax; pop rbx; ret
const SMALL: [u8; 8] = [0x53, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x5b, 0xc3];
/// mov eax, 1; ret
const WIDE: [u8; 6] = [0xb8, 1, 0, 0, 0, 0xc3];

#[test]
fn a_long_instruction_is_replaced_alone() {
    let image = image(&[&WIDE]);
    let place = choose(&image, AT, None).unwrap();
    assert_eq!((place.tactic, place.length), (Tactic::One, 5));
    assert_eq!(place.displaced, WIDE[..5]);
    assert!(place.inner.is_empty());
    let to = Gva(TEXT + 0x10_0000);
    let detour = place.detour().unwrap().code(to).unwrap();
    assert_eq!(detour[..5], WIDE[..5]);
    let pokes = place.pokes(to).unwrap();
    assert_eq!(pokes[0].expected.as_slice(), &WIDE[..5]);
    assert_eq!(pokes[0].new.as_slice(), jump(AT, to).unwrap());
    assert_eq!(place.pokes(Gva(TEXT - (1 << 32))), None);
}

#[test]
fn several_are_whole_and_leave_the_end_of_the_last() {
    let image = image(&[&SMALL]);
    let place = choose(&image, AT, None).unwrap();
    assert_eq!((place.tactic, place.length), (Tactic::Several, 5));
    assert_eq!(place.displaced, SMALL[..6]);
    assert_eq!(place.inner, [Gva(TEXT + 1), Gva(TEXT + 4)]);
    assert_eq!(place.end(), Gva(TEXT + 6));
    let pokes = place.pokes(Gva(TEXT + 0x1000)).unwrap();
    assert_eq!(pokes[0].expected.as_slice(), &SMALL[..6]);
    assert_eq!(pokes[0].new.as_slice()[5], SMALL[5]);
}

#[test]
fn what_may_land_inside_is_refused_wherever_it_comes_from() {
    let expected = Refusal::Landing { to: Gva(TEXT + 1) };
    // A short branch of the function itself: jmp to the second instruction.
    let own = [&SMALL[..6], &[0xeb, 0xf9]].concat();
    assert_eq!(refusal(&image(&[&own]), AT, Tactic::Several), expected);
    // A call of another function, at any byte.
    let call = [0x48, 0xb8, 0xe8, 0xf2, 0xff, 0xff, 0xff, 0, 0, 0, 0xc3];
    assert_eq!(
        refusal(&image(&[&SMALL, &call]), AT, Tactic::Several),
        expected
    );
    // Words of data: an address, a distance, and an entry in a table of distances.
    let data = TEXT + 0x1000;
    let word = with(&[&SMALL], |file| file.list(".rodata", data, &[TEXT + 1]));
    assert_eq!(refusal(&word, AT, Tactic::Several), expected);
    let distance = |from: u64| i32::try_from((TEXT + 1).wrapping_sub(from).cast_signed()).unwrap();
    let own = distance(data + 4).to_le_bytes();
    let relative = with(&[&SMALL], |file| {
        file.data(".rodata", data, &[&[0; 4], &own[..]].concat())
    });
    assert_eq!(refusal(&relative, AT, Tactic::Several), expected);
    // lea rcx, [rip+table]; movsxd rax, [rcx+rax*4]; add rax, rcx; jmp rax
    let lea = i32::try_from(data - (TEXT + 8 + 7)).unwrap().to_le_bytes();
    let switch = [
        &[0x48, 0x8d, 0x0d],
        &lea[..],
        &[0x48, 0x63, 0x04, 0x81, 0x48, 0x01, 0xc8, 0xff, 0xe0],
    ]
    .concat();
    let entries = [distance(data) + 3, distance(data)].map(i32::to_le_bytes);
    let table = with(&[&SMALL, &switch], |file| {
        file.data(".rodata", data, &entries.concat())
    });
    assert_eq!(refusal(&table, AT, Tactic::Several), expected);
    // A name.
    let named = with(&[&SMALL], |file| file.label("inner", TEXT + 1));
    assert_eq!(refusal(&named, AT, Tactic::Several), expected);
    // Tables that say how to unwind name every instruction.
    let unwound = with(&[&SMALL], |file| {
        file.data(".orc_unwind_ip", data, &[&[0; 4], &own[..]].concat())
    });
    choose(&unwound, AT, Some(3)).unwrap();
}

#[test]
fn what_may_fault_and_what_the_kernel_rewrites_is_left() {
    let data = TEXT + 0x1000;
    let distance = |to: u64| i32::try_from(to.wrapping_sub(data).cast_signed()).unwrap();
    let list = |name, to: u64| {
        with(&[&WIDE], move |file| {
            file.data(name, data, &distance(to).to_le_bytes())
        })
    };
    assert_eq!(
        refusal(&list("__ex_table", TEXT), AT, Tactic::One),
        Refusal::Faults { at: AT }
    );
    let label = Refusal::Owned {
        at: AT,
        what: "a return",
    };
    let rewritten = list(".return_sites", TEXT);
    assert_eq!(refusal(&rewritten, AT, Tactic::One), label);
    assert_eq!(refusal(&rewritten, AT, Tactic::Breakpoint), label);
}

#[test]
fn a_hop_takes_padding_that_is_free() {
    // jne to itself would be several; here the second of two one-byte instructions is a target.
    let code = [
        0x31, 0xc0, 0x53, 0x75, 0xfd, 0xc3, INT3, INT3, INT3, INT3, INT3, INT3,
    ];
    let image = image(&[&code, &WIDE]);
    assert!(matches!(
        refusal(&image, AT, Tactic::Several),
        Refusal::Landing { .. }
    ));
    let place = choose(&image, AT, None).unwrap();
    assert_eq!((place.tactic, place.length), (Tactic::Hop, 2));
    let padding = place.padding.unwrap();
    assert_eq!(padding.at, Gva(TEXT + 6));
    let to = Gva(TEXT + 0x1000);
    let pokes = place.pokes(to).unwrap();
    assert_eq!(pokes[0].at, padding.at);
    assert_eq!(pokes[0].new.as_slice(), jump(padding.at, to).unwrap());
    assert_eq!(pokes[1].new.as_slice(), [0xeb, 4]);
    // With a byte of it taken there is none.
    let taken = BTreeSet::from([Gva(TEXT + 9)]);
    let error = choose_beside(&image, AT, Some(4), &taken).unwrap_err();
    assert!(error.to_string().contains("no 5 bytes of free padding"));
    // Then a breakpoint is left.
    let place = choose_beside(&image, AT, None, &taken).unwrap();
    assert_eq!((place.tactic, place.length), (Tactic::Breakpoint, 1));
    assert_eq!(place.pokes(to).unwrap()[0].new.as_slice(), [INT3, 0xc0]);
    let place = place.leaving_by(0xf7, &image).unwrap();
    assert_eq!(place.length, 2);
    assert_eq!(place.pokes(to).unwrap()[0].new.as_slice(), [0xe6, 0xf7]);
    // One byte has no room for it.
    let short = choose(&image, Gva(TEXT + 2), Some(5)).unwrap();
    assert_eq!(
        short.leaving_by(0xf7, &image),
        Err(Refusal::TooShort {
            length: 1,
            needed: 2
        })
    );
}

#[test]
fn a_place_is_the_beginning_of_an_instruction() {
    let image = image(&[&SMALL, &[0x06, 0x90, 0x90, 0x90, 0x90, 0x90]]);
    let error = |at| choose(&image, Gva(at), None).unwrap_err();
    assert_eq!(
        error(TEXT + 2).to_string(),
        "0xffffffff80100002 is inside the instruction at 0xffffffff80100001: use that address"
    );
    assert_eq!(
        error(TEXT - 1),
        TacticError::NoFunction { at: Gva(TEXT - 1) }
    );
    assert!(matches!(error(TEXT + 8), TacticError::NotCode { .. }));
    // After bytes that are none.
    assert!(matches!(error(TEXT + 10), TacticError::NotCode { .. }));
    assert_eq!(choose(&image, AT, Some(6)), Err(TacticError::Unknown(6)));
    assert_eq!(refusal(&image, AT, Tactic::Site), Refusal::NoSite);
    assert!(matches!(
        refusal(&image, AT, Tactic::One),
        Refusal::TooShort {
            length: 1,
            needed: 5
        }
    ));
    assert!(matches!(
        refusal(&image, Gva(TEXT + 6), Tactic::Several),
        Refusal::PastEnd { .. }
    ));
}

#[test]
fn a_site_is_the_first_choice_and_belongs_to_nobody_else() {
    let code = [0x0f, 0x1f, 0x44, 0, 0, 0xc3];
    let image = with(&[&code], |file| {
        file.list("__patchable_function_entries", TEXT + 0x1000, &[TEXT])
    });
    let place = choose(&image, AT, None).unwrap();
    assert_eq!(place.tactic, Tactic::Site);
    assert_eq!(place.detour(), None);
    assert!(matches!(
        refusal(&image, AT, Tactic::One),
        Refusal::Owned {
            what: "a patch site",
            ..
        }
    ));
}

/// Where a language's exceptions are caught, a call that unwinds comes back between two instructions; only at a
/// function's entry nothing was called before.
#[test]
fn where_exceptions_are_caught_only_entries_have_several_displaced() {
    // push rax; then what is SMALL, one byte later
    let code = [&[0x50][..], &SMALL[..6], &[0x5b, 0x58, 0xc3]].concat();
    let later = Gva(TEXT + 1);
    let table = |file: ElfFile| file.data(".gcc_except_table", TEXT + 0x1000, &[0xff; 16]);
    let (plain, catching) = (image(&[&code]), with(&[&code], table));
    choose(&plain, later, Some(Tactic::Several.number())).unwrap();
    assert_eq!(refusal(&catching, later, Tactic::Several), Refusal::Catches);
    choose(&catching, AT, Some(Tactic::Several.number())).unwrap();
    // One instruction has no inside.
    let wide = [&[0x50][..], &WIDE[..5], &[0x58, 0xc3]].concat();
    choose(&with(&[&wide], table), later, Some(Tactic::One.number())).unwrap();
}

/// A jump of five bytes writes over what begins at its last byte, and not over what begins after it.
#[test]
fn a_landing_at_the_last_byte_counts_and_one_after_it_does_not() {
    let named = |at: u64| with(&[&SMALL], |file| file.label("inner", TEXT + at));
    let to = Gva(TEXT + 4);
    assert_eq!(
        refusal(&named(4), AT, Tactic::Several),
        Refusal::Landing { to }
    );
    let place = choose(&named(6), AT, None).unwrap();
    assert_eq!(place.tactic, Tactic::Several);
    // A breakpoint that is a port write takes two bytes.
    let code = [0x31, 0xc0, 0x53, 0x5b, 0xc3];
    let inside = with(&[&code], |file| {
        file.list(".rodata", TEXT + 0x1000, &[TEXT + 1])
    });
    let place = choose(&inside, AT, Some(5)).unwrap();
    let to = Gva(TEXT + 1);
    assert_eq!(
        place.leaving_by(0xf7, &inside),
        Err(Refusal::Landing { to })
    );
}

/// An image can be all padding: what is looked at is what a short jump reaches.
#[test]
fn of_long_padding_only_what_is_in_reach_is_looked_at() {
    let at = Gva(1 << 41);
    let all = |start: u64, end: u64| {
        let (start, end) = (Gva(start), Gva(end));
        let found: Vec<Gva> = in_reach(TextRange { start, end }, at).collect();
        Some((found.first()?.0, found.last()?.0, found.len()))
    };
    let (lowest, highest) = (at.0 - HOP_REACH, at.0 + HOP_REACH);
    assert_eq!(all(1 << 40, 1 << 42), Some((lowest, highest, 261)));
    assert_eq!(all(at.0 + 10, at.0 + 16), Some((at.0 + 10, at.0 + 11, 2)));
    assert_eq!(all(at.0 + 10, at.0 + 14), None);
    assert_eq!(all(1 << 40, at.0 - 200), None);
    assert_eq!(all(at.0 + 200, 1 << 42), None);
}

#[test]
fn padding_that_something_leads_to_is_not_free() {
    let code = [0x31, 0xc0, 0x53, 0x75, 0xfd, 0xc3];
    let padded = [&code[..], &[INT3; 6]].concat();
    let tactic = |image: &Image| choose(image, AT, None).unwrap().tactic;
    assert_eq!(tactic(&image(&[&padded, &WIDE])), Tactic::Hop);
    let data = TEXT + 0x1000;
    let led = with(&[&padded, &WIDE], |file| {
        file.list(".rodata", data, &[TEXT + 8])
    });
    assert_eq!(tactic(&led), Tactic::Breakpoint);
}

/// What belongs to somebody else is left alone to the byte.
#[test]
fn only_what_overlaps_is_owned() {
    use image::LockSite;
    let owned = |at: u64| {
        let mut image = image(&[&WIDE, &WIDE, &WIDE]);
        image.locks.push(LockSite {
            address: Gva(TEXT + at),
            function: FunctionId(1),
        });
        choose(&image, Gva(TEXT + 6), Some(2)).is_err()
    };
    let found: Vec<bool> = [5, 6, 10, 11].map(owned).to_vec();
    assert_eq!(found, [false, true, true, false]);
    // After the function's own site there is room.
    let code = [&[0x0f, 0x1f, 0x44, 0, 0][..], &WIDE].concat();
    let image = with(&[&code], |file| {
        file.list("__patchable_function_entries", TEXT + 0x1000, &[TEXT])
    });
    let place = choose(&image, Gva(TEXT + 5), None).unwrap();
    assert_eq!(place.tactic, Tactic::One);
}

/// One instruction at the entry is certain to be code whatever is near it; anything else is not.
#[test]
fn near_what_is_no_code_only_the_entry_is_certain() {
    // mov eax, 1; push rax; mov rbp, rsp; xor eax, eax; then what is no instruction.
    let code = [0xb8, 1, 0, 0, 0, 0x50, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0xc3];
    let doubtful = image(&[&code, &[0x06, 0x90, 0x90, 0x90, 0x90, 0x90]]);
    assert_eq!(choose(&doubtful, AT, None).unwrap().tactic, Tactic::One);
    let inside = refusal(&doubtful, Gva(TEXT + 5), Tactic::Several);
    assert!(matches!(inside, Refusal::Doubtful { .. }), "{inside}");
    let several = image(&[&SMALL, &[0x06, 0x90, 0x90, 0x90, 0x90, 0x90]]);
    let entry = refusal(&several, AT, Tactic::Several);
    assert!(matches!(entry, Refusal::Doubtful { .. }), "{entry}");
    // mov eax, 1 in the middle.
    let code = [0x50, 0xb8, 1, 0, 0, 0, 0x58, 0xc3];
    let single = image(&[&code, &[0x06, 0x90, 0x90, 0x90, 0x90, 0x90]]);
    let middle = refusal(&single, Gva(TEXT + 1), Tactic::One);
    assert!(matches!(middle, Refusal::Doubtful { .. }), "{middle}");
}
