//! Dynamic functions: retargeted from outside while the guest calls them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tests::{Client, Guest, Random, Running, in_the_box, scaled};

const TARGETS: [&str; 3] = ["first", "second", "third"];

/// The line that the guest prints when it finds function `number` somewhere else.
fn line(number: usize, target: &str) -> String {
    format!("dynfunc func{number} leads to {target}\n")
}

fn target(number: usize, target: &str) -> String {
    format!("func{number}_{target}")
}

fn change(number: usize, target: &str) -> Value {
    json!({"name": format!("func{number}"), "target": target})
}

/// What each function leads to, by the host's word.
fn leads(client: &mut Client) -> Vec<String> {
    let list = client.call("dynfunc.list", Value::Null);
    let functions = list["functions"].as_array().unwrap();
    let target = |function: &Value| function["target"].as_str().unwrap().to_owned();
    functions.iter().map(target).collect()
}

/// Calls of each target as a profile session has counted them in the guest.
fn profiled(client: &mut Client) -> BTreeMap<String, u64> {
    let profile = client.call("profile", json!({"session": "hits"}));
    let functions = profile["functions"].as_array().unwrap();
    let counted = |function: &Value| {
        let name = function["name"].as_str().unwrap().to_owned();
        (name, function["hits"].as_u64().unwrap())
    };
    functions.iter().map(counted).collect()
}

/// Changes one to four functions at once, `changes` times, and waits each time until the guest has
/// seen it. Returns the lines that the guest must have printed for each function, in order.
fn switch_at_random(running: &Running, client: &mut Client, changes: usize) -> Vec<Vec<String>> {
    let mut random = Random::new();
    let mut now: Vec<String> = (0..4).map(|number| target(number, "first")).collect();
    let mut seen: Vec<Vec<String>> = (0..4).map(|n| vec![line(n, &now[n])]).collect();
    for _ in 0..changes {
        let mut set = Vec::new();
        for (number, now) in now.iter_mut().enumerate() {
            let picked = random.pick(&TARGETS);
            let next = target(number, picked);
            // Most changes are of several functions; some change nothing.
            if random.next_u64().is_multiple_of(3) {
                continue;
            }
            set.push(change(number, &next));
            if *now != next {
                seen[number].push(line(number, &next));
                *now = next;
            }
        }
        client.call("dynfunc.set", json!({"changes": set}));
        assert_eq!(leads(client), now);
        for line in seen.iter().filter_map(|lines| lines.last()) {
            let times = seen.iter().flatten().filter(|other| *other == line).count();
            running.wait_for_times(line, times);
        }
    }
    seen
}

/// While threads are preempted and migrated, functions are retargeted over and over. The guest's main
/// thread sees every change, in order, and what the host counts of each target is what its callers
/// have counted.
#[test]
fn each_target_is_called_as_often_as_its_callers_say_and_at_the_right_time() {
    each_target_is_called_at_the_right_time("quiesce");
}

#[test]
fn live_each_target_is_called_as_often_as_its_callers_say_too() {
    each_target_is_called_at_the_right_time("live");
}

fn each_target_is_called_at_the_right_time(method: &str) {
    let guest = Guest::new("workload=list,spin,dynfunc,spin threads=5 tick=200").vcpus(2);
    let mut running = guest.with(["--patch-method", method]).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call(
        "session.create",
        json!({"name": "hits", "tracer": "profile"}),
    );
    client.call("start", json!({"session": "hits", "filter": ["func?_*"]}));
    running.type_text("q");
    running.wait_for(&line(3, "func3_first"));

    let changes = if in_the_box() { 10 } else { 60 };
    let expected = switch_at_random(&running, &mut client, changes);
    let all = ["func0", "func1", "func2", "func3"];
    client.call("dynfunc.reset", json!({"names": all}));
    running.type_text("q");
    running.wait_for("calls func3_third");
    let counted = profiled(&mut client);
    client.call("stop", json!({"session": "hits"}));
    assert_eq!(client.digest(), digest);
    running.type_text("q");

    let (ended, _) = running.end();
    let ended = ended.good();
    let printed = ended.printed().called();
    let said = printed.iter().filter(|(name, _)| name.starts_with("func"));
    let said: BTreeMap<String, u64> = said.map(|(name, n)| (name.clone(), *n)).collect();
    assert!(said.len() > 4, "{said:?}");
    assert_eq!(counted, said);
    for (number, expected) in expected.iter().enumerate() {
        let start = format!("dynfunc func{number} ");
        let lines = ended.stdout.split_inclusive('\n');
        let lines: Vec<&str> = lines.filter(|line| line.starts_with(&start)).collect();
        // The last change of all, to the default, may come too late to be seen.
        let seen = &lines[..expected.len().min(lines.len())];
        assert_eq!(seen, expected, "func{number}");
    }
}

