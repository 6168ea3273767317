//! Who listens to a session, beside who writes it and alone.

use super::*;

#[test]
fn who_listens_to_what_is_written_hears_all_of_it_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let (guest, place, mut polled) = reader(Some(&folder.path().join("trace")));
    call(&guest, &place, CALLS);
    polled.drain.round();
    let first = listens_too(&polled);
    call(&guest, &place, CALLS);
    polled.drain.round();
    let second = listens_too(&polled);
    drop(first);
    call(&guest, &place, 3);
    polled.drain.round();
    drop(second);
    // What comes now nobody hears, and it is in the trace.
    call(&guest, &place, 2);
    polled.drain.round();
    let last = listens_too(&polled);
    call(&guest, &place, 1);
    let written = polled.finish().unwrap().unwrap();
    assert_eq!(written.tally().calls, 2 * CALLS + 6);
    assert_eq!(heard(&last), (called(1), Some(0)));
}

/// What waits for another ring while somebody listens is written before what comes after, when nobody does: also when who
/// listened leaves while that is taken.
#[test]
fn what_was_heard_and_waits_comes_first() {
    for leaves_in_the_middle in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("trace");
        let image = Arc::new(nop_image(FUNCTIONS));
        let metadata = Metadata {
            vcpus: 2,
            ..Metadata::default()
        };
        let stream = Stream::of_functions(2, WAITING_MAX);
        let mut output = Output::create(&directory, false, &image, metadata, stream).unwrap();
        let Some(Encoding::DataFile(entries)) = output.encodes() else {
            panic!("it has entries only");
        };
        let mut coder = CallCoder::new(entries);
        let mut call = |time_ns| {
            coder.calls(&[time_ns], &[FunctionId(0)]);
            Batch {
                origin: Origin::Calls(0),
                records: Records::DataFile(coder.take()),
                values: 0,
                looked_ns: None,
                until_ns: time_ns,
            }
        };
        let mut backlog = Backlog::default();
        let (tail, listener) = tail(|| ());
        backlog.news.listeners.push(listener);
        for time_ns in [10, 20, 30] {
            backlog.push(call(time_ns));
            output.take(&mut backlog, &Alone);
        }
        assert_eq!(heard(&tail).0, called(0), "it waits for the other ring");
        drop(tail);
        if leaves_in_the_middle {
            output.append(call(40));
            output.settle(&Alone);
        }
        backlog.push(call(60));
        output.take(&mut backlog, &Alone);
        output.finish(&TimeDoubts::default(), 0).unwrap();
        let file = std::fs::read(directory.join("1000.dat")).unwrap();
        let times: Vec<u8> = file.chunks(32).map(|pair| pair[0]).collect();
        match leaves_in_the_middle {
            true => assert_eq!(times, [10, 20, 30, 40, 60]),
            false => assert_eq!(times, [10, 20, 30, 60]),
        }
    }
}

/// What is heard waits for other rings, and comes to the files another way: in the same order.
#[test]
fn who_listens_changes_nothing_in_the_files() {
    let files = [false, true].map(|is_heard| {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("trace");
        let clock = paged(mock::HOST);
        let (guest, place, mut polled) = reader_of(Some(&directory), clock, 2, 4096);
        let mut listens = None;
        for round in 0..12 {
            for vcpu in 0..2 {
                let first = 1000 * (2 * round + u64::from(vcpu));
                call_on(vcpu, &guest, &place, first..first + CALLS / (1 + round));
            }
            polled.drain.round();
            listens = (is_heard && round % 3 == 0).then(|| listens_too(&polled));
        }
        drop(listens);
        polled.finish().unwrap();
        let side = std::fs::read_to_string(directory.join("exotrace.json")).unwrap();
        assert!(!side.contains("\"reordered\": 1"), "{side}");
        ["1000.dat", "1001.dat"].map(|name| std::fs::read(directory.join(name)).unwrap())
    });
    assert!(files[0][0].len() > 1000, "{}", files[0][0].len());
    assert!(files[0] == files[1], "other bytes");
}

