//! One file of records on a disk that is full, or becomes so.

use super::*;

/// A disk of limited size, which takes what fits of each write.
pub(super) struct Disk {
    pub bytes: Vec<u8>,
    pub room: usize,
}

impl std::io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let fits = bytes.len().min(self.room - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..fits]);
        if fits == 0 {
            Err(std::io::ErrorKind::StorageFull.into())
        } else {
            Ok(fits)
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl lane::Storage for Disk {
    const HAS_BESIDE: bool = false;

    fn append(&mut self, records: &[u8], _beside: &[u8]) -> std::io::Result<()> {
        std::io::Write::write_all(self, records)
    }

    fn cut(&mut self, length: block::Length) -> std::io::Result<()> {
        self.bytes
            .truncate(usize::try_from(length.records).unwrap());
        Ok(())
    }
}

#[test]
fn a_full_disk_loses_what_it_says_and_no_record_is_torn() {
    let disk = Disk {
        bytes: Vec::new(),
        room: 100,
    };
    let mut lane = Lane::new(disk, "1000.dat".into());
    let word = word(Kind::Entry, 0x1000);
    for time in 0..2 {
        lane.block().entry(time, word);
    }
    lane.flush().unwrap();
    for time in 2..5 {
        lane.block().entry(time, word);
    }
    let error = lane.flush().unwrap_err();
    assert!(
        error.to_string().starts_with("cannot write 1000.dat: "),
        "{error}"
    );
    assert!(
        error.to_string().contains("3 records are missing"),
        "{error}"
    );
    lane.block().entry(5, word);
    lane.block().lost(5, 10);
    lane.flush().unwrap_err();
    assert_eq!(lane.storage().bytes.len() % 16, 0);
    lane.storage().room = 1000;
    lane.block().entry(6, word);
    lane.flush().unwrap();
    let (chunks, rest) = lane.storage().bytes.as_chunks::<16>();
    assert!(rest.is_empty());
    let written: Vec<(u64, Kind)> = chunks
        .iter()
        .map(|c| Record::unpack(*c).unwrap())
        .map(|r| (r.time, r.kind))
        .collect();
    use Kind::{Entry, Exit, Lost};
    let entries = [(0, Entry), (0, Exit), (1, Entry), (1, Exit)];
    // Four entries, and the ten that the ring had lost.
    assert_eq!(written[..4], entries);
    assert_eq!(written.iter().filter(|(_, kind)| *kind == Entry).count(), 3);
    let said: u64 = chunks
        .iter()
        .filter_map(|c| Record::unpack(*c).filter(|r| r.kind == Lost))
        .map(|r| r.value)
        .sum();
    assert_eq!(said, 14);
    assert_eq!(
        (lane.totals.entries, lane.totals.dropped, lane.totals.lost),
        (3, 4, 10)
    );
}

#[test]
fn a_disk_that_stays_full_says_the_loss_in_place_of_the_last_event() {
    let disk = Disk {
        bytes: Vec::new(),
        room: 70,
    };
    let mut lane = Lane::new(disk, "1000.dat".into());
    let word = word(Kind::Entry, 0x1000);
    let last = |lane: &mut Lane<Disk>| {
        let bytes = &lane.storage().bytes;
        assert_eq!(bytes.len() % 16, 0);
        let last = Record::unpack(*bytes.last_chunk().unwrap()).unwrap();
        (bytes.len() / 16, last.time, last.kind, last.value)
    };
    for time in 0..2 {
        lane.block().entry(time, word);
    }
    lane.flush().unwrap();
    lane.say_in_place();
    assert_eq!(last(&mut lane).0, 4, "nothing is missing");
    lane.block().entry(2, word);
    lane.block().lost(3, 10);
    lane.flush().unwrap_err();
    lane.say_in_place();
    // The second entry gave its place: itself, the third, and the ten that the ring had lost.
    assert_eq!(last(&mut lane), (3, 1, Kind::Lost, 12));
    assert_eq!((lane.totals.entries, lane.totals.dropped), (1, 2));
    lane.storage().room = 48;
    lane.block().entry(4, word);
    lane.flush().unwrap_err();
    lane.say_in_place();
    assert_eq!(last(&mut lane), (3, 1, Kind::Lost, 13));
    assert_eq!((lane.totals.entries, lane.totals.dropped), (1, 3));
}

/// Two files with room for so many bytes of records; the one beside takes all.
#[derive(Default)]
struct Both {
    records: Vec<u8>,
    beside: Vec<u8>,
    room: usize,
    /// So often they cannot be cut.
    uncut: u32,
}

impl lane::Storage for Both {
    const HAS_BESIDE: bool = true;

    fn append(&mut self, records: &[u8], beside: &[u8]) -> std::io::Result<()> {
        self.beside.extend_from_slice(beside);
        let left = self.room.saturating_sub(self.records.len());
        let fits = records.len().min(left);
        self.records.extend_from_slice(&records[..fits]);
        if fits < records.len() {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn cut(&mut self, length: block::Length) -> std::io::Result<()> {
        if let Some(left) = self.uncut.checked_sub(1) {
            self.uncut = left;
            return Err(std::io::ErrorKind::Other.into());
        }
        let [records, beside] =
            [length.records, length.beside].map(|length| usize::try_from(length).unwrap());
        self.records.truncate(records);
        self.beside.truncate(beside);
        Ok(())
    }
}

/// A lane whose two files have room for 40 bytes.
fn two_files() -> Lane<Both> {
    let disk = Both {
        room: 40,
        ..Both::default()
    };
    Lane::new(disk, "1000.dat".into())
}

fn entry(time: u64) -> Record {
    Record {
        time,
        kind: Kind::Entry,
        value: 0x1000,
        depth: 0,
        has_values: false,
    }
}

#[test]
fn values_beside_a_record_go_with_it() {
    let mut lane = two_files();
    lane.block().step(entry(1), &[7; 8], false, 3);
    assert_eq!(lane.waiting(), 16);
    lane.block().step(entry(2), &[8; 8], true, 4);
    assert_eq!(lane.waiting(), 40);
    lane.flush().unwrap();
    let side = [&[3, 0x80][..], &[7; 8], &[4, 0]].concat();
    assert_eq!(lane.storage().beside, side);
    lane.block().step(entry(3), &[9; 8], false, 5);
    lane.flush().unwrap_err();
    assert_eq!(lane.storage().beside, side);
    // The last one gives its place: itself, and the one that found no room.
    lane.say_in_place();
    assert_eq!(lane.storage().beside, side);
    let (records, _) = lane.storage().records.as_chunks::<16>();
    let last = Record::unpack(*records.last().unwrap()).unwrap();
    assert_eq!((last.time, last.kind, last.value), (2, Kind::Lost, 2));
    // A loss has no values, and what stands beside it says so.
    lane.storage().room = 0;
    lane.block().step(entry(4), &[9; 8], false, 5);
    lane.flush().unwrap_err();
    lane.storage().room = 100;
    lane.block().step(entry(5), &[9; 8], false, 6);
    lane.flush().unwrap();
    let more = [&[6, 0][..], &[6, 0x80], &[9; 8]].concat();
    assert_eq!(lane.storage().beside, [side, more].concat());
}

/// What stands beside a record is found by its number: nothing may come after what belongs to a record that is not there.
#[test]
fn a_thread_whose_files_cannot_be_cut_goes_on_when_they_can_be() {
    for uncut in 1..4 {
        let mut lane = two_files();
        lane.block().step(entry(1), &[], true, 1);
        lane.flush().unwrap();
        lane.storage().uncut = uncut;
        // Of the second record there is a half.
        (2..4).for_each(|time| lane.block().step(entry(time), &[], true, 2));
        lane.flush().unwrap_err();
        lane.storage().room = 1000;
        let mut written = vec![1];
        for time in 4..8 {
            lane.block().step(entry(time), &[], true, 3);
            if lane.flush().is_ok() {
                written.push(time);
            }
        }
        let Both {
            records, beside, ..
        } = lane.storage();
        let (records, torn) = records.as_chunks::<16>();
        assert_eq!((torn.len(), beside.len()), (0, 2 * records.len()));
        let records: Vec<Record> = records
            .iter()
            .map(|one| Record::unpack(*one).unwrap())
            .collect();
        let of = |kind: Kind| records.iter().filter(move |one| one.kind == kind);
        let times: Vec<u64> = of(Kind::Entry).map(|one| one.time).collect();
        assert_eq!(times, written, "{uncut}");
        let said: u64 = of(Kind::Lost).map(|one| one.value).sum();
        assert_eq!(
            (said, lane.totals.dropped),
            (7 - times.len() as u64, said),
            "{uncut}"
        );
        assert!(times.len() > 2, "{uncut}");
    }
}
