//! Stacks walked by tables of a few entries.

use proptest::prelude::*;

use image::TextRange;

use debuginfo::btf::Field;

use super::*;
use crate::linux::module::testing::Guest;
use crate::stack::{CopiedStack, Unwind};
use crate::target::TextMemory;

pub(in crate::linux) const TEXT: u64 = 0xffff_ffff_8100_0000;
const LISTS: u64 = 0xffff_ffff_8200_0000;
const STACK: u64 = 0xffff_c900_0001_0000;

/// An entry as since 6.4.
fn entry(stack: (u16, i16), base: (u16, i16), kind: u16) -> [u8; ENTRY] {
    let word = stack.0 | base.0 << 4 | kind << 8;
    let parts = [
        stack.1.to_le_bytes(),
        base.1.to_le_bytes(),
        word.to_le_bytes(),
    ];
    parts.concat().try_into().unwrap()
}

fn tables(kinds: Kinds, list: &[(u64, [u8; ENTRY])]) -> Orc {
    let addresses = list.iter().zip(0..).flat_map(|((offset, _), index)| {
        let own = LISTS + 4 * index;
        let distance = (TEXT + offset).wrapping_sub(own).cast_signed();
        i32::try_from(distance).unwrap().to_le_bytes()
    });
    let kernel = Tables {
        start: Gva(LISTS),
        addresses: addresses.collect(),
        entries: list.iter().flat_map(|(_, entry)| *entry).collect(),
    };
    Orc {
        kernel: Arc::new(kernel),
        modules: Vec::new(),
        gone: 0,
        kinds,
        of_module: None,
    }
}

fn copied(at: u64, frame: u64, words: &[u64]) -> CopiedStack {
    CopiedStack {
        at: Gva(TEXT.wrapping_add(at)),
        pointer: Gva(STACK),
        frame,
        bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
    }
}

fn offsets(walked: &crate::stack::Walked) -> Vec<u64> {
    let all = walked.addresses.iter();
    all.map(|at| at.0.wrapping_sub(TEXT)).collect()
}

/// At [`TEXT`] a leaf at 0; one at 0x100 that keeps its caller's frame pointer and goes by its own; entry code at 0x200; what an interrupt enters by at 0x300; and
/// nothing that is known from 0x400 on.
pub(in crate::linux) fn usual() -> Orc {
    tables(
        Kinds::Three,
        &[
            (0, entry((5, 8), (0, 0), 2)),
            (0x100, entry((5, 8), (0, 0), 2)),
            (0x101, entry((4, 16), (1, -16), 2)),
            (0x200, entry((5, 0), (0, 0), 3)),
            (0x280, entry((0, 0), (0, 0), 1)),
            (0x300, entry((5, 8), (0, 0), 4)),
            (0x400, entry((0, 0), (0, 0), 0)),
        ],
    )
}

#[test]
fn callers_are_found_by_stack_and_frame_pointers() {
    // The leaf's return address, then a frame of 0x101 with what it has pushed, then the entry code's.
    let words = [TEXT + 0x140, 7, 7, 0x1234, TEXT + 0x290];
    let stack = copied(0, STACK + 24, &words);
    let walked = usual().walk(&stack);
    assert_eq!(offsets(&walked), [0, 0x140, 0x290]);
    assert!(walked.is_whole);
    // One word less was copied.
    let walked = usual().walk(&copied(0, STACK + 24, &words[..4]));
    assert_eq!(offsets(&walked), [0, 0x140]);
    assert!(!walked.is_whole);
}

#[test]
fn a_call_that_never_returns_is_its_callers_last_instruction() {
    // It goes on at 0x100, where another function begins.
    let walked = usual().walk(&copied(0x80, 0, &[TEXT + 0x280, TEXT + 0x101]));
    // The address before 0x280 is entry code's with registers, of which there are not enough.
    assert_eq!(offsets(&walked), [0x80, 0x280]);
    assert!(!walked.is_whole);
    let walked = usual().walk(&copied(0x80, 0, &[TEXT + 0x281, 0]));
    assert_eq!(offsets(&walked), [0x80, 0x281]);
    assert!(walked.is_whole);
}

