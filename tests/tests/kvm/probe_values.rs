//! Values that probes find by the debug information of the guest: in registers, behind pointers, in text, on the stack, and
//! nowhere. Everything follows from `serial`.

use std::fs;

use serde_json::{Value, json};
use tests::exact::{gated, untraced};
use tests::{Guest, Trace, in_the_box};

const THREADS: u64 = 5;

/// So few that all hits fit into the ring of one vCPU, however late the reader is.
fn iterations() -> u64 {
    if in_the_box() { 200 } else { 500 }
}

/// The fields of every hit of the probe of this name.
fn hits(trace: &Trace, name: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for entry in fs::read_dir(trace.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "jsonl") {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let lines = lines.filter(|line: &Value| line["event"] == name);
            found.extend(lines.map(|mut line| line["fields"].take()));
        }
    }
    found
}

const COLORS: [&str; 3] = ["VALUES_RED", "VALUES_GREEN", "VALUES_BLUE"];
const NAMES: [&str; 3] = [
    "red",
    "",
    "a name that is longer than most other names are, by far",
];

fn of_three(serial: u64, all: [&'static str; 3]) -> &'static str {
    all[usize::try_from(serial % 3).unwrap()]
}

/// What `registers` finds behind its fifth parameter and its sixth.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "that is how the guest makes them"
)]
fn expected(serial: u64) -> Value {
    json!({
        "serial": serial,
        "number": serial.wrapping_mul(3).wrapping_neg() as i32,
        "item->color": {"enum": of_three(serial, COLORS)},
        "item->next->serial": serial.wrapping_add(1),
        "item->part.id": (serial >> 3) as u16,
        "item->table[2]": serial.wrapping_mul(3) as i32,
        "text": {"text": of_three(serial, NAMES)},
    })
}

const OF_RUST: &str = "serial state is_odd small point.x point.y point.label";
const LABELS: [&str; 3] = ["alpha", "", "a label that is rather long, for a label"];

/// The same in Rust.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "that is how the guest makes them"
)]
fn expected_of_rust(serial: u64) -> Value {
    let is_odd = serial % 2 == 1;
    json!({
        "serial": serial,
        "state": {"enum": if is_odd { "Busy" } else { "Idle" }},
        "is_odd": is_odd,
        "small": serial as i8,
        "point.x": (serial as i32).wrapping_mul(-2),
        "point.y": !serial as i64,
        "point.label": {"text": of_three(serial, LABELS)},
    })
}

#[test]
fn variables_are_what_the_guest_has_computed_under_preemption() {
    let rest = format!("iterations={} threads={THREADS} tick=200", iterations());
    let untraced = untraced(gated("values", &rest).vcpus(2));
    let fetches =
        "serial number item->color item->next->serial item->part.id item->table[2] text:string";
    let builds = ["unoptimised_registers", "optimised_registers"];
    let probes = builds.map(|name| format!("{name} {fetches}"));
    let (ended, trace) = Guest::new(&format!("workload=values {rest}"))
        .vcpus(2)
        .with(["--probe", &probes[0], "--probe", &probes[1]])
        .with(["--probe", "unoptimised_nowhere serial item->serial"])
        .with([
            "--probe",
            "optimised_name serial if serial % 3 == 2 && serial % 2 == 1",
        ])
        .with([
            "--probe",
            r#"optimised_registers+5 serial if text == "red""#,
        ])
        .with(["--probe", &format!("rust_values_arguments {OF_RUST}")])
        .with(["--mode", "discard", "--ring-size", "32768"])
        .output()
        .run();
    let printed = ended.good().printed();
    assert_eq!(printed.checksums, untraced.checksums);
    assert_eq!(trace.lost(), 0);
    let mut serials = Vec::new();
    for name in builds {
        let found = hits(&trace, name);
        assert_eq!(found.len() as u64, printed.calls[name], "{name}");
        for fields in &found {
            assert_eq!(fields, &expected(fields["serial"].as_u64().unwrap()));
        }
        serials = found;
    }
    let serials = serials
        .iter()
        .map(|fields| fields["serial"].as_u64().unwrap());
    let serials: Vec<u64> = serials.collect();
    // Not canonical, not mapped, and in the first page, which is there.
    let nowhere = hits(&trace, "unoptimised_nowhere");
    assert_eq!(nowhere.len(), serials.len());
    for fields in &nowhere {
        let is_fault = fields["item->serial"].is_null();
        assert_eq!(
            is_fault,
            fields["serial"].as_u64().unwrap() % 3 != 2,
            "{fields}"
        );
    }
    let count = |wanted: fn(u64) -> bool| serials.iter().filter(|serial| wanted(**serial)).count();
    let names = hits(&trace, "optimised_name");
    assert_eq!(
        names.len(),
        count(|serial| serial % 3 == 2 && serial % 2 == 1)
    );
    let reds = hits(&trace, "optimised_registers+0x5");
    assert_eq!(reds.len(), count(|serial| serial % 3 == 0));
    let of_rust = hits(&trace, "rust_values_arguments");
    assert_eq!(of_rust.len(), serials.len());
    for fields in &of_rust {
        let serial = fields["serial"].as_u64().unwrap();
        assert_eq!(fields, &expected_of_rust(serial));
    }
}