#[test]
fn a_reset_gives_every_byte_back() {
    let mut running = Guest::new("workload=dynfunc").vcpus(2).start();
    running.wait_for(&line(3, "func3_first"));
    let mut client = running.client();
    let digest = client.digest();
    let set = json!({"changes": [change(1, "func1_third"), change(3, "func3_second")]});
    let changed = client.call("dynfunc.set", set);
    assert_eq!(
        changed["functions"].as_array().unwrap().len(),
        2,
        "{changed}"
    );
    running.wait_for(&line(1, "func1_third"));
    running.wait_for(&line(3, "func3_second"));
    assert_ne!(client.digest(), digest);
    client.call("dynfunc.reset", json!({"names": ["func1", "func3"]}));
    assert_eq!(client.digest(), digest);
    let again = client.call("dynfunc.reset", json!({"names": ["func1"]}));
    assert_eq!(again["functions"], json!([]), "nothing had to be changed");
    running.type_text("q");
    let _ = running.end().0.good();
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_changes_nothing() {
    let mut running = Guest::new("workload=dynfunc").start();
    running.wait_for(&line(3, "func3_first"));
    let mut client = running.client();
    let digest = client.digest();
    let good = change(0, "func0_second");
    let cases = [
        (
            change(1, "func2_first"),
            "func1 is fn(u64) -> u64: it cannot lead to func2_first, which is fn(u64, u64) -> u64",
        ),
        (
            change(1, "calls_leaf"),
            "'calls_leaf' is no target of func1",
        ),
        (
            change(1, "nowhere"),
            "'nowhere' is no target of func1; these are: func1_first, ",
        ),
        (
            change(7, "func1_first"),
            "there is no dynamic function 'func7'; there are: func",
        ),
        (change(0, "func0_third"), "func0 is there twice"),
    ];
    for (bad, message) in cases {
        let said = client.refused("dynfunc.set", json!({"changes": [good, bad]}));
        assert!(said.contains(message), "{said}");
    }
    let said = client.refused("dynfunc.reset", json!({"names": ["func9"]}));
    assert!(said.contains("no dynamic function 'func9'"), "{said}");
    let ended = running.ctl(&["dynfunc", "set", "func0", "func0_first", "func1"]);
    let line = ended.refused(100);
    assert!(line.contains("'func1' has no target"), "{line}");
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
}

#[test]
fn ctl_lists_and_sets() {
    let mut running = Guest::new("workload=dynfunc").start();
    running.wait_for(&line(3, "func3_first"));
    let listed = running.ctl(&["dynfunc", "list"]).good().stdout;
    assert!(
        listed.contains("func2 leads to func2_first (default), fn(u64, u64) -> u64\n"),
        "{listed}"
    );
    assert!(
        listed.contains("  targets  func2_first func2_second func2_third\n"),
        "{listed}"
    );
    let pairs = ["func0", "func0_third", "func2", "func2_second"];
    let set = running
        .ctl(&[&["dynfunc", "set"][..], &pairs].concat())
        .good()
        .stdout;
    assert!(
        set.contains("func0 leads to func0_third now\nfunc2 leads to func2_second now\n"),
        "{set}"
    );
    running.wait_for(&line(0, "func0_third"));
    running.wait_for(&line(2, "func2_second"));
    let reset = running.ctl(&["dynfunc", "reset", "func0"]).good().stdout;
    assert!(
        reset.contains("func0 leads to func0_first now\n"),
        "{reset}"
    );
    running.type_text("q");
    let _ = running.end().0.good();
}

/// Without a pause but the first, in which it is seen where the guest's text is: whatever is read back, the guest
/// computes what it computes, and its text is as it was in the end.
#[test]
fn a_storm_of_live_retargeting_pauses_nothing_and_leaves_every_byte_as_it_was() {
    let guest = Guest::new("workload=dynfunc threads=5 tick=200").vcpus(2);
    let mut running = guest.with(["--patch-method", "live"]).start();
    running.wait_for(&line(3, "func3_first"));
    let mut client = running.client();
    let digest = client.digest();
    let mut random = Random::new();
    let pauses = |client: &mut Client| client.status()["pauses"]["parked"]["count"].clone();
    let first = json!({"changes": [change(0, &target(0, "second"))]});
    assert_eq!(client.call("dynfunc.set", first)["pauses"], 1);
    let before = pauses(&mut client);
    for _ in 0..scaled(300) {
        let set: Vec<Value> = (0..4)
            .map(|number| {
                let picked = random.pick(&TARGETS);
                change(number, &target(number, picked))
            })
            .collect();
        let changed = client.call("dynfunc.set", json!({"changes": set}));
        assert_eq!(changed["pauses"], 0, "{changed}");
        let leads = leads(&mut client);
        assert!(
            set.iter()
                .zip(&leads)
                .all(|(set, leads)| set["target"] == **leads),
            "{set:?} {leads:?}"
        );
    }
    let all = ["func0", "func1", "func2", "func3"];
    client.call("dynfunc.reset", json!({"names": all}));
    assert_eq!(pauses(&mut client), before);
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let _ = running.end().0.good();
}