/// Its frames are larger than those that the kernel's tables would say of the same place.
#[test]
fn what_a_module_calls_and_is_called_by_is_found_by_its_own_tables() {
    let mut orc = usual();
    let module = tables(Kinds::Three, &[(0x1000, entry((5, 24), (0, 0), 2))]);
    let of = |name: &str| Module {
        at: Gva(0),
        name: name.into(),
        text: TextRange {
            start: Gva(TEXT + 0x1000),
            end: Gva(TEXT + 0x2000),
        },
    };
    // Another one was there before.
    orc.modules.push((of("gone"), usual().kernel));
    orc.modules.push((of("there"), module.kernel));
    // The leaf is called by the module, which is called by entry code.
    let words = [TEXT + 0x1010, 7, 7, TEXT + 0x290];
    let walked = orc.walk(&copied(0, 0, &words));
    assert_eq!(offsets(&walked), [0, 0x1010, 0x290]);
    assert!(walked.is_whole);
    let walked = orc.walk(&copied(0x1000, 0, &words[1..]));
    assert_eq!(
        (offsets(&walked), walked.is_whole),
        (vec![0x1000, 0x290], true)
    );
    // Past its end nothing is known.
    let walked = orc.walk(&copied(0x2000, 0, &words[1..]));
    assert!(!walked.is_whole, "{walked:?}");
}

/// A guest whose modules say how their functions keep their callers: one entry each, whose frame has this many bytes.
fn load(guest: &mut Guest, at: u64, name: &str, frame: i16) -> Module {
    const TABLES: u64 = 0x2000;
    let text = guest.load_at(at, name, &["f"]);
    let (addresses, entries) = (at + TABLES, at + TABLES + 8);
    let distance = i32::try_from((text.0 - addresses).cast_signed()).unwrap();
    let kept = entry((5, frame), (0, 0), 2);
    for (at, bytes) in [
        (addresses, &distance.to_le_bytes()[..]),
        (entries, &kept[..]),
    ] {
        guest.target.write(Gva(at), bytes).unwrap();
    }
    for (word, value) in [(18, 1), (19, addresses), (20, entries)] {
        guest.set_word(name, word, value);
    }
    Module {
        at: Gva(at),
        name: name.into(),
        text: TextRange {
            start: text,
            end: Gva(text.0 + 0x1000),
        },
    }
}

/// What it is about is the order in which they come and go: a stack is walked by what was there last.
#[test]
fn tables_of_modules_are_read_when_they_come_and_kept_when_they_go() {
    const NAMES: [&str; 2] = ["one", "two"];
    let mut guest = Guest::new();
    guest.module("before", &["f"]);
    let at = guest.unload_last();
    let field = |offset, size| Field { offset, size };
    let mut orc = usual();
    orc.of_module = Some(OfModule {
        tables: guest.layout.tables,
        count: field(144, 4),
        addresses: field(152, 8),
        entries: field(160, 8),
    });
    // How many words lie between a module's frame and its caller.
    let frame = |orc: &Orc, module: &Module| {
        let words = [1, 2, 3, 4].map(|word| TEXT + 0x280 + word);
        let stack = CopiedStack {
            at: module.text.start,
            pointer: Gva(STACK),
            frame: 0,
            bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        };
        let walked = orc.walk(&stack);
        walked
            .addresses
            .get(1)
            .map(|caller| caller.0 - TEXT - 0x280)
    };
    let one = load(&mut guest, at, NAMES[0], 8);
    let orc = orc.and(&guest.target, std::slice::from_ref(&one));
    assert_eq!(frame(&orc, &one), Some(1));
    // It is read once, and is known after it has gone.
    guest.unload_last();
    let orc = orc.and(&guest.target, &[]);
    assert_eq!((frame(&orc, &one), orc.gone), (Some(1), 1));
    // In its place comes another one, and then one of its name.
    let two = load(&mut guest, at, NAMES[1], 16);
    let orc = orc.and(&guest.target, std::slice::from_ref(&two));
    assert_eq!((frame(&orc, &one), orc.gone), (Some(2), 1));
    guest.unload_last();
    let again = load(&mut guest, at, NAMES[0], 24);
    assert_eq!(again, one);
    let orc = orc.and(&guest.target, std::slice::from_ref(&again));
    assert_eq!((frame(&orc, &one), orc.gone), (Some(3), 2));
    // Without tables they cost something, too.
    let mut orc = orc;
    for number in 0..3000 {
        let of = Module {
            name: number.to_string().into(),
            ..one.clone()
        };
        orc = orc.and(&guest.target, &[of]);
    }
    assert!(orc.modules.len() <= 1024, "{}", orc.modules.len());
}

