//! Page tables that are built anew while a session is attached: what was one is somebody's data.

use serde_json::{Value, json};
use tests::exact::{assert_exact, gated, untraced, without_gate};
use tests::{Client, Guest, Running, scaled};

const PROBES: [&str; 3] = ["smp_root", "smp_branch %rdi", "smp_leaf %rdi"];

/// Hooks returns and sets probes, and takes all of it out again.
fn toggle(client: &mut Client) {
    let graph = json!({"session": "other", "filter": ["smp_*"]});
    client.call("start", graph);
    let probes = json!({"session": "other", "probes": PROBES});
    let added = client.call("probe.add", probes);
    let ids: Vec<&Value> = added["probes"].as_array().unwrap().iter().collect();
    let ids: Vec<&Value> = ids.into_iter().map(|one| &one["id"]).collect();
    client.call(
        "filter.set",
        json!({"session": "other", "filter": ["smp_leaf"]}),
    );
    client.call("probe.remove", json!({"ids": ids}));
    client.call("stop", json!({"session": "other"}));
}

fn with_another(running: &mut Running) -> Client {
    let mut client = running.client();
    let other = json!({"name": "other", "tracer": "graph"});
    client.call("session.create", other);
    client
}

/// Each vCPU has another topmost table before each call; the tables below are those that it had.
#[test]
fn tables_that_come_and_go_under_sessions_and_probes_change_no_count() {
    let rest = format!("iterations={}", scaled(1000));
    let expected = untraced(gated("tables", &rest).vcpus(2));
    let mut running = gated("tables,spin", &rest)
        .vcpus(2)
        .with(["--mode", "discard", "--ring-size", "32768"])
        .output()
        .start();
    running.wait_for("workload spin");
    let mut client = with_another(&mut running);
    let digest = client.digest();
    client.call("start", json!({"notrace": ["spin_*"]}));
    running.type_text("q");
    let mut rounds = 0;
    while rounds < 10 || !running.printed().contains("checksum tables") && rounds < 1000 {
        toggle(&mut client);
        rounds += 1;
    }
    running.wait_for("checksum tables");
    client.call("stop", Value::Null);
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let (ended, trace) = running.end();
    let ended = ended.good();
    assert!(ended.stdout.contains("counter spoilt 0"), "{ended}");
    let printed = without_gate(ended.printed());
    assert_eq!(printed.calls, expected.calls);
    assert_eq!(printed.checksums, expected.checksums);
    assert_exact(&trace, &printed);
}

/// Before each call all tables that lead to the image are new: the window is in them, as far as the guest has copied it,
/// but not in those that we know. It was once: a zero in what had been a table was taken for an entry that the
/// guest had cleared, and eight bytes were written there.
#[test]
fn what_was_a_page_table_is_not_written_to() {
    // The tables that are used when all are through are others than before.
    let iterations = scaled(400) + 1;
    let cmdline = format!(
        "workload=all_tables,list,spin,all_tables,list,spin,all_tables iterations={iterations}"
    );
    let mut running = Guest::new(&cmdline).start();
    running.wait_for("workload spin");
    let mut client = with_another(&mut running);
    let digest = client.digest();
    client.call("start", json!({"filter": ["smp_*", "spin_*"]}));
    toggle(&mut client);
    running.type_text("q");
    let status = client.wait_until("the window is missed", |status| {
        status["tracing"]["frozen"]["reason"].is_string()
    });
    let why = status["tracing"]["frozen"]["reason"].as_str().unwrap();
    assert!(why.contains("does not see the window"), "{why}");
    assert_eq!(client.digest(), digest);
    for session in ["default", "other"] {
        let refused = client.refused("start", json!({"session": session}));
        assert!(refused.contains("does not see the window"), "{refused}");
    }
    running.wait_for_times("workload spin", 2);
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let (ended, _) = running.end();
    let ended = ended.good();
    let clean = ended.stdout.matches("counter spoilt 0").count();
    assert_eq!(clean, 3, "{ended}");
    assert!(ended.stderr.contains("tracing has ended"), "{ended}");
    let sums = ended.printed().checksums;
    let sums: Vec<&str> = sums.iter().map(|(_, sum)| &**sum).collect();
    assert_eq!(sums, [sums[0]; 3]);
}
