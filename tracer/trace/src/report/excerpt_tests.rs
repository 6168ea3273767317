//! Parts of traces: by vCPU, thread, time, and who called whom.

use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;
use terms::event_format::{EventFormat, EventId};

use super::*;
use crate::event::EventKind;
use crate::export::store::{News, Store};
use crate::export::uftrace::{GRAPH, Metadata, NO_CLOCK, UftraceWriter};
use crate::glob::Pattern;
use crate::graph::rules::{Rules, Threshold};
use crate::testing::{entry, event, exit, functions, text_of};

/// Writes a trace of these events on two vCPUs; thread 0 is called `cat-42`.
fn written(
    (tracer, clock): (&str, &str),
    events: impl IntoIterator<Item = (u64, u16, u32, u32, EventKind)>,
) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let metadata = Metadata {
        vcpus: 2,
        tracer: tracer.into(),
        clock: clock.into(),
        ..Metadata::default()
    };
    let functions = functions(4);
    let mut writer =
        UftraceWriter::create(&directory, text_of(&functions), metadata, false).unwrap();
    let format = EventFormat::new("sent".into(), Vec::new());
    writer.learn(News::Points(&[format.into()]));
    for (time_ns, vcpu, thread, depth, kind) in events {
        let event = event(time_ns, vcpu, thread, depth, kind);
        writer.append(event).unwrap();
    }
    writer.learn(News::Thread(0, "cat-42".to_owned()));
    writer.finish().unwrap();
    (root, directory)
}

const SENT: EventKind = EventKind::Point(EventId(0));

/// `f0 { f1 { f2 }  f3 }` of thread 0, which moves to vCPU 1 before f3; f2 of thread 1 on vCPU 1, where an event happens in it.
fn trace() -> (TempDir, PathBuf) {
    written(
        (GRAPH, "tsc"),
        [
            (1_000, 0, 0, 0, entry(0)),
            (2_000, 0, 0, 1, entry(1)),
            (2_500, 1, 1, 0, entry(2)),
            (3_000, 0, 0, 2, entry(2)),
            (3_500, 0, 0, 0, SENT),
            (4_000, 0, 0, 2, exit(2)),
            (5_000, 0, 0, 1, exit(1)),
            (6_000, 1, 0, 1, entry(3)),
            (6_500, 1, 0, 0, SENT),
            (7_000, 1, 0, 1, exit(3)),
            (8_000, 1, 0, 0, exit(0)),
            (9_000, 1, 1, 0, exit(2)),
        ],
    )
}

/// Calls as `depth:name`, with `;` where nothing is shown in them, else with `/` where they end; events as their names.
fn shown(excerpt: &Excerpt) -> String {
    let (shown, notes) = shown_with_notes(excerpt);
    assert_eq!(notes, Vec::<String>::new());
    shown
}

/// The same, and what is said of it.
fn shown_with_notes(excerpt: &Excerpt) -> (String, Vec<String>) {
    let (_root, directory) = trace();
    let view = View {
        format: Format::Graph,
        excerpt: excerpt.clone(),
        ..View::default()
    };
    let mut out = Vec::new();
    let printed = print(&directory, &view, &mut out).unwrap();
    assert_eq!(printed.missing, None);
    let text = String::from_utf8(out).unwrap();
    let rows = text.lines().filter_map(|line| line.split_once("|  "));
    let words = rows
        .filter(|(before, _)| !before.starts_with('#'))
        .map(|(_, call)| {
            let name = call.trim_start();
            let depth = (call.len() - name.len()) / 2;
            match name.split(['(', ' ']).next().unwrap() {
                "}" => "/".to_owned(),
                "/*" => "sent".to_owned(),
                name => format!(
                    "{depth}:{name}{}",
                    if call.ends_with(';') { ";" } else { "" }
                ),
            }
        });
    (words.collect::<Vec<_>>().join(" "), printed.notes)
}

fn globs(globs: &[&str]) -> Vec<Pattern> {
    globs
        .iter()
        .map(|glob| Pattern::new(glob).unwrap())
        .collect()
}

#[test]
fn without_anything_all_is_shown() {
    let all = "0:f0 1:f1 0:f2 2:f2 sent / / 1:f3 sent / / /";
    assert_eq!(shown(&Excerpt::default()), all);
    let (from_ns, until_ns) = (Some(0), Some(u64::MAX));
    let wide = Excerpt {
        from_ns,
        until_ns,
        vcpus: vec![0, 1],
        ..Excerpt::default()
    };
    assert_eq!(shown(&wide), all);
}

