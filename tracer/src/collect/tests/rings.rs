//! Several rings, and several who read them.

use super::*;

/// It was once: each look of who asked for the status again and again made what was to be read of the first ring longer, and
/// the round never came to the second one, whose vCPU waited.
#[test]
fn what_is_read_of_a_ring_in_a_round_is_what_was_found_when_it_began() {
    const MANY: u64 = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let clock = paged(mock::HOST);
    let (guest, place, mut polled) = reader_of(Some(&output), clock, 1, 1 << 20);
    call(&guest, &place, MANY);
    let read_some = |continues: &mut Continues| polled.drain.read_some(0, None, continues);
    let mut continues = Continues::No;
    let mut read = 0;
    for turn in 0.. {
        read += read_some(&mut continues) as u64;
        if continues == Continues::No {
            break;
        }
        assert!(turn < 10, "{read} have been read, and it is not over");
        call(&guest, &place, MANY / 2);
        polled.lock().look();
    }
    assert_eq!(read, MANY, "the rest is for the next round");
    let mut backlog = Backlog::default();
    let _ = polled.lock().hand_over(&mut backlog);
    let looked: Vec<_> = backlog.drain().map(|batch| batch.looked_ns).collect();
    let (last, before) = looked.split_last().unwrap();
    assert!(last.is_some(), "all of what was found is there");
    assert!(before.iter().all(Option::is_none), "{looked:?}");
    let written = polled.lock().status()[0].written;
    assert!(written > MANY);
    polled.round();
    assert_eq!(polled.lock().status()[0].read, written);
    let kept = polled.finish().unwrap().unwrap().tally().calls;
    assert_eq!(kept, written - MANY);
}

/// A disk that takes nothing of one ring holds up who writes; who helps has read another one, and there it stays until it can be
/// written.
#[test]
fn who_helps_reads_another_ring_beside_who_makes_the_round() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let clock = paged(mock::HOST);
    let (guest, place, mut polled) = reader_of(Some(&output), clock, 2, 4096);
    let stuck = output.join("exotrace.json.new");
    pipe(&stuck);
    call_on(0, &guest, &place, 0..CALLS);
    call_on(1, &guest, &place, 0..2 * CALLS);
    polled.lock().describe(Metadata::default());
    thread::scope(|scope| {
        let drain = &polled.drain;
        let poller = scope.spawn(|| drain.round());
        let is_busy = comes(|| polled.told().busy_since.is_some() || poller.is_finished());
        let helper = scope.spawn(|| drain.help());
        let read = || {
            let status = drain.ask().status();
            (status[0].read, status[1].read)
        };
        let is_read = comes(|| read() == (CALLS, 2 * CALLS) || poller.is_finished());
        let is_stuck = !poller.is_finished() && !helper.is_finished();
        File::open(&stuck)
            .unwrap()
            .read_to_end(&mut Vec::new())
            .unwrap();
        assert!(is_busy && is_read && is_stuck);
        let count = poller.join().unwrap() as u64;
        assert_eq!(count, 3 * CALLS, "of the whole round");
        helper.join().unwrap();
    });
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(
        (written.tally().calls, written.tally().lost),
        (3 * CALLS, 0)
    );
}

