use super::*;
use crate::mock::{MockTarget, REGION_START};
use crate::target::TextMemory;
use terms::region::Region;

const ENTRIES: u64 = 4;

fn entry(at: u64) -> Entry {
    let ours = SiteBytes::new([0xe9, 1, 2, 3, 4]);
    Entry {
        at: Gva(at),
        function: FunctionId(7),
        sessions: SessionSet::default().with(3),
        original: SiteBytes::new([0x0f, 0x1f, 0x44, 0, 0]),
        ours,
        before: ours,
    }
}

fn journal() -> (MockTarget, Journal) {
    let mut target = MockTarget::new(1, 1 << 21);
    let journal = Journal::begin(&mut target, REGION_START, ENTRIES).unwrap();
    (target, journal)
}

fn places(target: &MockTarget) -> Vec<u64> {
    let read = read(target, target.region(), REGION_START).unwrap();
    read.iter().map(|entry| entry.at.0).collect()
}

#[test]
fn what_is_noted_is_read_until_it_is_crossed_out() {
    let (mut target, mut journal) = journal();
    assert_eq!(places(&target), [0u64; 0]);
    let long = SiteBytes::of(&[0x48; 19]).unwrap();
    let probe = Entry {
        original: long,
        ours: long.with_start(&[0xe9, 5, 6, 7, 8]),
        before: long.with_start(&[0xe9, 9, 9, 9, 9]),
        ..entry(0x30)
    };
    let slots = [(); 3].map(|()| journal.slot().unwrap());
    let first = [entry(0x10), entry(0x20), probe];
    let first = slots.into_iter().zip(first).collect();
    journal.write(&mut target, first).unwrap();
    assert_eq!(
        read(&target, target.region(), REGION_START).unwrap(),
        [entry(0x10), entry(0x20), probe]
    );
    journal.cross_out(&mut target, vec![slots[1]]).unwrap();
    assert_eq!(places(&target), [0x10, 0x30]);
    // The room is used again.
    let again = Entry {
        function: FunctionId(8),
        ..entry(0x10)
    };
    assert_eq!(journal.slot(), Ok(slots[1]));
    let second = vec![(slots[1], entry(0x40)), (slots[0], again)];
    journal.write(&mut target, second).unwrap();
    assert_eq!(places(&target), [0x10, 0x40, 0x30]);
    assert_eq!(
        read(&target, target.region(), REGION_START).unwrap()[0],
        again
    );
    let last = journal.slot().unwrap();
    journal
        .write(&mut target, vec![(last, entry(0x50))])
        .unwrap();
    let full = journal.slot();
    assert_eq!(full, Err(JournalError::Full { entries: ENTRIES }));
    assert_eq!(places(&target), [0x10, 0x40, 0x30, 0x50]);
}

#[test]
fn a_breakpoint_over_what_is_ours_is_the_guests() {
    let entry = Entry {
        before: SiteBytes::new([0xe9, 4, 3, 2, 1]),
        ..entry(0x10)
    };
    let found = |bytes| entry.found(SiteBytes::new(bytes));
    assert_eq!(found([0x0f, 0x1f, 0x44, 0, 0]), Found::Original);
    for ours in [[0xe9, 1, 2, 3, 4], [0xe9, 4, 3, 2, 1]] {
        assert_eq!(found(ours), Found::Ours);
        let [_, distance @ ..] = ours;
        let [first, second, third, fourth] = distance;
        let covered = [0xcc, first, second, third, fourth];
        assert_eq!(found(covered), Found::Covered);
    }
    let is_others = |bytes| matches!(found(bytes), Found::Others { .. });
    assert!(is_others([0xe8, 1, 2, 3, 4]));
    // Over its own instruction it is no business of ours.
    assert!(is_others([0xcc, 0x1f, 0x44, 0, 0]) && is_others([0xcc, 1, 2, 3, 5]));
}