#[test]
fn without_a_clock_nothing_is_chosen_by_times() {
    let (_root, directory) = written((GRAPH, NO_CLOCK), [(0, 0, 0, 0, entry(0))]);
    let threshold = Some(Threshold { nanoseconds: 1 });
    let excerpts = [
        Excerpt::from(Rules {
            threshold,
            ..Rules::default()
        }),
        Excerpt {
            from_ns: Some(1),
            ..Excerpt::default()
        },
        Excerpt {
            until_ns: Some(1),
            ..Excerpt::default()
        },
    ];
    for excerpt in excerpts {
        let view = View {
            excerpt,
            ..View::default()
        };
        let refused = print(&directory, &view, &mut io::sink()).unwrap_err();
        assert!(matches!(refused, ReportError::NoTimes(_)), "{refused}");
    }
    print(&directory, &View::default(), &mut io::sink()).unwrap();
}

#[test]
fn what_began_on_a_vcpu_is_shown_whole_wherever_it_ends() {
    let on = |vcpu| {
        shown(&Excerpt {
            vcpus: vec![vcpu],
            ..Excerpt::default()
        })
    };
    assert_eq!(on(0), "0:f0 1:f1 2:f2 sent / / /");
    assert_eq!(on(1), "0:f2 0:f3 sent / /");
}

#[test]
fn a_time_has_the_calls_that_were_open_in_it() {
    let between = |from_ns, until_ns| {
        shown(&Excerpt {
            from_ns,
            until_ns,
            ..Excerpt::default()
        })
    };
    assert_eq!(
        between(Some(4_500), None),
        "0:f0 1:f1; 0:f2 1:f3 sent / / /"
    );
    // An end at the first moment is in it, a beginning at the last one, too.
    let edges = between(Some(5_000), Some(6_000));
    assert_eq!(edges, "0:f0 1:f1; 0:f2; 1:f3; /");
    assert_eq!(between(Some(5_001), Some(5_999)), "0:f0; 0:f2;");
    assert_eq!(between(None, Some(2_400)), "0:f0 1:f1; /");
    let moment = between(Some(3_500), Some(3_500));
    assert_eq!(moment, "0:f0 1:f1 0:f2; 2:f2 sent / / /");
}

#[test]
fn a_part_in_which_nothing_is_says_so() {
    let nothing = "nothing of the trace is in the part that was asked for";
    let parts = [
        Excerpt {
            from_ns: Some(9_001),
            ..Excerpt::default()
        },
        Excerpt {
            until_ns: Some(999),
            ..Excerpt::default()
        },
        Excerpt::from(Rules {
            threshold: Some(Threshold {
                nanoseconds: 10_000,
            }),
            ..Rules::default()
        }),
    ];
    for part in &parts[..2] {
        let said = format!("{nothing}; its calls are from 0.000001000 s to 0.000009000 s");
        assert_eq!(shown_with_notes(part), (String::new(), vec![said]));
    }
    // Events have no length: they are shown whatever calls are asked for.
    assert_eq!(shown(&parts[2]), "sent sent");
    // So it is with what has no calls, and with what is read without events.
    let (_root, directory) = written((GRAPH, "tsc"), [(5_000, 0, 0, 0, SENT)]);
    let view = |excerpt: &Excerpt| View {
        excerpt: excerpt.clone(),
        ..View::default()
    };
    for (part, notes) in [(&parts[0], vec![nothing.to_owned()]), (&parts[2], vec![])] {
        let printed = print(&directory, &view(part), &mut io::sink()).unwrap();
        assert_eq!(printed.notes, notes);
    }
    let (_root, directory) = trace();
    let trace = TraceDirectory::open(&directory).unwrap();
    for (part, said) in [(&parts[2], 1), (&Excerpt::default(), 0)] {
        let mut calls = Calls::open(&trace, part).unwrap();
        let mut notes = Vec::new();
        let note = |note: &str| notes.push(note.to_owned());
        let folded = crate::convert::folded(&trace, &mut calls, false, note).unwrap();
        assert_eq!((folded.is_empty(), notes.len()), (said == 1, said));
    }
}