/// Several read, while all rings are written to; who asks looks, reads out of turn, switches recording off and on, and copies
/// what the rings hold while nothing is recorded.
#[test]
fn whatever_is_asked_and_whoever_reads_nothing_is_lost_and_all_is_in_order() {
    const RINGS: u16 = 3;
    const TURNS: u64 = 8;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let clock = paged(mock::HOST);
    let (guest, place, mut polled) = reader_of(Some(&output), clock, RINGS, 1 << 18);
    let is_over = AtomicBool::new(false);
    let copy = &folder.path().join("copy");
    let asked = &AtomicUsize::new(0);
    let (made, refused) = thread::scope(|scope| {
        let (drain, is_over) = (&polled.drain, &is_over);
        scope.spawn(move || {
            while !is_over.load(SeqCst) {
                drain.help();
                yield_now();
            }
        });
        scope.spawn(move || {
            while !is_over.load(SeqCst) {
                drain.round();
            }
        });
        let asker = scope.spawn(move || {
            while !is_over.load(SeqCst) {
                let mut asking = drain.ask();
                asking.look();
                match asked.fetch_add(1, SeqCst) % 64 {
                    7 => asking.switch(false),
                    8 => asking.switch(true),
                    23 => {
                        let image = Arc::new(nop_image(FUNCTIONS));
                        let stream = Stream::of_functions(RINGS, WAITING_MAX);
                        let copy = Output::create(copy, true, &image, Metadata::default(), stream);
                        let dump = asking.dumping().begin(copy.unwrap(), false, |_| 0);
                        drop(asking);
                        dump.write(|| {}).0.unwrap();
                    }
                    _ => asking.refresh(),
                }
            }
        });
        let (mut made, mut refused) = ([0; RINGS as usize], 0);
        let mut ticks = NOW - 10_000_000;
        let mut is_read = true;
        for turn in 0.. {
            if asker.is_finished() || turn >= TURNS && asked.load(SeqCst) > 128 {
                break;
            }
            for (vcpu, made) in (0..).zip(&mut made) {
                for _ in 0..1 + (turn * 977 + u64::from(vcpu) * 331) % 20_000 {
                    ticks += 1;
                    match guest.call(&place, vcpu, FunctionId(0), ticks).unwrap() {
                        true => *made += 1,
                        false => refused += 1,
                    }
                }
            }
            // Rings that were not read would be written over.
            let read = || {
                polled
                    .lock()
                    .status()
                    .iter()
                    .map(|ring| ring.read)
                    .sum::<u64>()
            };
            is_read &= comes(|| read() == made.iter().sum::<u64>());
        }
        is_over.store(true, SeqCst);
        asker.join().unwrap();
        assert!(is_read, "what was made is not read");
        (made, refused)
    });
    polled.lock().switch(true);
    let written = polled.finish().unwrap().unwrap();
    let all = made.iter().sum();
    let tally = written.tally();
    assert_eq!((tally.calls, tally.lost), (all, refused));
    let side = std::fs::read(output.join("exotrace.json")).unwrap();
    let side: serde_json::Value = serde_json::from_slice(&side).unwrap();
    let vcpus = side["totals"].as_array().unwrap();
    let entries: Vec<_> = vcpus.iter().map(|vcpu| vcpu["entries"].as_u64()).collect();
    let expected: Vec<_> = made.iter().copied().map(Some).collect();
    assert_eq!(entries, expected, "{side}");
    assert!(vcpus.iter().all(|vcpu| vcpu["reordered"] == 0), "{side}");
}

/// Whoever reads a ring has come to its end: no ring is switched, or moved, long before another one.
#[test]
fn all_rings_change_at_once_when_nobody_reads_one() {
    let clock = paged(mock::HOST);
    let (guest, place, polled) = reader_of(None, clock, 2, 4096);
    polled.lock().switch(false);
    let is_recorded = || guest.call(&place, 0, FunctionId(0), NOW).unwrap();
    let cells: Vec<_> = place
        .cells
        .iter()
        .map(|cell| cell.wrapping_add(1024))
        .collect();
    let drain = &polled.drain;
    let on = || drain.ask().switch(true);
    let off = || drain.ask().switch(false);
    let moves = || drain.ask().move_cells(&cells, &[]).unwrap();
    let changes: [&(dyn Fn() + Sync); 4] = [&on, &off, &on, &moves];
    for (change, was_recorded) in changes.into_iter().zip([false, true, false, true]) {
        let reading = lock(&drain.calls[1]);
        thread::scope(|scope| {
            let asker = scope.spawn(change);
            let has_come = comes(|| drain.drain.try_lock().is_err() || asker.is_finished());
            (0..200).for_each(|_| yield_now());
            let (is_over, recorded) = (asker.is_finished(), is_recorded());
            drop(reading);
            assert!(has_come && !is_over);
            assert_eq!(recorded, was_recorded);
        });
    }
    assert!(
        !is_recorded(),
        "stubs that still have the old cells record nothing"
    );
}

/// It was once: room that was written from went to who read nothing, and who read made more.
#[test]
fn room_for_records_comes_back_to_who_reads() {
    for (rings, is_heard) in [(1, false), (2, true), (3, false)] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("trace");
        let clock = paged(mock::HOST);
        let (guest, place, mut polled) = reader_of(Some(&output), clock, rings, 4096);
        let _tail = is_heard.then(|| listens_too(&polled));
        for turn in 0..100 {
            for vcpu in 0..rings {
                call_on(vcpu, &guest, &place, turn * CALLS..(turn + 1) * CALLS);
            }
            polled.round();
            let rooms = polled.lock().calls().rooms.count();
            assert!(rooms <= usize::from(rings) + 2, "{rooms} for {rings}");
        }
        polled.finish().unwrap();
    }
}

