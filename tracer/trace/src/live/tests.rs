//! What listeners hear, and what is missing when they do not listen.

use std::sync::atomic::{AtomicU64, Ordering};

use terms::event_format::EventId;
use terms::field::FieldType;

use terms::function::{Functions, Lots};

use super::*;
use crate::event::End;
use crate::testing::{self, entry, functions};

fn event(time_ns: u64, depth: u32, kind: EventKind) -> Event {
    testing::event(time_ns, 1, 3, depth, kind)
}

const fn exit(function: u32, end: End, duration: Option<u64>) -> EventKind {
    EventKind::Exit {
        function: FunctionId(function),
        end,
        duration,
    }
}

/// A tail, the number of times that its bell rang, and who tells it.
fn heard() -> (Live, Tail, Arc<AtomicU64>) {
    let rung = Arc::new(AtomicU64::new(0));
    let bell = Arc::clone(&rung);
    let (tail, listener) = tail(move || _ = bell.fetch_add(1, Ordering::Relaxed));
    let mut live = Live::default();
    live.add(listener);
    (live, tail, rung)
}

fn tell(live: &mut Live, events: impl IntoIterator<Item = Event>) {
    tell_of(live, events, true);
}

fn tell_of(live: &mut Live, events: impl IntoIterator<Item = Event>, has_returns: bool) {
    let functions = functions(4);
    let lots = Lots::default();
    let mut sink = Heard {
        store: None,
        live,
        functions: Functions::new(&functions, &lots),
        has_returns,
    };
    events.into_iter().for_each(|event| sink.event(event));
}

