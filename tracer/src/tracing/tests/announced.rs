//! What is written past a change that somebody asked for: text that the guest announces, and lock prefixes.

use image::symbol::{Symbol, SymbolKind, SymbolTable};
use image::testing::TEXT;
use image::{LockSite, TextRange};

use super::*;
use crate::points::locks::LockPrefixes;
use crate::target::TextMemory;

/// Where the guest says which text has come.
const NOTICE: Gva = Gva(0xffff_ffff_9000_0000);
/// The functions of the part, of which one has something else at its site.
const PART: std::ops::Range<u64> = 30..40;
const OTHER: u64 = 33;

fn site(function: u64) -> Gva {
    Gva(TEXT + 16 * function)
}

/// A guest with a part that comes.
fn with_part() -> (Tracing, MockGuest) {
    let mut image = nop_image(FUNCTIONS);
    image.parts.push(image::Part {
        name: "part".into(),
        text: TextRange {
            start: site(PART.start),
            end: site(PART.end),
        },
        at_start: false,
    });
    let notice = Symbol {
        address: NOTICE,
        size: 16,
        name: "text_notice".into(),
        display: "text_notice".into(),
        kind: SymbolKind::Object,
        global: true,
    };
    image.symbols = SymbolTable::new(image.symbols.iter().cloned().chain([notice]).collect());
    let (tracing, guest) = prepared_of(image, small(None));
    let mut target = guest.target();
    let page = Gpa(0x800_0000);
    target.map(NOTICE, page, 4096, Rights::ALL).unwrap();
    let words = [site(PART.start).0, 1].map(u64::to_le_bytes);
    target.write(NOTICE, words.as_flattened()).unwrap();
    target.write(site(OTHER), &[0xcc]).unwrap();
    drop(target);
    (tracing, guest)
}

/// Nothing told of them: neither how they were written, nor which were left out.
#[test]
fn sites_of_text_that_has_come_are_counted_with_all_others() {
    let (mut tracing, mut guest) = with_part();
    let changed = tracing.start(&guest, DEFAULT_SESSION, None, &everything());
    assert_eq!(changed.unwrap().patched, PART.start);
    assert_eq!(tracing.status().switched.stopped, PART.start);
    guest.pause = std::time::Duration::from_micros(70);
    tracing.announcement(&guest, 1);
    let status = tracing.status();
    assert_eq!((status.patched, status.switched.stopped), (39, 39));
    assert_eq!((status.looks, status.longest_look_us), (1, 70.0));
    let left = tracing.functions(Some("f33")).unwrap().functions.remove(0);
    assert_eq!(left.state, "skipped");
}

#[test]
fn lock_prefixes_are_counted_with_all_others() {
    let mut image = nop_image(FUNCTIONS);
    let at = |function: u64| site(function).wrapping_add(8);
    let lock = |number: u32| LockSite {
        address: at(number.into()),
        function: FunctionId(number),
    };
    image.locks = (0..5).map(lock).collect();
    let target = MockTarget::with_image(1, WINDOW, &image, Rights::ALL).unwrap();
    let (mut tracing, _) = prepared_of(image, small(None));
    let guest = MockGuest::new(target);
    for number in 0..5 {
        guest
            .target()
            .write(at(number), &[insn::lock::LOCK])
            .unwrap();
    }
    let mut counts = Vec::new();
    for to in [LockPrefixes::Off, LockPrefixes::Off, LockPrefixes::On] {
        let switched = tracing.switch_locks(&guest, to).unwrap().switched;
        counts.push((switched, tracing.status().switched.stopped));
    }
    assert_eq!(counts, [(5, 5), (0, 5), (5, 10)]);
}
