//! The order of hits of probes and steps of calls that have the same time.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;
use terms::event_format::{EventFormat, EventId};
use terms::function::FunctionId;

use super::*;
use crate::event::{End, EventKind};
use crate::export::probes::ProbeNote;
use crate::export::store::{Ending, News, Store};
use crate::export::uftrace::{GRAPH, Metadata, UftraceWriter};
use crate::testing::{event, functions, text_of};

const FUNCTIONS: u32 = 4;

/// What happens, in the order in which it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Enter(u32),
    Leave(u32),
    /// This probe is hit.
    Hit(u32),
}
use Step::{Enter, Hit, Leave};

/// Probes of all functions: their entries, their returns, what is inside of them; a tracepoint. The last function is not traced.
fn probes() -> Vec<ProbeNote> {
    let functions = functions(FUNCTIONS.into());
    let of = |function: &terms::function::Function| {
        let name = function.display.to_string();
        let address = function.address.0;
        [("", 0, false), ("%return", 0, true), ("+0x1", 1, false)].map(
            |(what, offset, is_return)| ProbeNote {
                name: format!("{name}{what}"),
                address: format!("{:#x}", address + offset),
                is_return: Some(is_return),
                ..ProbeNote::default()
            },
        )
    };
    functions.iter().flat_map(of).collect()
}

const ENTRY: u32 = 0;
const RETURN: u32 = 1;
const INSIDE: u32 = 2;
const UNTRACED: u32 = 3;
/// A tracepoint.
const OTHER: u32 = 3 * FUNCTIONS;

fn of(function: u32, kind: u32) -> Step {
    Hit(3 * function + kind)
}

/// A trace in which each of these happens at its time on its vCPU, which is a thread.
fn trace(steps: &[(u64, u16, Step)], tracer: &str) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("trace");
    let functions = functions(FUNCTIONS.into());
    let metadata = Metadata {
        vcpus: 2,
        tracer: tracer.into(),
        clock: "tsc".into(),
        ..Metadata::default()
    };
    let text = text_of(&functions);
    let mut writer = UftraceWriter::create(&directory, text, metadata, false).unwrap();
    let probes = probes();
    let names = probes.iter().map(|probe| probe.name.clone());
    let formats = names.chain(["tracepoint".to_owned()]);
    let formats: Vec<_> = formats
        .map(|name| EventFormat::new(name.into(), Vec::new()).into())
        .collect();
    writer.learn(News::Points(&formats));
    writer.learn(News::Probes(&probes));
    let mut depths = [0; 2];
    for (time_ns, vcpu, step) in steps {
        let kind = match *step {
            Enter(function) => EventKind::Entry(FunctionId(function)),
            Leave(function) => EventKind::Exit {
                function: FunctionId(function),
                end: End::Returned,
                duration: None,
            },
            Hit(probe) => EventKind::Point(EventId(probe)),
        };
        let depth = &mut depths[usize::from(*vcpu)];
        *depth -= u32::from(matches!(step, Leave(_)));
        let thread = (*vcpu).into();
        writer
            .append(event(*time_ns, *vcpu, thread, *depth, kind))
            .unwrap();
        *depth += u32::from(matches!(step, Enter(_)));
    }
    Store::finish(&mut writer, Ending::default()).unwrap();
    (root, directory)
}