#[test]
fn hiding_what_is_not_there_says_so() {
    let hidden = |globs: &[&str]| {
        shown_with_notes(&Excerpt {
            hidden: self::globs(globs),
            ..Excerpt::default()
        })
    };
    let (all, notes) = hidden(&["f7", "g*"]);
    assert_eq!(all, shown(&Excerpt::default()));
    let said = |glob| format!("no function of the guest matches '{glob}'");
    assert!(notes[0].starts_with(&said("f7")), "{notes:?}");
    assert_eq!(notes[1..], [said("g*")]);
    assert_eq!(hidden(&["f2", "f1"]).1, Vec::<String>::new());
}

/// A misspelt one among others was taken without a word.
#[test]
fn each_glob_that_matches_nothing_is_named() {
    let (there, missing) = (globs(&["f0"]), || globs(&["f0", "no_such"]));
    let of = |roots, notrace, callers_of| Excerpt {
        rules: Rules {
            roots,
            notrace,
            ..Rules::default()
        },
        callers_of,
        ..Excerpt::default()
    };
    for excerpt in [
        of(missing(), Vec::new(), Vec::new()),
        of(Vec::new(), missing(), Vec::new()),
        of(Vec::new(), Vec::new(), missing()),
    ] {
        let notes = shown_with_notes(&excerpt).1;
        let named = |note: &&String| note.contains("'no_such'");
        assert_eq!(notes.iter().filter(named).count(), 1, "{notes:?}");
    }
    let notes = shown_with_notes(&of(there.clone(), Vec::new(), there)).1;
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn threads_have_names_pids_or_numbers() {
    let of = |glob| {
        shown(&Excerpt {
            threads: globs(&[glob]),
            ..Excerpt::default()
        })
    };
    for glob in ["cat-42", "cat", "c*", "42"] {
        assert_eq!(of(glob), "0:f0 1:f1 2:f2; / 1:f3; /", "{glob}");
    }
    assert_eq!(of("1"), "0:f2;");
}

#[test]
fn callers_are_the_ways_to_a_function_and_hidden_ones_leave_what_they_call() {
    let callers = |to: &[&str]| {
        shown(&Excerpt {
            callers_of: globs(to),
            ..Excerpt::default()
        })
    };
    assert_eq!(callers(&["f3"]), "0:f0 sent 1:f3 sent / /");
    assert_eq!(callers(&["f2"]), "0:f0 1:f1 0:f2 2:f2 sent / / sent / /");
    let hidden = Excerpt {
        hidden: globs(&["f1"]),
        ..Excerpt::default()
    };
    assert_eq!(shown(&hidden), "0:f0 0:f2 1:f2 sent / 1:f3 sent / / /");
    // Each has 16 bytes, the last one, too.
    let large = Excerpt {
        min_bytes: Some(17),
        ..Excerpt::default()
    };
    assert_eq!(shown(&large), "sent sent");
    let all = Excerpt {
        min_bytes: Some(16),
        ..Excerpt::default()
    };
    assert_eq!(shown(&all), shown(&Excerpt::default()));
    let both = Excerpt {
        callers_of: globs(&["f3"]),
        hidden: globs(&["f0"]),
        ..Excerpt::default()
    };
    assert_eq!(shown(&both), "sent 0:f3 sent /");
}

#[test]
fn a_call_that_is_long_enough_is_shown_with_those_around_it_if_they_lead_to_what_is_asked_for() {
    let threshold = Some(Threshold { nanoseconds: 1_500 });
    let rules = Rules {
        threshold,
        ..Rules::default()
    };
    let long = Excerpt {
        callers_of: globs(&["f1"]),
        ..rules.clone().into()
    };
    assert_eq!(shown(&long), "0:f0 1:f1 sent / sent /");
    let late = Excerpt {
        from_ns: Some(5_500),
        ..rules.into()
    };
    assert_eq!(shown(&late), "0:f0; 0:f2 sent /");
}

#[test]
fn beside_the_slowest_calls_alone_no_events_are_counted() {
    let (_root, directory) = trace();
    let text = |format: Format| {
        let mut out = Vec::new();
        print(&directory, &format.into(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(!text(Format::Slowest).contains("EVENT"));
    assert!(text(Format::Counts).contains("  sent\n"));
}

#[test]
fn what_a_trace_does_not_have_is_named() {
    let refused = |directory: &Path, excerpt: Excerpt| {
        let view = View {
            excerpt,
            ..View::default()
        };
        print(directory, &view, io::sink()).unwrap_err().to_string()
    };
    let (_root, graph) = trace();
    let nobody = Excerpt {
        threads: globs(&["dog"]),
        ..Excerpt::default()
    };
    assert!(refused(&graph, nobody.clone()).starts_with("no thread of the trace"));
    let nowhere = Excerpt {
        callers_of: globs(&["g"]),
        ..Excerpt::default()
    };
    assert!(refused(&graph, nowhere.clone()).starts_with("no function of the trace"));
    let large = Excerpt {
        min_bytes: Some(1),
        ..Excerpt::default()
    };
    let third = Excerpt {
        vcpus: vec![1, 2],
        ..Excerpt::default()
    };
    let message = "there is no vCPU 2 in the trace: its guest had 2";
    assert_eq!(refused(&graph, third), message);
    let (_root, flat) = written(("function", "tsc"), [(1, 0, 0, 0, entry(0))]);
    for excerpt in [nobody, nowhere, large] {
        assert!(refused(&flat, excerpt).contains("needs a trace of a graph"));
    }
}

#[test]
fn of_a_trace_of_entries_vcpus_and_times_are_chosen_and_nothing_is_said_to_be_missing() {
    let at = |time_ns, vcpu: u16, kind| (time_ns, vcpu, vcpu.into(), 0, kind);
    let events = [
        at(1, 0, entry(0)),
        at(2, 1, entry(1)),
        at(3, 0, entry(2)),
        at(4, 0, SENT),
        at(5, 1, SENT),
        at(6, 0, EventKind::Lost(7)),
    ];
    let (_root, directory) = written(("function", "tsc"), events);
    let counted = |vcpus: &[u16], from_ns, until_ns| {
        let view = View {
            format: Format::Counts,
            excerpt: Excerpt {
                vcpus: vcpus.to_vec(),
                from_ns,
                until_ns,
                ..Excerpt::default()
            },
            ..View::default()
        };
        let printed = print(&directory, &view, io::sink()).unwrap();
        assert_eq!(printed.missing, None);
        (printed.entries, printed.events, printed.lost)
    };
    assert_eq!(counted(&[], None, None), (3, 2, 7));
    assert_eq!(counted(&[0], None, None), (2, 1, 7));
    assert_eq!(counted(&[1], None, None), (1, 1, 0));
    assert_eq!(counted(&[0, 1], Some(2), Some(4)), (2, 1, 0));
}

/// A random tree of calls of one thread: when each began and ended.
fn calls() -> impl Strategy<Value = Vec<bool>> {
    prop::collection::vec(any::<bool>(), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the calls: those are shown whose time has a moment in common with what is asked for.
    #[test]
    fn any_excerpt_of_time_has_just_the_calls_that_were_open_in_it(
        steps in calls(), from_ns in 0u64..70, length in 0u64..40,
    ) {
        let until_ns = from_ns + length;
        let (mut open, mut expected, mut events) = (Vec::new(), 0, Vec::new());
        let mut time_ns = 0;
        let mut ended = |begun: u64, ended: u64| {
            expected += u64::from(begun <= until_ns && ended >= from_ns);
        };
        for is_entry in steps {
            time_ns += 1;
            if is_entry && open.len() < 20 {
                events.push((time_ns, 0, 0, u32::try_from(open.len()).unwrap(), entry(0)));
                open.push(time_ns);
            } else if let Some(begun) = open.pop() {
                events.push((time_ns, 0, 0, u32::try_from(open.len()).unwrap(), exit(0)));
                ended(begun, time_ns);
            }
        }
        while let Some(begun) = open.pop() {
            time_ns += 1;
            events.push((time_ns, 0, 0, u32::try_from(open.len()).unwrap(), exit(0)));
            ended(begun, time_ns);
        }
        let (_root, directory) = written((GRAPH, "tsc"), events);
        let view = View {
            format: Format::Counts,
            excerpt: Excerpt { from_ns: Some(from_ns), until_ns: Some(until_ns), ..Excerpt::default() },
            ..View::default()
        };
        let printed = print(&directory, &view, io::sink()).unwrap();
        prop_assert_eq!((printed.entries, printed.missing), (expected, None));
    }
}