#[test]
fn what_was_interrupted_goes_on_where_it_was() {
    let mut words = vec![TEXT + 0x210];
    words.resize(22, 0);
    // Its frame pointer, address, segment and stack.
    words[1 + 4] = 0x77;
    words[1 + 16] = TEXT + 0x281;
    words[1 + 17] = 0x10;
    words[1 + 19] = STACK + 8 * 30;
    let walked = usual().walk(&copied(0, 0, &words));
    assert_eq!(offsets(&walked), [0, 0x210, 0x281]);
    assert!(walked.is_whole);
    // A program was.
    words[1 + 17] = 0x33;
    let walked = usual().walk(&copied(0, 0, &words));
    assert_eq!((offsets(&walked), walked.is_whole), (vec![0, 0x210], true));
    // The processor's own words alone, above one.
    let own = [0, TEXT + 0x290, 0x10, 0, STACK];
    let walked = usual().walk(&copied(0x300, 0, &own));
    assert_eq!(
        (offsets(&walked), walked.is_whole),
        (vec![0x300, 0x290], true)
    );
}

#[test]
fn older_entries_have_two_bits_and_one_for_the_end() {
    let kinds = Kinds::Two { end: 10 };
    let end = entry((0, 0), (0, 0), 4);
    let list = [
        (0, entry((5, 8), (0, 0), 0)),
        (0x100, end),
        (0x200, entry((0, 0), (0, 0), 0)),
    ];
    let walk = |to: u64| tables(kinds, &list).walk(&copied(0, 0, &[TEXT + to]));
    assert_eq!(
        (offsets(&walk(0x110)), walk(0x110).is_whole),
        (vec![0, 0x110], true)
    );
    assert_eq!(
        (offsets(&walk(0x210)), walk(0x210).is_whole),
        (vec![0, 0x210], false)
    );
}

#[test]
fn what_is_not_known_ends_the_walk() {
    for (at, words) in [
        // No caller's address, and one in nobody's text.
        (0, &[0][..]),
        (0, &[TEXT + 0x450]),
        // Before the first entry.
        (u64::MAX, &[TEXT]),
        // Indirect, to where nothing was copied.
        (0x500, &[1]),
    ] {
        let walked = usual().walk(&copied(at, 0, words));
        assert!(!walked.is_whole && walked.addresses.len() < 3, "{walked:?}");
    }
    // A stack that leads round and round.
    let round = tables(
        Kinds::Three,
        &[
            (0, entry((5, 16), (0, 0), 2)),
            (0x100, entry((5, 0), (0, 0), 2)),
        ],
    );
    let walked = round.walk(&copied(0x10, 0, &[7, TEXT + 0x120, 7, 7]));
    assert_eq!(
        (offsets(&walked), walked.is_whole),
        (vec![0x10, 0x120], false)
    );
}

proptest! {
    #[test]
    fn any_tables_and_any_stack_are_walked_to_an_end(
        addresses in prop::collection::vec(any::<u8>(), 0..64),
        entries in prop::collection::vec(any::<u8>(), 0..96),
        at in 0..0x600_u64,
        frame in any::<u64>(),
        words in prop::collection::vec(prop_oneof![any::<u64>(), TEXT..TEXT + 0x600, STACK..STACK + 0x200], 0..32),
        is_old in any::<bool>(),
    ) {
        let kinds = if is_old { Kinds::Two { end: 10 } } else { Kinds::Three };
        let tables = Tables { start: Gva(LISTS), addresses, entries };
        let orc = Orc { kernel: Arc::new(tables), modules: Vec::new(), gone: 0, kinds, of_module: None };
        for orc in [orc, usual()] {
            let walked = orc.walk(&copied(at, frame, &words));
            prop_assert!((1..=64).contains(&walked.addresses.len()));
        }
    }
}