#[test]
fn what_is_written_nowhere_is_read_as_long_as_somebody_listens() {
    let (guest, place, mut polled) = reader(None);
    let read = |polled: &Polled| polled.lock().status()[0].read;
    call(&guest, &place, 7);
    polled.drain.round();
    assert_eq!(read(&polled), 0);
    let first = begins_to_listen(&polled);
    polled.drain.round();
    // What the ring held is heard first.
    assert_eq!(heard(&first), (called(7), None));
    let second = listens_too(&polled);
    call(&guest, &place, 9);
    polled.drain.round();
    assert_eq!(heard(&first), (called(9), None));
    drop(first);
    assert_eq!(heard(&second), (called(9), None));
    drop(second);
    polled.drain.round();
    call(&guest, &place, 5);
    polled.drain.round();
    assert_eq!(read(&polled), 16, "nobody wants it");
    let third = begins_to_listen(&polled);
    assert!(polled.finish().unwrap().is_none());
    assert_eq!(heard(&third), (called(5), Some(0)));
}

/// The last one has gone, and before anybody has noticed that, another one has come.
#[test]
fn who_comes_when_the_last_one_goes_hears_all() {
    let (guest, place, mut polled) = reader(None);
    let first = begins_to_listen(&polled);
    polled.drain.round();
    drop(first);
    let second = begins_to_listen(&polled);
    // Who writes has found nobody, and has not heard of this one.
    assert!(!polled.lock().end_idle());
    call(&guest, &place, 4);
    polled.drain.round();
    call(&guest, &place, 4);
    assert!(polled.finish().unwrap().is_none());
    let twice = [called(4), called(4)].concat();
    assert_eq!(heard(&second), (twice, Some(0)));
}

#[test]
fn who_begins_to_listen_hears_first_what_the_host_has_told_since_the_session_began() {
    let (guest, place, polled) = reader(None);
    let host = Arc::new(HostEvents::new(
        1,
        Arc::new(crate::clock::HeldTime::new(mock::HOST)),
    ));
    let step = HostStep::Entry(HostThread::default());
    host.note(0, step);
    polled.lock().tell_of_host(&host);
    (0..3).for_each(|_| host.note(0, step));
    polled.drain.round();
    let first = begins_to_listen(&polled);
    call(&guest, &place, 2);
    polled.drain.round();
    host.note(0, step);
    polled.drain.round();
    let heard = first.take(usize::MAX);
    let is_of_host = |what: &Happening| matches!(what, Happening::Event { event, .. } if event == "host:kvm_entry");
    let of_host = heard.iter().filter(|event| is_of_host(&event.what));
    assert_eq!((of_host.count(), heard.len()), (4, 6), "{heard:?}");
}

/// A newcomer was once told of a loss as long as the run, of a time at which nobody had listened.
#[test]
fn what_was_written_over_before_anybody_listened_is_nobodys_loss() {
    let (guest, place, mut polled) = reader(None);
    let holds = Geometry::with_bytes(4096).unwrap().slots();
    let lost = |tail: &Tail| -> (u64, usize) {
        let told = tail.take(usize::MAX);
        let lost = told.iter().filter_map(|event| match event.what {
            Happening::Lost { count } => Some(count),
            _ => None,
        });
        let calls = told.iter().filter(|event| event.is_of_guest());
        (lost.sum(), calls.count())
    };
    for before in [holds + 50, 3 * holds] {
        call(&guest, &place, before);
        let newcomer = begins_to_listen(&polled);
        polled.drain.round();
        assert_eq!(lost(&newcomer), (0, usize::try_from(holds).unwrap()));
        // What he was there for is his.
        call(&guest, &place, 2 * holds);
        polled.drain.round();
        assert_eq!(lost(&newcomer).0, holds);
        drop(newcomer);
        polled.drain.round();
        call(&guest, &place, 2 * holds);
        polled.drain.round();
        let newcomer = begins_to_listen(&polled);
        call(&guest, &place, 7);
        polled.drain.round();
        assert_eq!(
            lost(&newcomer).0,
            7,
            "between his coming and the first look"
        );
        drop(newcomer);
        polled.drain.round();
    }
    assert!(polled.finish().unwrap().is_none());
}
