//! Markers: values in the middle of functions, fetched from where a note says they are.

use serde_json::{Value, json};
use tests::exact::{gated, untraced, without_gate};
use tests::{Guest, guest, in_the_box, vmm_says};

const BUILDS: [&str; 3] = ["fentry", "mcount", "patchable"];
const THREADS: u64 = 5;

/// So few that all ten markers of all threads fit into the ring of one vCPU: nothing is lost, however late
/// the reader is.
fn iterations() -> u64 {
    if in_the_box() { 300 } else { 2000 }
}

fn rest() -> String {
    format!("iterations={} threads={THREADS} tick=200", iterations())
}

fn unsigned(fields: &Value, name: &str) -> u64 {
    fields[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} of {fields}"))
}

fn signed(fields: &Value, name: &str) -> i64 {
    fields[name]
        .as_i64()
        .unwrap_or_else(|| panic!("{name} of {fields}"))
}

/// What the guest makes of one value, in the registers of `marked`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "that is how the guest makes them"
)]
fn assert_mark(fields: &Value) {
    let value = unsigned(fields, "value");
    assert_eq!(signed(fields, "less"), i64::from(value as i32), "{fields}");
    assert_eq!(unsigned(fields, "low"), u64::from(value as u8), "{fields}");
    assert_eq!(
        signed(fields, "turned"),
        i64::from(value.wrapping_neg() as i16),
        "{fields}"
    );
}

/// What the marker in Rust says.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "that is how the guest makes them"
)]
fn assert_rust(fields: &Value) {
    let value = unsigned(fields, "value");
    assert_eq!(signed(fields, "less"), i64::from(value as i32), "{fields}");
    assert_eq!(unsigned(fields, "low"), u64::from(value as u16), "{fields}");
    let turned = i64::from(value.wrapping_neg() as i16);
    assert_eq!(signed(fields, "turned"), turned, "{fields}");
    assert_eq!(unsigned(fields, "wide"), value >> 32, "{fields}");
    assert_eq!(signed(fields, "below"), -(value as i64 >> 1), "{fields}");
}

/// The same on its stack.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "that is how the guest makes them"
)]
fn assert_stack(fields: &Value) {
    let value = signed(fields, "below").wrapping_neg() as u64;
    assert_eq!(unsigned(fields, "wide"), value >> 32, "{fields}");
    assert_eq!(
        signed(fields, "last"),
        i64::from((value as i32).wrapping_neg()),
        "{fields}"
    );
    let parts = [
        (value >> 7).wrapping_mul(3),
        (value << 9).wrapping_mul(5),
        value ^ 0x55,
    ];
    let sum = parts.into_iter().fold(value, u64::wrapping_add);
    assert_eq!(unsigned(fields, "sum"), sum, "{fields}");
}

#[test]
fn every_pass_is_recorded_with_its_values_and_changes_nothing() {
    let expected = Guest::new(&format!("workload=marks {}", rest()))
        .vcpus(2)
        .run()
        .0
        .good();
    let mut guest = Guest::new(&format!("workload=marks {}", rest())).vcpus(2);
    for build in BUILDS {
        for mark in ["mark", "mark_stack", "mark_constants"] {
            guest = guest.with(["--event", &format!("guest:{build}_{mark}")]);
        }
    }
    guest = guest.with(["--event", "guest:rust_mark"]);
    let options = ["--mode", "discard", "--ring-size", "16384"];
    let (ended, trace) = guest.with(options).output().run();
    let ended = ended.good();
    assert_eq!(
        ended.printed(),
        expected.printed(),
        "markers changed what the guest computes"
    );
    assert_eq!(trace.lost(), 0);
    for build in BUILDS {
        let passes = usize::try_from(THREADS * iterations()).unwrap();
        let of = |mark: &str| {
            let found = trace.fields(&format!("guest:{build}_{mark}"));
            assert_eq!(found.len(), passes, "{build}_{mark}");
            found
        };
        of("mark").iter().for_each(assert_mark);
        of("mark_stack").iter().for_each(assert_stack);
        for constants in of("mark_constants") {
            assert_eq!(constants["five"], 5, "{constants}");
            assert_eq!(constants["minus"], -7, "{constants}");
        }
    }
    let of_rust = trace.fields("guest:rust_mark");
    assert_eq!(of_rust.len() as u64, THREADS * iterations());
    of_rust.iter().for_each(assert_rust);
}

/// Markers that are switched all the time, by two sessions: nothing of the guest changes, and afterwards
/// every byte is as it was.
#[test]
fn two_sessions_share_a_marker_and_leave_no_trace() {
    let rest = format!(
        "iterations={} threads={THREADS} tick=200",
        20 * iterations()
    );
    let expected = untraced(gated("marks", &rest).vcpus(2));
    let mut running = gated("marks,spin", &rest).vcpus(2).start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let digest = client.digest();
    client.call("session.create", json!({"name": "other", "tracer": "nop"}));
    client.call("start", json!({"tracer": "nop"}));
    client.call("start", json!({"session": "other"}));
    let events = json!([
        "guest:fentry_mark",
        "guest:mcount_mark_stack",
        "guest:patchable_mark"
    ]);
    let one = json!({"events": events});
    let other = json!({"events": events, "session": "other"});
    client.call("events.enable", one.clone());
    client.call("events.enable", other.clone());
    let list = client.call("events.list", Value::Null);
    let find = |name: &str| {
        let events = list["events"].as_array().unwrap().iter();
        events
            .clone()
            .find(|event| event["name"] == name)
            .unwrap()
            .clone()
    };
    let marker = find("guest:fentry_mark");
    assert_eq!(marker["kind"], "marker");
    assert_eq!(
        marker["callbacks"],
        json!(["session default", "session other"])
    );
    running.type_text("q");
    for round in 0..100 {
        let change = if round % 3 == 0 { &other } else { &one };
        let method = if round % 2 == 0 {
            "events.disable"
        } else {
            "events.enable"
        };
        client.call(method, change.clone());
    }
    running.wait_for("checksum marks");
    client.call("stop", json!({"session": "other"}));
    client.call("events.disable", one);
    assert_eq!(client.digest(), digest);
    running.type_text("q");
    let printed = without_gate(running.end().0.good().printed());
    assert_eq!(printed.checksums, expected.checksums);
}

#[test]
fn functions_of_the_guest_cannot_be_called_at_markers() {
    let mut running = Guest::new("workload=list,spin").start();
    running.wait_for("workload spin");
    let mut client = running.client();
    let change = json!({"events": ["guest:fentry_mark"], "callbacks": ["sent_count"]});
    let said = client.refused("events.enable", change);
    assert!(
        said.contains("guest:fentry_mark is a marker: only sessions can record it"),
        "{said}"
    );
    running.type_text("q");
    let _ = running.end().0.good();
    let table = vmm_says(&["sites".as_ref(), guest().as_os_str()])
        .good()
        .stdout;
    assert!(
        table.contains("note: .note.stapsdt: 10 markers, 10 sites"),
        "{table}"
    );
}
