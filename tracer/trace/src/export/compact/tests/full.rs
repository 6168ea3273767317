//! A disk that is full for a while, or from one write on: each record is in the file or is lost, and what describes the trace is
//! there.

use super::super::accounted::Accounted;
use super::super::blocks::{BlockFile, Blocks, Kind};
use super::super::looks;
use super::super::part::{self, Of, Part};
use super::super::unsaid::Ring;
use super::*;
use crate::export::budget::Budget;
use crate::export::whole::tests::Disk;

/// A trace on such a disk.
struct Full {
    file: Accounted<Disk>,
    time_ns: u64,
    /// Records of each ring that there were.
    made: BTreeMap<Ring, u64>,
}

impl Full {
    fn new(room: usize) -> Self {
        let disk = Disk {
            room: usize::MAX,
            ..Disk::default()
        };
        let file = BlockFile::begin(disk).unwrap();
        let mut full = Self {
            file: Accounted::of(file, "records.exo".into()),
            time_ns: 0,
            made: BTreeMap::new(),
        };
        full.leave(room);
        full
    }

    /// There is room for so many more bytes from now on.
    fn leave(&mut self, room: usize) {
        let disk = self.file.blocks.file();
        disk.room = disk.bytes.len().saturating_add(room);
    }

    /// So many calls of a vCPU, of which the ring has lost some already.
    fn calls(&mut self, vcpu: u16, calls: u64, lost: u64) {
        let mut coder = Coder::new(1);
        if lost > 0 {
            coder.lost(self.time_ns, lost);
        }
        for _ in 0..calls {
            self.time_ns += 10;
            let kind = RecordKind::Entry(FunctionId(0));
            let time_ns = self.time_ns;
            coder.record(&Record { time_ns, kind });
        }
        self.bring(Origin::Calls(vcpu), coder);
        *self.made.entry((1, vcpu)).or_default() += calls + lost;
    }

    /// So many steps of the host with a vCPU, and of the clock page a stall and a wait.
    fn host(&mut self, vcpu: u16, steps: u64, lost: u32) {
        let mut coder = Coder::new(1);
        let time_ns = self.time_ns;
        let mut step = |step| {
            let kind = RecordKind::Host(Box::new(step));
            coder.record(&Record { time_ns, kind });
        };
        if lost > 0 {
            step(HostStep::Lost(lost));
        }
        (0..steps).for_each(|_| step(HostStep::Entry(HostThread::default())));
        self.bring(Origin::Host(vcpu), coder);
        *self.made.entry((4, vcpu)).or_default() += steps + u64::from(lost);
        for kind in [
            RecordKind::Stall(1),
            RecordKind::Wait { vcpu, length_ns: 1 },
        ] {
            let mut coder = Coder::new(1);
            coder.record(&Record { time_ns, kind });
            self.bring(Origin::Clock, coder);
        }
    }

    fn bring(&mut self, origin: Origin, mut coder: Coder) {
        let until_ns = self.time_ns;
        let of = Of {
            origin,
            looked_ns: Some(until_ns),
            until_ns,
        };
        let parts: Vec<Part> = coder.take().parts;
        parts
            .into_iter()
            .for_each(|part| self.file.append(part, of));
    }

    fn describe(&mut self, kind: Kind, what: &str) {
        self.file.block(kind, what.into());
    }

    /// What is in the file at its end.
    fn read(&mut self) -> Read {
        let bytes = &self.file.blocks.file().bytes;
        let mut blocks = Blocks::of(&**bytes, bytes.len() as u64, Path::new("")).unwrap();
        let mut read = Read::default();
        while let Ok(block) = blocks.next().unwrap() {
            match block.kind {
                Kind::Records => {
                    let mut records: Vec<Record> = Vec::new();
                    let of = part::read(&block.contents, &mut records).unwrap();
                    let ring = looks::number(of.origin);
                    for record in records {
                        let lost = match record.kind {
                            RecordKind::Lost(count) if ring.0 < 3 => Some(count),
                            RecordKind::Host(step) if ring.0 == 4 => match *step {
                                HostStep::Lost(count) => Some(count.into()),
                                _ => None,
                            },
                            RecordKind::Stall(_) | RecordKind::Wait { .. } if ring.0 == 3 => {
                                continue;
                            }
                            RecordKind::Entry(_) if ring.0 == 1 => None,
                            other => panic!("{other:?} in {ring:?}"),
                        };
                        let place = match lost {
                            Some(_) => &mut read.lost,
                            None => &mut read.records,
                        };
                        *place.entry(ring).or_default() += lost.unwrap_or(1);
                    }
                }
                Kind::Looks | Kind::Round => {}
                kind => read
                    .described
                    .push((kind, String::from_utf8(block.contents).unwrap())),
            }
        }
        read
    }
}