#[test]
fn events_come_with_their_names_and_are_the_same_on_the_other_end_of_a_line() {
    let (mut live, tail, _) = heard();
    let size = Field {
        name: "size".into(),
        kind: FieldType::named("u64").unwrap(),
    };
    let format = EventFormat::new("sent".into(), vec![size]);
    live.learn(&News::Points(&[Arc::new(format)]));
    live.learn(&News::Thread(3, "cat-42".to_owned()));
    let sent = Event {
        values: Some([FieldValue::Unsigned(7)].into()),
        ..event(1_500, 1, EventKind::Point(EventId(0)))
    };
    let all = [
        event(1_000, 0, entry(1)),
        sent,
        event(2_000, 1, EventKind::Lost(9)),
        event(2_100, 1, EventKind::LostPoints(2)),
        event(2_200, 1, EventKind::Stall(100)),
        event(3_000, 0, exit(1, End::Unhooked, Some(2_000))),
        // Neither function nor event of these numbers is known.
        event(4_000, 0, entry(99)),
        event(5_000, 0, EventKind::Point(EventId(99))),
    ];
    tell(&mut live, all);
    let told = tail.take(usize::MAX);
    let lines: Vec<String> = told
        .iter()
        .map(|event| serde_json::to_string(event).unwrap())
        .collect();
    let head = |time| format!(r#"{{"time_ns":{time},"vcpu":1,"thread":3,"task":"cat-42","depth""#);
    let expected = [
        format!(r#"{}:0,"kind":"call","function":"f1"}}"#, head(1000)),
        format!(
            r#"{}:1,"kind":"event","event":"sent","fields":{{"size":7}}}}"#,
            head(1500)
        ),
        format!(r#"{}:1,"kind":"lost","count":9}}"#, head(2000)),
        format!(r#"{}:1,"kind":"lost-events","count":2}}"#, head(2100)),
        format!(r#"{}:1,"kind":"stall","length_ns":100}}"#, head(2200)),
        format!(
            r#"{}:0,"kind":"return","function":"f1","duration_ns":2000,"remark":"unhooked"}}"#,
            head(3000)
        ),
        format!(r#"{}:0,"kind":"call","function":"?"}}"#, head(4000)),
        format!(
            r#"{}:0,"kind":"event","event":"?","fields":{{}}}}"#,
            head(5000)
        ),
    ];
    assert_eq!(lines, expected);
    let back = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(back.collect::<Vec<LiveEvent>>(), told);
}

#[test]
fn listeners_are_told_what_made_a_call_where_that_is_recorded() {
    let (mut live, tail, _) = heard();
    let called = |time_ns, caller: Option<u64>| Event {
        values: caller.map(|at| [FieldValue::Pointer(Gva(at))].into()),
        ..event(time_ns, 0, entry(2))
    };
    let calls = [
        called(1, Some(0xffff_ffff_8010_0010)),
        called(2, Some(0x1000)),
        called(3, None),
    ];
    tell_of(&mut live, calls, false);
    let told = tail.take(usize::MAX);
    let callers = told.iter().map(|event| match &event.what {
        Happening::Entry { function, caller } => (&**function, caller.as_deref()),
        other => panic!("{other:?}"),
    });
    let expected = [("f2", Some("f0")), ("f2", Some("0x1000")), ("f2", None)];
    assert_eq!(callers.collect::<Vec<_>>(), expected);
    let mut lines = Lines::default();
    told.into_iter().for_each(|event| lines.add(event));
    let text = lines.take();
    let ends = text.lines().map(|line| line.rsplit("|  ").next().unwrap());
    assert_eq!(ends.collect::<Vec<_>>(), ["f2 <-f0", "f2 <-0x1000", "f2"]);
}

#[test]
fn who_does_not_take_misses_and_is_told_where_and_how_much() {
    let (mut live, tail, rung) = heard();
    let most = 1 << 16;
    tell(
        &mut live,
        (0..most + 5).map(|time| event(time, 0, entry(0))),
    );
    assert_eq!(
        rung.load(Ordering::Relaxed),
        1,
        "only when nothing was there"
    );
    let first = tail.take(2);
    assert_eq!(
        first.iter().map(|one| one.time_ns).collect::<Vec<_>>(),
        [0, 1]
    );
    tell(&mut live, [event(1 << 20, 0, entry(1))]);
    let rest = tail.take(usize::MAX);
    assert_eq!(rest.len() as u64, most - 2 + 2);
    let [.., last, unread, after] = rest.as_slice() else {
        panic!("nothing is there")
    };
    assert_eq!(last.time_ns, most - 1);
    assert_eq!(unread.what, Happening::Unread { count: 5 });
    assert_eq!(after.time_ns, 1 << 20);
    assert!(!tail.has_any() && tail.end().is_none());
    tell(&mut live, [event(0, 0, entry(1))]);
    assert_eq!(rung.load(Ordering::Relaxed), 2);
}

/// A guest fills an event with text: so many of them took gigabytes.
#[test]
fn what_waits_takes_so_many_bytes_and_no_more() {
    let (tail, listener) = tail(|| {});
    let event = LiveEvent {
        time_ns: 0,
        vcpu: 0,
        thread: 0,
        task: None,
        depth: 0,
        what: Happening::Event {
            event: "said".into(),
            fields: Fields(vec![(
                "text".into(),
                FieldValue::of_text(&[b'x'; 1 << 20], false),
            )]),
        },
    };
    for _ in 0..100 {
        listener.hear(|| event.clone());
    }
    assert_eq!(tail.take(usize::MAX).len(), 64);
    // There is room again, and it is said how many are missing.
    listener.hear(|| event.clone());
    let next = tail.take(usize::MAX);
    assert_eq!(next[0].what, Happening::Unread { count: 36 });
    assert_eq!(next.len(), 2);
}

/// Symbols of C++ have thousands of bytes.
#[test]
fn names_take_room_too() {
    let long = || "a".repeat(1000);
    let event = |task, what| LiveEvent {
        time_ns: 0,
        vcpu: 0,
        thread: 0,
        task,
        depth: 0,
        what,
    };
    let nothing = event(None, Happening::Lost { count: 1 }).bytes();
    let entry = |caller| Happening::Entry {
        function: long(),
        caller,
    };
    let returned = |remark| Happening::Return {
        function: long(),
        duration_ns: None,
        remark,
        retval: Vec::new(),
    };
    let args = Fields::default();
    let fields = Fields(vec![(long(), FieldValue::Fault)]);
    let function = long();
    for (names, task, what) in [
        (1, Some(long()), Happening::Stall { length_ns: 1 }),
        (1, None, entry(None)),
        (2, None, entry(Some(long()))),
        (1, None, Happening::Call { function, args }),
        (1, None, returned(None)),
        (3, Some(long()), returned(Some(long()))),
        (
            1,
            None,
            Happening::Open {
                function: long(),
                open_ns: 1,
            },
        ),
        (
            2,
            None,
            Happening::Event {
                event: long(),
                fields,
            },
        ),
    ] {
        let event = event(task, what);
        let more = event.bytes() - nothing;
        assert_eq!(more / 1000, names, "{event:?}");
    }
}

#[test]
fn the_end_comes_after_all_that_was_told_and_says_what_is_missing() {
    let (mut live, tail, rung) = heard();
    assert!(live.is_heard());
    tell(
        &mut live,
        (0..(1 << 16) + 3).map(|time| event(time, 0, entry(0))),
    );
    drop(live);
    assert_eq!(rung.load(Ordering::Relaxed), 2);
    assert_eq!(tail.end(), None, "there is more to take");
    assert_eq!(tail.take(usize::MAX).len(), 1 << 16);
    assert_eq!(tail.end(), Some(3));
}

#[test]
fn who_has_gone_is_forgotten_and_each_hears_all() {
    let (mut live, one, _) = heard();
    let (other, listener) = tail(|| ());
    live.add(listener);
    tell(&mut live, [event(1, 0, entry(0))]);
    assert_eq!(one.take(9), other.take(9));
    drop(one);
    assert!(live.is_heard());
    drop(other);
    assert!(!live.is_heard());
    tell(&mut live, [event(1, 0, entry(0))]);
}

fn lines(has_returns: bool, events: impl IntoIterator<Item = Event>) -> String {
    let (mut live, tail, _) = heard();
    tell_of(&mut live, events, has_returns);
    let mut lines = Lines::default();
    tail.take(usize::MAX)
        .into_iter()
        .for_each(|event| lines.add(event));
    lines.take()
}

#[test]
fn a_call_in_which_nothing_was_called_is_one_line() {
    let text = lines(
        true,
        [
            event(1_000, 0, entry(0)),
            event(2_000, 1, entry(1)),
            event(3_500, 1, exit(1, End::Returned, Some(1_500))),
            event(4_000, 1, entry(2)),
            event(4_100, 2, EventKind::Lost(7)),
            event(4_500, 1, exit(2, End::NotSeen, None)),
            event(2_000_005_000, 0, exit(0, End::Returned, Some(4_000))),
            event(2_000_006_000, 0, entry(3)),
        ],
    );
    let expected = "    0.000001000   1) thread-3        |               |  f0() {
    0.000002000   1) thread-3        |  1.500 us     |    f1();
    0.000004000   1) thread-3        |               |    f2() {
# CPU:1 [LOST 7 EVENTS]
    0.000004500   1) thread-3        |               |    } /* f2 */ /* no return seen */
    2.000005000   1) thread-3        |  4.000 us     |  } /* f0 */
    2.000006000   1) thread-3        |               |  f3() {
";
    assert_eq!(text, expected);
}

#[test]
fn the_end_of_another_call_does_not_make_a_leaf() {
    let other = Event {
        thread: 4,
        ..event(2_000, 0, exit(2, End::Returned, Some(9)))
    };
    let last = event(3_000, 0, exit(1, End::Returned, Some(2_000)));
    let text = lines(true, [event(1_000, 0, entry(1)), other, last]);
    let functions: Vec<&str> = text
        .lines()
        .map(|line| line.rsplit("|  ").next().unwrap())
        .collect();
    assert_eq!(functions, ["f1() {", "} /* f2 */", "} /* f1 */"]);
    // A thread that has moved meanwhile ends it elsewhere.
    let moved = Event {
        vcpu: 0,
        ..event(2_000, 0, exit(1, End::Returned, Some(1_000)))
    };
    let text = lines(true, [event(1_000, 0, entry(1)), moved]);
    assert_eq!(text.lines().count(), 2, "{text}");
}

#[test]
fn calls_without_returns_are_lines_of_their_own() {
    let text = lines(
        false,
        [event(1_000, 0, entry(0)), event(2_000, 0, entry(1))],
    );
    let functions: Vec<&str> = text
        .lines()
        .map(|line| line.rsplit('|').next().unwrap())
        .collect();
    assert_eq!(functions, ["  f0", "  f1"]);
}

#[test]
fn what_the_guest_says_cannot_reach_a_terminal_as_it_is() {
    let (mut live, tail, _) = heard();
    live.learn(&News::Thread(3, "\u{1b}[2J-1".to_owned()));
    tell(
        &mut live,
        [event(1, 0, entry(0)), event(2, 0, EventKind::Lost(0))],
    );
    let mut lines = Lines::default();
    for mut event in tail.take(9) {
        if let Happening::Call { function, .. } = &mut event.what {
            *function = "\u{9b}x".to_owned();
        }
        lines.add(event);
    }
    let text = lines.take();
    assert!(text.contains("?[2J-1") && text.contains("?x()"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{9b}']));
}

/// Which of these events are told to who waits for this.
fn seen(occasion: &str, times: u64, events: impl IntoIterator<Item = Event>) -> (Vec<u64>, Tail) {
    let (tail, listener) = tail(|| ());
    let mut live = Live::default();
    live.add(listener.of(occasion.parse().unwrap(), times));
    let format = |name: &str| Arc::new(EventFormat::new(name.into(), Vec::new()));
    live.learn(&News::Points(&[format("sent"), format("taken")]));
    tell(&mut live, events);
    let times = tail.take(usize::MAX).into_iter().map(|event| event.time_ns);
    (times.collect(), tail)
}

#[test]
fn who_waits_for_something_hears_of_nothing_else() {
    let point = |time, number| event(time, 0, EventKind::Point(EventId(number)));
    let all = || {
        [
            event(1, 0, entry(1)),
            event(2, 1, entry(2)),
            event(3, 1, exit(2, End::Returned, Some(5_000))),
            event(4, 0, exit(1, End::Returned, Some(5_001))),
            // How long these took is not known.
            event(5, 0, exit(1, End::NotSeen, None)),
            event(6, 0, EventKind::Lost(1)),
            point(7, 0),
            point(8, 1),
            event(9, 0, entry(1)),
            event(10, 0, entry(99)),
            point(11, 99),
        ]
    };
    for (occasion, expected) in [
        ("f1", &[1, 9][..]),
        ("f[12]", &[1, 2, 9]),
        ("f1 > 5us", &[4]),
        ("* > 5", &[4]),
        ("* > 4999ns", &[3, 4]),
        ("event *", &[7, 8]),
        ("event taken", &[8]),
        ("none", &[]),
        ("event f1", &[]),
    ] {
        assert_eq!(seen(occasion, u64::MAX, all()).0, expected, "{occasion}");
    }
}

#[test]
fn who_has_waited_often_enough_is_forgotten() {
    let calls = (0..9).map(|time| event(time, 0, entry(1)));
    let (times, tail) = seen("f1", 2, calls);
    assert_eq!(times, [0, 1]);
    assert_eq!(tail.end(), Some(0));
    let (tail, listener) = super::tail(|| ());
    let mut live = Live::default();
    live.add(listener.of("f1".parse().unwrap(), 1));
    assert!(live.is_heard());
    tell(&mut live, [event(0, 0, entry(1))]);
    assert!(!live.is_heard());
    assert_eq!((tail.take(9).len(), tail.end()), (1, Some(0)));
}

/// Functions that come later are looked at when they are met.
#[test]
fn functions_that_come_are_waited_for_too() {
    let (tail, listener) = tail(|| ());
    let mut live = Live::default();
    live.add(listener.of("f[05]".parse().unwrap(), 9));
    let mut told = |count, event| {
        let functions = functions(count);
        let (store, has_returns) = (None, true);
        Heard {
            store,
            live: &mut live,
            functions: Functions::new(&functions, &Lots::default()),
            has_returns,
        }
        .event(event);
    };
    told(2, event(1, 0, entry(0)));
    told(2, event(2, 0, entry(5)));
    told(6, event(3, 0, entry(5)));
    told(6, event(4, 0, entry(4)));
    let times: Vec<u64> = tail.take(9).iter().map(|one| one.time_ns).collect();
    assert_eq!(times, [1, 3]);
}

#[test]
fn losses_of_before_anybody_came_are_not_told() {
    let before = LostBefore {
        calls: [(1, 10)].into(),
        points: [(1, 5)].into(),
    };
    let mut live = Live::after(before);
    let (tail, listener) = tail(|| ());
    live.add(listener);
    let lost = [
        EventKind::Lost(0),
        EventKind::Lost(4),
        EventKind::LostPoints(5),
        EventKind::Lost(9),
        EventKind::LostPoints(1),
        EventKind::Lost(2),
        EventKind::Lost(0),
    ];
    tell(&mut live, lost.map(|kind| event(1, 0, kind)));
    let told: Vec<_> = tail
        .take(usize::MAX)
        .into_iter()
        .map(|one| one.what)
        .collect();
    let lost = |count| Happening::Lost { count };
    let events = Happening::LostEvents { count: 1 };
    assert_eq!(told, [lost(0), lost(3), events, lost(2), lost(0)]);
}