fn printed(directory: &Path, format: Format) -> String {
    let view = View {
        format,
        ..View::default()
    };
    let mut out = Vec::new();
    print(directory, &view, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The lines of its graph without times.
fn graph(directory: &Path) -> Vec<String> {
    let text = printed(directory, Format::Graph);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let shown = lines.filter_map(|line| line.split_once('|'));
    shown
        .map(|(_, shown)| shown.trim_end().to_owned())
        .collect()
}

/// The same of steps at these times, all on one vCPU.
fn shown(steps: &[(u64, Step)]) -> Vec<String> {
    let steps: Vec<_> = steps.iter().map(|(at, step)| (*at, 0, *step)).collect();
    let (_root, directory) = trace(&steps, GRAPH);
    graph(&directory)
}

#[test]
fn a_hit_at_a_return_is_inside_of_its_call_when_both_begin_at_once() {
    let steps = [
        (10, Enter(0)),
        (20, Enter(1)),
        (20, of(1, RETURN)),
        (30, Leave(1)),
        (40, Enter(1)),
        (50, of(1, RETURN)),
        (50, Leave(1)),
        (60, Leave(0)),
    ];
    let expected = [
        "  f0() {",
        "    f1() {",
        "      /* f1%return */",
        "    }",
        "    f1() {",
        "      /* f1%return */",
        "    }",
        "  }",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn a_hit_at_an_entry_comes_after_what_ended_at_the_same_time() {
    let steps = [
        (10, Enter(0)),
        (20, of(1, ENTRY)),
        (20, Enter(1)),
        (20, of(1, INSIDE)),
        (30, Enter(2)),
        (40, Leave(2)),
        (40, Leave(1)),
        (40, of(1, ENTRY)),
        (40, Enter(1)),
        (50, Leave(1)),
        (60, Leave(0)),
    ];
    let expected = [
        "  f0() {",
        "    /* f1 */",
        "    f1() {",
        "      /* f1+0x1 */",
        "      f2();",
        "    }",
        "    /* f1 */",
        "    f1();",
        "  }",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn nothing_waits_for_steps_of_what_is_not_traced() {
    let steps = [
        (10, Enter(0)),
        (15, of(UNTRACED, ENTRY)),
        (20, Hit(OTHER)),
        (20, Leave(0)),
        (30, of(UNTRACED, ENTRY)),
        (30, Enter(0)),
        (40, Enter(1)),
        (50, Leave(1)),
        (50, Leave(0)),
    ];
    let expected = [
        "  f0() {",
        "    /* f3 */",
        "    /* tracepoint */",
        "  }",
        "  /* f3 */",
        "  f0() {",
        "    f1();",
        "  }",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn what_waits_on_one_vcpu_holds_up_nothing_on_another() {
    let both = |at, step| [(at, 0, step), (at, 1, step)];
    let steps = [
        both(10, Enter(1)),
        both(20, of(1, RETURN)),
        both(20, Leave(1)),
        both(30, Enter(2)),
        // Neither is a step of the other's.
        both(31, Enter(1)),
        both(31, of(1, INSIDE)),
        both(31, of(1, RETURN)),
        both(31, Leave(1)),
        both(40, Leave(2)),
    ];
    let (_root, directory) = trace(&steps.concat(), GRAPH);
    let text = printed(&directory, Format::Graph);
    let expected = [
        "  f1() {",
        "    /* f1%return */",
        "  }",
        "  f2() {",
        "    f1() {",
        "      /* f1+0x1 */",
        "      /* f1%return */",
        "    }",
        "  }",
    ];
    for vcpu in [" 0) ", " 1) "] {
        let lines = text.lines().filter(|line| line.starts_with(vcpu));
        let shown = lines.filter_map(|line| line.split_once('|'));
        let shown: Vec<_> = shown.map(|(_, shown)| shown.trim_end()).collect();
        assert_eq!(shown, expected, "{text}");
    }
}

#[test]
fn what_stands_before_a_hit_comes_before_its_step_too() {
    let steps = [
        (10, Enter(0)),
        (20, Enter(1)),
        // Nobody knows of it where it belongs, but it was before the next.
        (20, of(1, INSIDE)),
        (20, of(2, ENTRY)),
        (20, Enter(2)),
        (30, Hit(OTHER)),
        (30, of(2, RETURN)),
        (30, Leave(2)),
        (40, Leave(1)),
        (50, Leave(0)),
    ];
    let expected = [
        "  f0() {",
        "    f1() {",
        "      /* f1+0x1 */",
        "      /* f2 */",
        "      f2() {",
        "        /* tracepoint */",
        "        /* f2%return */",
        "      }",
        "    }",
        "  }",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn hits_inside_of_what_is_not_traced_wait_once_at_most() {
    for kind in [INSIDE, RETURN] {
        let steps = [
            (10, Enter(0)),
            (15, of(UNTRACED, kind)),
            (20, Leave(0)),
            (30, Enter(0)),
            (40, Enter(1)),
            (45, Leave(1)),
            (50, of(UNTRACED, kind)),
            (50, Enter(1)),
            (60, Leave(1)),
            (70, Leave(0)),
        ];
        let shown = shown(&steps);
        assert!(
            shown[1].contains("/* f3") && shown[5].contains("/* f3"),
            "{shown:?}"
        );
    }
}

#[test]
fn an_interrupt_between_a_hit_and_its_step_changes_nothing() {
    let steps = [
        (5, Enter(1)),
        (9, of(1, RETURN)),
        (9, Enter(2)),
        (10, Leave(2)),
        (10, Leave(1)),
        (10, Enter(1)),
        (10, of(1, RETURN)),
        (11, Leave(1)),
    ];
    let expected = [
        "  f1() {",
        "    f2() {",
        // Nobody knows that its step has another time.
        "      /* f1%return */",
        "    }",
        "  }",
        "  f1() {",
        "    /* f1%return */",
        "  }",
    ];
    assert_eq!(shown(&steps), expected);
}

#[test]
fn without_returns_a_hit_comes_after_the_beginning_of_its_call() {
    let steps = [
        (10, 0, Enter(0)),
        (20, 0, of(1, ENTRY)),
        (20, 0, Enter(1)),
        (20, 0, of(1, INSIDE)),
        (20, 0, Enter(2)),
        (20, 0, of(2, RETURN)),
        (20, 0, of(1, RETURN)),
        (30, 0, Enter(0)),
    ];
    let (_root, directory) = trace(&steps, "function");
    let text = printed(&directory, Format::Function);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let shown: Vec<_> = lines.filter_map(|line| line.rsplit_once(": ")).collect();
    let shown: Vec<_> = shown.iter().map(|(_, what)| *what).collect();
    let expected = [
        "f0",
        "f1",
        "f1",
        "f1+0x1",
        "f2",
        "f2%return",
        "f1%return",
        "f0",
    ];
    assert_eq!(shown, expected, "{text}");
}

#[test]
fn what_is_said_of_probes_may_be_missing_or_damaged() {
    let steps = [(10, 0, Enter(1)), (20, 0, of(1, RETURN)), (30, 0, Leave(1))];
    let (_root, directory) = trace(&steps, GRAPH);
    let whole = graph(&directory);
    let file = directory.join("probes.json");
    // Of before it was said which ones are of returns.
    let older = std::fs::read_to_string(&file).unwrap();
    let older: Vec<_> = older
        .lines()
        .filter(|line| !line.contains("is_return"))
        .collect();
    for damaged in [older.join("\n").as_str(), "{}", "[{\"id\":1", ""] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(graph(&directory), whole, "{damaged}");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(graph(&directory), whole);
}

/// What happens in random calls of the traced functions, which are hit where they begin and end.
fn calls() -> impl Strategy<Value = Vec<Step>> {
    let call = |function, inside: Vec<Step>| {
        let begin = [of(function, ENTRY), Enter(function)];
        let end = [of(function, RETURN), Leave(function)];
        [&begin[..], &inside, &end].concat()
    };
    let leaf = (0..UNTRACED).prop_map(move |function| call(function, Vec::new()));
    leaf.prop_recursive(5, 60, 4, move |inner| {
        let inside = proptest::collection::vec(inner, 1..4);
        (0..UNTRACED, inside).prop_map(move |(function, inside)| call(function, inside.concat()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// However coarse a clock is, its trace shows what happened in the order in which it did.
    #[test]
    fn a_coarse_clock_changes_no_order(steps in calls(), beat in 1_u64..2_000) {
        let fine: Vec<_> = (100..).step_by(10).zip(steps.iter().copied()).collect();
        let coarse: Vec<_> = fine.iter().map(|(time, step)| (time / beat * beat, *step)).collect();
        prop_assert_eq!(shown(&coarse), shown(&fine));
    }
}
