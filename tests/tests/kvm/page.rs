//! Reports on a terminal: coloured, and through a pager.

use tests::{Guest, Trace, vmm};

use crate::screen::{Screen, has};

fn trace() -> Trace {
    let (ended, trace) = Guest::new("workload=calls iterations=20")
        .with(["--trace", "graph", "--filter", "calls_*"])
        .output()
        .run();
    let _ = ended.good();
    trace
}

/// A screen with a report of this format on it, and then how it ended; `with` stands before it.
fn report(trace: &Trace, with: &str, format: &str) -> Screen {
    let vmm = vmm();
    let program = vmm.get_program().to_string_lossy();
    let trace = trace.path();
    let trace = trace.display();
    let report = format!("{program} report {trace} --format {format}");
    Screen::new(|_| format!("env -u NO_COLOR -u LESS {with} {report}; echo it ended with $?; cat"))
}

const HEADING: &str = "\u{1b}[2m# tracer: function_graph";

#[test]
fn what_is_longer_than_the_terminal_is_read_in_a_pager() {
    let trace = trace();
    let screen = report(&trace, "-u PAGER", "graph");
    // The first page, with a line for who reads.
    let page = screen.wait_until("a page", |lines| {
        lines.last().is_some_and(|last| last.starts_with(':'))
    });
    assert_eq!(page[0], "# tracer: function_graph");
    assert!(!has("it ended")(&page), "{page:?}");
    screen.wait_until_coloured("colours", |lines| lines[0].starts_with(HEADING));
    // Ctrl-C is the pager's, which forgets what was typed right behind it.
    screen.press(&["C-c"]);
    screen.wait_until("the last call", |lines| {
        let is_there = has("(END)")(lines);
        if !is_there {
            screen.press(&["G"]);
        }
        is_there
    });
    screen.press(&["q"]);
    screen.wait_until("an end", has("it ended with 0"));
}

#[test]
fn a_reader_who_has_seen_enough_ends_it() {
    let trace = trace();
    let screen = report(&trace, "PAGER='head -n 3'", "graph");
    let lines = screen.wait_until("an end", has("it ended with 0"));
    assert_eq!(lines[2], "# CPU  DURATION                  FUNCTION CALLS");
    assert!(lines[3].starts_with("it ended"), "{lines:?}");
}

#[test]
fn what_fits_is_shown_at_once_and_without_colours_where_nobody_wants_them() {
    let trace = trace();
    for (with, has_colours) in [
        ("-u PAGER", true),
        ("PAGER=cat", true),
        ("NO_COLOR=1", false),
        ("TERM=dumb", false),
    ] {
        let screen = report(&trace, with, "counts");
        screen.wait_until(with, has("it ended with 0"));
        let lines = screen.wait_until_coloured(with, has("it ended with 0"));
        let is_coloured = lines.iter().any(|line| line.contains('\u{1b}'));
        assert_eq!(is_coloured, has_colours, "{with}: {lines:?}");
        assert!(has("calls_leaf")(&lines), "{lines:?}");
    }
}

/// A pager that is not there is no reason to show nothing; one that needs a shell has one.
#[test]
fn without_the_pager_that_one_asks_for_the_report_is_there() {
    let trace = trace();
    let screen = report(&trace, "PAGER='no-such-pager -x'", "counts");
    let lines = screen.wait_until("an end", has("it ended with 0"));
    assert!(has("calls_leaf")(&lines), "{lines:?}");
    let screen = report(&trace, "PAGER='cat | tail -n 1'", "counts");
    let lines = screen.wait_until("an end", has("it ended with 0"));
    assert!(
        lines[0].starts_with("# 1260 calls of 6 functions"),
        "{lines:?}"
    );
}
