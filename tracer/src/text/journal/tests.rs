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
    let is_ours = |bytes| entry.is_ours(SiteBytes::new(bytes));
    assert!(is_ours([0xe9, 1, 2, 3, 4]) && is_ours([0xe9, 4, 3, 2, 1]));
    assert!(!is_ours([0x0f, 0x1f, 0x44, 0, 0]) && !is_ours([0xe8, 1, 2, 3, 4]));
    let covers = |bytes| entry.is_covered(SiteBytes::new(bytes)) && !is_ours(bytes);
    assert!(covers([0xcc, 1, 2, 3, 4]) && covers([0xcc, 4, 3, 2, 1]));
    // Over its own instruction it is no business of ours.
    assert!(!covers([0xcc, 0x1f, 0x44, 0, 0]) && !covers([0xcc, 1, 2, 3, 5]));
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
