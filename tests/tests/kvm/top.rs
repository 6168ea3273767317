//! `vmm ctl top` on a terminal: what the screen shows, by tmux.

use std::process::Command;

use serde_json::json;
use tests::exact::{gated, open_gate};
use tests::{Running, vmm};

use crate::screen::{Screen, has};

const CALLS: &str = "iterations=60 tick=200";
/// Held open by a second gate: the guest is still there when all calls were made.
const WORKLOADS: &str = "calls,tail_calls,spin";

/// A screen with `vmm ctl top` on it; then a shell's word for how it ended.
fn top(guest: &Running, session: &str) -> Screen {
    let vmm = vmm();
    let program = vmm.get_program().to_string_lossy();
    let socket = guest.socket().display();
    let top = format!("{program} ctl --control {socket} --session {session} top --interval 50");
    Screen::new(|pid| {
        let top = format!("sh -c 'echo $$ >{}; exec {top}'", pid.display());
        format!("{top}; echo top ended with $?; stty -a | grep -o '.icanon'; cat")
    })
}

/// Hits of a function; none where it has no row.
fn hits(lines: &[String], function: &str) -> Option<u64> {
    let mut rows = lines.iter().map(|line| line.split_whitespace());
    let row = rows.find(|row| row.clone().last() == Some(function))?;
    row.clone().next()?.parse().ok()
}

/// The names of all rows, from the top down.
fn rows(lines: &[String]) -> Vec<&str> {
    let shown = lines.iter().skip_while(|line| !line.contains("HITS"));
    let shown = shown.skip(1).take_while(|line| !line.starts_with("q end"));
    shown
        .filter_map(|line| line.split_whitespace().last())
        .collect()
}

/// A graph is counted from what is told of it; a profile has counted itself. Both are exact.
#[test]
fn the_screen_shows_what_the_guest_has_called_and_who_called_it() {
    let mut running = gated(WORKLOADS, CALLS).vcpus(2).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    client.call(
        "session.create",
        json!({"name": "times", "tracer": "profile"}),
    );
    client.call("start", json!({"session": "times", "notrace": ["spin_*"]}));
    client.call("start", json!({"tracer": "graph", "notrace": ["spin_*"]}));
    let terminal = top(&running, "default");
    terminal.wait_until(
        "a session that was heard of",
        has("session default (graph, tracing)"),
    );
    running.type_text("q");
    running.wait_for("checksum tail_calls");
    let is_all = |lines: &[String]| hits(lines, "calls_leaf").is_some_and(|hits| hits > 0);
    terminal.wait_until("calls", is_all);
    let profile = client.call("profile", json!({"session": "times"}));
    let counted = |name: &str| {
        let functions = profile["functions"].as_array().unwrap();
        let one = functions.iter().find(|one| one["name"] == name);
        one.and_then(|one| one["hits"].as_u64())
    };
    let all = counted("calls_leaf").unwrap();
    let leaf = |lines: &[String]| hits(lines, "calls_leaf") == Some(all);
    terminal.wait_until("all calls", leaf);

    terminal.press(&["/", "calls_b", "Enter"]);
    let filtered = terminal.wait_until("a filter", |lines| lines[3] == "filter: calls_b");
    assert!(
        rows(&filtered)
            .iter()
            .all(|name| name.starts_with("calls_b")),
        "{filtered:#?}"
    );
    terminal.press(&["<", "<", "<"]);
    let by_name = terminal.wait_until("names in order", has("FUNCTIONv"));
    assert!(
        rows(&by_name).is_sorted() && rows(&by_name).len() > 1,
        "{by_name:#?}"
    );
    terminal.press(&["r"]);
    let reversed = terminal.wait_until("names from z to a", has("FUNCTION^"));
    assert!(
        rows(&reversed).is_sorted_by(|one, other| one >= other),
        "{reversed:#?}"
    );
    terminal.press(&["r", "Home", "Enter"]);
    let callers = terminal.wait_until("callers", has("callers of calls_"));
    let said = callers[3].split_whitespace().nth(2).unwrap();
    let sum: u64 = rows(&callers)
        .iter()
        .filter_map(|name| hits(&callers, name))
        .sum();
    assert_eq!(Some(sum), counted(said), "{callers:#?}");

    // One at a time: Escape and what follows it at once are one key for a terminal.
    terminal.press(&["Escape"]);
    terminal.wait_until("all functions", |lines| lines[3] == "filter: calls_b");
    terminal.press(&["Escape"]);
    terminal.wait_until("all functions", |lines| lines[3].is_empty());
    terminal.press(&["Tab"]);
    terminal.wait_until("the other session", has("session times (profile, tracing)"));
    terminal.wait_until("the profile", leaf);
    terminal.press(&["Enter"]);
    terminal.wait_until("no callers", has("a profile knows no callers"));
    terminal.press(&["q"]);
    terminal.wait_until("its end", has("top ended with 0"));
    drop(terminal);
    running.type_text("q");
    let _ = running.end().0.good();
}

/// What was counted last stays readable, and the terminal is the user's again: also of a screen that is held.
#[test]
fn the_guests_end_is_the_end_of_the_screen() {
    for is_held in [false, true] {
        let mut running = gated("calls", CALLS).start();
        running.wait_for("workload spin");
        let terminal = top(&running, "default");
        terminal.wait_until("a session", has("session default (function, off)"));
        if is_held {
            terminal.press(&["Space"]);
            terminal.wait_until("a screen that is held", has("HELD"));
        }
        open_gate(&mut running);
        let left = terminal.wait_until("an end", has("top ended with 0"));
        assert!(has("# session default: ")(&left), "{left:#?}");
        drop(terminal);
        let _ = running.end().0.good();
    }
}

/// Also one that meets a thread which waits for the VMM.
#[test]
fn a_signal_ends_it_and_the_terminal_is_the_users_again() {
    let mut running = gated("calls", CALLS).start();
    running.wait_for("workload spin");
    for _ in 0..5 {
        let terminal = top(&running, "default");
        terminal.wait_until("a session", has("session default (function, off)"));
        let mut kill = Command::new("kill");
        assert!(kill.arg(terminal.pid().trim()).status().unwrap().success());
        terminal.wait_until("its end", has("top ended with 0"));
        terminal.wait_until("lines", has(" icanon"));
    }
    running.type_text("q");
    let _ = running.end().0.good();
}