/// What a file says, by ring.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    records: BTreeMap<Ring, u64>,
    lost: BTreeMap<Ring, u64>,
    described: Vec<(Kind, String)>,
}

impl Read {
    fn sum(of: &BTreeMap<Ring, u64>) -> u64 {
        of.values().sum()
    }
}

/// What describes the trace; whether each such block counts, and not only the last one.
const DESCRIBE: [(Kind, bool); 6] = [
    (Kind::Functions, true),
    (Kind::Metadata, false),
    (Kind::Points, false),
    (Kind::Probes, false),
    (Kind::Values, false),
    (Kind::Threads, true),
];

#[derive(Debug, Clone, Copy)]
enum Happens {
    Calls { vcpu: u16, calls: u64, lost: u64 },
    Host { vcpu: u16, steps: u64, lost: u32 },
    Described(Kind),
    Room(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    let kinds = DESCRIBE.map(|(kind, _)| kind);
    prop_oneof![
        3 => (0..3u16, 1..90u64, 0..3u64)
            .prop_map(|(vcpu, calls, lost)| Happens::Calls { vcpu, calls, lost }),
        2 => (0..2u16, 1..30u64, 0..3u32)
            .prop_map(|(vcpu, steps, lost)| Happens::Host { vcpu, steps, lost }),
        1 => prop::sample::select(kinds.to_vec()).prop_map(Happens::Described),
        1 => prop_oneof![0..40usize, 0..400usize, Just(100_000)].prop_map(Happens::Room),
    ]
}

proptest! {
    /// Also where it can be said of one ring what is lost and not of the next.
    #[test]
    fn each_record_is_there_or_lost_and_the_newest_descriptions_stay(
        happened in prop::collection::vec(happens(), 0..40),
        at_the_end in prop_oneof![0..200usize, Just(100_000)],
    ) {
        let mut full = Full::new(100_000);
        let mut described: Vec<(Kind, String)> = Vec::new();
        for (number, happens) in happened.into_iter().enumerate() {
            match happens {
                Happens::Calls { vcpu, calls, lost } => full.calls(vcpu, calls, lost),
                Happens::Host { vcpu, steps, lost } => full.host(vcpu, steps, lost),
                Happens::Room(room) => full.leave(room),
                Happens::Described(kind) => {
                    let what = number.to_string();
                    prop_assert!(full.file.block(kind, what.clone().into_bytes()));
                    described.push((kind, what));
                }
            }
        }
        full.leave(at_the_end);
        let before = full.read();
        full.file.say_all_dropped();
        let (read, kept) = (full.read(), full.file.kept());
        let [records, lost] = [&read.records, &read.lost].map(Read::sum);
        let made = Read::sum(&full.made);
        prop_assert_eq!((kept.records, kept.records + kept.lost), (records, made));
        if lost == kept.lost {
            for (ring, made) in &full.made {
                let [records, lost] = [&read.records, &read.lost].map(|of| of.get(ring).unwrap_or(&0));
                prop_assert_eq!(records + lost, *made, "{:?}", ring);
            }
        }
        if at_the_end == 100_000 {
            prop_assert_eq!(lost, kept.lost, "there is room to say all");
            prop_assert_eq!(&before.records, &read.records, "nothing is cut");
            let said = |all: &[(Kind, String)], kind| {
                let of_kind = all.iter().filter(|(one, _)| *one == kind);
                of_kind.map(|(_, what)| what.clone()).collect::<Vec<_>>()
            };
            for (kind, is_each) in DESCRIBE {
                let [made, read] = [&described, &read.described].map(|all| said(all, kind));
                match is_each {
                    true => prop_assert_eq!(read, made, "{:?}", kind),
                    false => prop_assert_eq!(read.last(), made.last(), "{:?}", kind),
                }
            }
        }
    }
}

/// A disk that stays full has the room that its last records give.
#[test]
fn what_describes_the_trace_is_written_again_where_records_give_their_place() {
    use Kind::{Functions, Metadata, Points, Probes, Threads, Values};
    let mut full = Full::new(100_000);
    full.describe(Metadata, "first");
    full.calls(0, 5, 0);
    full.calls(1, 60, 2);
    let kinds = [Functions, Points, Metadata, Probes, Threads, Values];
    for what in ["old", "new"] {
        kinds.iter().for_each(|kind| full.describe(*kind, what));
    }
    full.leave(0);
    full.calls(0, 7, 1);
    full.calls(1, 9, 0);
    full.file.say_all_dropped();
    let read = full.read();
    assert_eq!(read.records, BTreeMap::from([((1, 0), 5)]));
    assert_eq!(read.lost, BTreeMap::from([((1, 0), 8), ((1, 1), 71)]));
    let expected = [
        (Metadata, "first"),
        (Functions, "old"),
        (Threads, "old"),
        (Functions, "new"),
        (Points, "new"),
        (Metadata, "new"),
        (Probes, "new"),
        (Threads, "new"),
        (Values, "new"),
    ];
    let expected = expected.map(|(kind, what)| (kind, what.to_owned()));
    assert_eq!(read.described, expected);
    let kept = full.file.kept();
    assert_eq!((kept.records, kept.lost), (5, 79));
    let error = full.file.take_error().unwrap().to_string();
    assert!(error.contains("76 records are missing"), "{error}");
}

/// A loss that is said has no room for another one.
#[test]
fn a_loss_gives_its_place_with_the_records_before_it() {
    let mut full = Full::new(100_000);
    full.calls(0, 64, 0);
    full.calls(1, 60, 0);
    full.leave(0);
    (0..3).for_each(|vcpu| full.calls(vcpu, 10, 0));
    // Room to say what is lost of one ring.
    full.leave(60);
    full.calls(0, 10, 0);
    full.file.say_all_dropped();
    let read = full.read();
    assert_eq!(Read::sum(&read.records) + Read::sum(&read.lost), 164);
    assert_eq!(read.records, BTreeMap::from([((1, 0), 64)]));
    assert_eq!(full.file.kept().lost, 100);
}

/// There may be room for records and not for what describes them: nobody could read these.
#[test]
fn records_are_lost_until_what_describes_them_is_written() {
    use Kind::{Metadata, Points};
    let mut full = Full::new(100_000);
    full.leave(150);
    full.describe(Metadata, &"m".repeat(200));
    full.calls(0, 1, 0);
    full.describe(Points, &"old".repeat(100));
    full.calls(0, 1, 0);
    full.host(0, 1, 0);
    full.leave(20);
    full.describe(Points, "new");
    full.leave(1000);
    (0..2).for_each(|_| full.calls(0, 1, 0));
    full.file.say_all_dropped();
    let read = full.read();
    assert_eq!(read.lost, BTreeMap::from([((1, 0), 1)]));
    assert_eq!(read.records[&(1, 0)], 3);
    let kinds: Vec<_> = read
        .described
        .iter()
        .map(|(kind, what)| (*kind, what.len()))
        .collect();
    assert_eq!(kinds, [(Points, 3), (Metadata, 200)]);
    let kept = full.file.kept();
    assert_eq!((kept.records, kept.lost), (4, 1));
}

/// What comes after half a block would not be found.
#[test]
fn a_file_that_cannot_be_cut_goes_on_when_it_can_be() {
    for uncut in 1..4 {
        let mut full = Full::new(100_000);
        full.calls(0, 5, 0);
        // Of the next there is a part.
        full.leave(30);
        full.file.blocks.file().uncut = uncut;
        full.calls(0, 60, 0);
        full.leave(100_000);
        (0..2).for_each(|vcpu| full.calls(vcpu, 9, 0));
        full.file.say_all_dropped();
        let (read, kept) = (full.read(), full.file.kept());
        let [records, lost] = [&read.records, &read.lost].map(Read::sum);
        assert_eq!((records, lost), (kept.records, kept.lost), "{uncut}");
        assert_eq!(records + lost, Read::sum(&full.made), "{uncut}");
        let bytes = full.file.blocks.file().bytes.len();
        assert_eq!(kept.bytes, bytes as u64, "{uncut}");
        assert!(records > 5, "{uncut}: the last ones are there");
    }
}

/// The budget of a trace is not that of its end.
#[test]
fn a_trace_that_has_spent_its_budget_keeps_its_last_records_and_how_it_was_described() {
    let folder = tempfile::tempdir().unwrap();
    let [store, to] = ["store", "to"].map(|name| folder.path().join(name));
    let session = small();
    let mut writer = session.writer(&store);
    let bring = |writer: &mut CompactWriter, vcpu, from_ns| {
        let mut coder = Coder::new(STACK);
        let records = calls(&[(8, 1), (8, 2), (8, 3)], vcpu, true, from_ns);
        records.iter().for_each(|record| coder.record(record));
        writer.append(Origin::Calls(vcpu), coder.take(), from_ns + 10_000, None);
        writer.end_round();
    };
    bring(&mut writer, 0, 1000);
    writer.set_budget(&Budget::of(1));
    bring(&mut writer, 1, 20_000);
    let metadata = Metadata {
        image: "described at its end".into(),
        ..session.metadata()
    };
    writer.learn(&News::Metadata(metadata.into()));
    writer.finish(&[]).unwrap_err();
    let replayed = convert(&store, &to, false, &Watch::default()).unwrap();
    assert_eq!((replayed.tally.calls, replayed.tally.lost), (3, 3));
    let side = fs::read_to_string(to.join("exotrace.json")).unwrap();
    assert!(side.contains("described at its end"), "{side}");
}

/// Events that the host has told are no calls, and waits are nothing that could be missing: calls around them are certain.
#[test]
fn what_the_host_told_and_the_disk_did_not_take_is_lost_as_events() {
    let folder = tempfile::tempdir().unwrap();
    let [direct, store, to] = ["direct", "store", "to"].map(|name| folder.path().join(name));
    let happened = calls(&[(8, 1), (8, 2), (2, 1), (2, 1)], 0, true, 1000);
    let (before, after) = happened.split_at(2);
    let brought = |records: &[Record]| Brought {
        origin: Origin::Calls(0),
        records: records.to_vec(),
        until_ns: 10_000,
        looked_ns: None,
    };
    let halves = [before, after].map(|records| Session {
        rounds: vec![vec![brought(records)]],
        ..small()
    });
    let whole = Session {
        rounds: vec![vec![brought(before)], vec![brought(after)]],
        ..small()
    };
    whole.directly(&direct);
    let mut writer = whole.writer(&store);
    halves[0].write(&mut writer);
    let unwritable = fs::File::open(store.join(STORE_FILE)).unwrap();
    let good = std::mem::replace(writer.file(), unwritable);
    let time_ns = before[1].time_ns + 1;
    let step = || RecordKind::Host(Box::new(HostStep::Entry(HostThread::default())));
    let lost = RecordKind::Host(Box::new(HostStep::Lost(5)));
    let wait = RecordKind::Wait {
        vcpu: 0,
        length_ns: 1,
    };
    let told = [
        (Origin::Host(0), vec![step(), step(), lost]),
        (Origin::Clock, vec![wait]),
    ];
    for (origin, kinds) in told {
        let mut coder = Coder::new(1);
        let kinds = kinds.into_iter();
        kinds.for_each(|kind| coder.record(&Record { time_ns, kind }));
        writer.append(origin, coder.take(), time_ns, None);
    }
    *writer.file() = good;
    halves[1].write(&mut writer);
    let error = writer.finish(&[]).unwrap_err().to_string();
    assert!(error.contains("2 records are missing"), "{error}");
    let replayed = convert(&store, &to, false, &Watch::default()).unwrap();
    let side: serde_json::Value =
        serde_json::from_slice(&fs::read(to.join("exotrace.json")).unwrap()).unwrap();
    assert_eq!(
        (replayed.tally.lost, &side["events"]["lost"]),
        (7, &7.into())
    );
    for name in ["1000.dat", "1000.side"] {
        assert_eq!(contents(&to)[name], contents(&direct)[name], "{name}");
    }
}