/// Who is killed has written the first bytes, up to the end of a page or to any other.
#[test]
fn a_write_that_was_cut_off_is_ours() {
    let original = [0x0f, 0x1f, 0x44, 0, 0];
    let (first, second) = ([0xe9, 1, 2, 3, 4], [0xe9, 5, 6, 7, 8]);
    let patched = entry(0x10);
    let changed = Entry {
        ours: SiteBytes::new(second),
        before: SiteBytes::new(first),
        ..patched
    };
    let cut = |new: [u8; 5], old: [u8; 5], at: usize| {
        let mut bytes = old;
        bytes[..at].copy_from_slice(&new[..at]);
        SiteBytes::new(bytes)
    };
    for at in 1..5 {
        for (entry, new, old) in [
            (patched, first, original),
            (patched, original, first),
            (changed, second, first),
            (changed, first, second),
            (changed, original, second),
            (changed, original, first),
        ] {
            let bytes = cut(new, old, at);
            let found = entry.found(bytes);
            let is_known = matches!(found, Found::Cut | Found::Ours);
            assert!(is_known, "{new:x?} over {old:x?} up to {at}: {found:?}");
            // Somebody may have made a probe there since.
            let covered = bytes.with_start(&[0xcc]);
            let over_own = covered.as_slice()[1..] == original[1..];
            let is_covered = entry.found(covered) == Found::Covered;
            assert_eq!(is_covered, !over_own, "{covered:?}");
        }
        // The first that stood there had been changed by then.
        assert_ne!(changed.found(cut(second, original, at)), Found::Cut, "{at}");
    }
    let is_cut = |bytes| patched.found(SiteBytes::new(bytes)) == Found::Cut;
    assert!(!is_cut(original) && !is_cut([0xe9, 1, 2, 3, 0x44]));
    assert!(!is_cut([0x0f, 1, 0x44, 3, 4]) && !is_cut([0x90; 5]));
    // A word is written as a whole.
    let word = |byte| SiteBytes::of(&[byte; 8]).unwrap();
    let half = word(1).with_start(&[2; 4]);
    let of_word = |at| Entry {
        original: word(1),
        ours: word(2),
        before: word(2),
        ..entry(at)
    };
    let is_cut = |at| of_word(at).found(half) == Found::Cut;
    assert!(!is_cut(0x10) && is_cut(0x14));
}

#[test]
fn where_what_somebody_has_changed_leads_is_known() {
    let word = |start: &[u8]| SiteBytes::of(&[0x90; 8]).unwrap().with_start(start);
    let entry = Entry {
        original: word(&[0x0f, 0x1f, 0x44, 0, 0]),
        ours: word(&[0xe9, 4, 3, 2, 1]),
        before: word(&[0xe9, 4, 3, 2, 1]),
        ..entry(0x1001)
    };
    let found = |start: &[u8]| entry.found(word(start));
    let others = |leads_to| Found::Others { leads_to };
    let to = others(Some(Gva(0x1006 + 0x0403_0201)));
    assert_eq!(found(&[0xe9, 1, 2, 3, 4]), to);
    assert_eq!(found(&[0xe8, 1, 2, 3, 4, 0x91]), to);
    assert_eq!(found(&[0xcc, 1, 2, 3, 4, 0xcc]), to);
    assert_eq!(found(&[0x0f, 1, 2, 3, 4]), others(None));
    let short = Entry {
        original: SiteBytes::of(&[0x90; 4]).unwrap(),
        ..entry
    };
    let found = short.found(SiteBytes::of(&[0xe9, 1, 2, 3]).unwrap());
    assert_eq!(found, others(None));
}

/// The guest can write there.
#[test]
fn nonsense_is_no_journal() {
    let (mut target, mut journal) = journal();
    let both = [0x10, 0x20].map(|at| (journal.slot().unwrap(), entry(at)));
    journal.write(&mut target, both.to_vec()).unwrap();
    let first = REGION_START.wrapping_add(64);
    for (at, byte) in [(14, 0), (14, 20), (14, 0xff)] {
        let mut damaged = target.clone();
        damaged
            .write_physical(first.wrapping_add(at), &[byte])
            .unwrap();
        assert_eq!(places(&damaged), [0x20], "{at} {byte}");
    }
    for (at, bytes) in [
        (0, [0; 8]),
        (8, [1; 8]),
        (16, [0xff; 8]),
        (24, [0xff; 8]),
        (24, [5, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let mut damaged = target.clone();
        damaged
            .write_physical(REGION_START.wrapping_add(at), &bytes)
            .unwrap();
        let error = read(&damaged, damaged.region(), REGION_START);
        let is_refused = matches!(error, Err(JournalError::None { .. }));
        assert!(is_refused, "{at}: {error:?}");
    }
    assert!(matches!(
        read(&target, target.region(), Gpa(1 << 60)),
        Err(JournalError::Memory(_))
    ));
    // All of it that is used lies in the tracing memory, or it is somebody else's.
    let bytes = HEADER_BYTES + 2 * u64::from(ENTRY);
    let window = |start, bytes| Region { start, bytes };
    let within = |window| read(&target, window, REGION_START).map(|entries| entries.len());
    assert_eq!(within(window(REGION_START, bytes)), Ok(2));
    for window in [
        window(REGION_START, bytes - 1),
        window(REGION_START.wrapping_add(8), bytes),
    ] {
        let error = within(window);
        let is_refused = matches!(error, Err(JournalError::None { .. }));
        assert!(is_refused, "{window:?}: {error:?}");
    }
}