/// From one of these calls to the next.
const CALL_TICKS: u64 = 20;

/// Calls of two vCPUs, each of a thread of its own, two deep; the first of them has this number.
pub(super) fn call_two_deep(guest: &MockGuest, place: &SessionMemory, first: u64, calls: u64) {
    for vcpu in 0..2 {
        let top = (u64::from(vcpu) + 5) * STACK;
        for call in first..first + calls {
            let begins = BEGUN + call * CALL_TICKS + u64::from(vcpu);
            let inner = u32::try_from(1 + call % 3).unwrap();
            let steps = [
                (0, Step::Entry, top - 64),
                (inner, Step::Entry, top - 128),
                (inner, Step::Exit, top - 128),
                (0, Step::Exit, top - 64),
            ];
            for (ticks, (function, step, slot)) in (begins..).step_by(3).zip(steps) {
                let (function, step) = (FunctionId(function), Some((step, slot)));
                assert!(guest.step(place, vcpu, function, ticks, step).unwrap());
            }
        }
    }
}

/// What was made of it, a file of each thread and what it has come to, by so many who help, in rounds of so many calls.
fn put_together(helpers: usize, calls: u64) -> (Vec<(String, Vec<u8>)>, String) {
    const CALLS: u64 = 32_000;
    static TICKS: AtomicU64 = AtomicU64::new(0);
    let counter = || TICKS.load(SeqCst);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    TICKS.store(BEGUN, SeqCst);
    let clock = paged(HostClock {
        counter,
        ..mock::HOST
    });
    let format = RecordFormat::Graph;
    let (guest, place, mut polled) = reader_in(format, Some(&output), clock, 2, 1 << 17);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..helpers {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    polled.drain.help();
                    yield_now();
                }
            });
        }
        for round in 0..CALLS / calls {
            call_two_deep(&guest, &place, round * calls, calls);
            TICKS.store(BEGUN + (round + 1) * calls * CALL_TICKS, SeqCst);
            polled.drain.round();
        }
        is_over.store(true, SeqCst);
    });
    let written = polled.finish().unwrap().unwrap();
    let files = std::fs::read_dir(&output).unwrap().map(Result::unwrap);
    let names = files.map(|file| file.file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with('1')).collect();
    names.sort();
    let read = |name: String| {
        let bytes = std::fs::read(output.join(&name)).unwrap();
        (name, bytes)
    };
    let files = names.into_iter().map(read).collect();
    (files, format!("{:?}", written.tally()))
}

/// What is read in small parts is not shared.
#[test]
fn calls_are_put_together_side_by_side_as_by_one() {
    let expected = put_together(0, 200);
    assert_eq!(expected.0.len(), 4, "of two threads, with what is beside");
    let sums = "calls: 128000, functions: 4";
    assert!(expected.1.contains(sums), "{}", expected.1);
    for helpers in [0, 1, 3] {
        let made = put_together(helpers, 4000);
        assert_eq!(made.1, expected.1);
        assert!(made.0 == expected.0, "by {helpers} who help");
    }
}

#[test]
fn who_fails_while_it_writes_holds_up_nobody_who_waits_for_that() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace");
    let (_guest, _place, polled) = reader(Some(&output));
    let drain = &polled.drain;
    let (has_begun, begun) = channel();
    let (go_on, goes_on) = channel();
    thread::scope(|scope| {
        let fails = scope.spawn(move || {
            let _writing = Writing::if_free(&drain.writer, &drain.hands);
            has_begun.send(()).unwrap();
            goes_on.recv_timeout(NEVER).unwrap();
            panic!("as it is to");
        });
        begun.recv_timeout(NEVER).unwrap();
        assert!(Writing::if_free(&drain.writer, &drain.hands).is_none());
        let not_wanted = Writing::when_free(&drain.writer, &drain.hands, || false);
        assert!(not_wanted.is_none(), "and it did not wait");
        let waits = scope.spawn(|| drain.write_when_free(false));
        go_on.send(()).unwrap();
        assert!(comes(|| waits.is_finished()));
        assert!(fails.join().is_err());
    });
}
