//! Values that probes capture, against what the guest's workload `values` makes of each serial number.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "that is how the guest makes its values"
)]

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tests::{Guest, Trace, guest, in_the_box};

const THREADS: u64 = 4;
const SEED: u64 = 7;

/// So few that the records of all probes fit into the rings: nothing is lost, however late the reader is.
fn iterations() -> u64 {
    if in_the_box() { 100 } else { 500 }
}

/// The guest's own formula (`control/src/workload.rs`).
fn first_value(thread: u64) -> u64 {
    let mut value = SEED.wrapping_add(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Threads that are preempted often, on any vCPU.
fn cmdline() -> String {
    let iterations = iterations();
    format!("workload=values iterations={iterations} threads={THREADS} seed={SEED} tick=200")
}

/// Every serial number that a run has.
fn serials() -> BTreeSet<u64> {
    let of = |thread| (0..iterations()).map(move |one| first_value(thread).wrapping_add(one));
    (0..THREADS).flat_map(of).collect()
}

const NAMES: [&str; 3] = [
    "red",
    "",
    "a name that is longer than most other names are, by far",
];
const LABELS: [&str; 3] = ["alpha", "", "a label that is rather long, for a label"];
const COLORS: [&str; 3] = ["VALUES_RED", "VALUES_GREEN", "VALUES_BLUE"];

fn third<T: Copy>(of: [T; 3], serial: u64) -> T {
    of[usize::try_from(serial % 3).unwrap()]
}

fn text(text: &str) -> Value {
    json!({ "text": text })
}

fn named(name: &str) -> Value {
    json!({ "enum": name })
}

/// What a value must be, for this serial number.
type Expected = fn(u64) -> Value;

/// A probe: what is asked for, and what must come of it.
struct Probe {
    at: String,
    values: Vec<(&'static str, Expected)>,
    condition: &'static str,
    holds: fn(u64) -> bool,
    /// How often each serial number passes it.
    times: usize,
}

impl Probe {
    /// `serial` is captured always, to know whose values they are.
    fn new(at: &str, values: &[(&'static str, Expected)]) -> Self {
        Self {
            at: at.to_owned(),
            values: values.to_vec(),
            condition: "",
            holds: |_| true,
            times: 1,
        }
    }

    fn when(mut self, condition: &'static str, holds: fn(u64) -> bool) -> Self {
        self.condition = condition;
        self.holds = holds;
        self
    }

    fn definition(&self) -> String {
        let values: Vec<&str> = self.values.iter().map(|(fetch, _)| *fetch).collect();
        format!("{} serial {}{}", self.at, values.join(" "), self.condition)
    }

    /// What a value is called: as it was asked for, without its type.
    fn check(&self, trace: &Trace) {
        let passes = trace.fields(&self.at);
        let found: Vec<u64> = passes
            .iter()
            .map(|fields| {
                fields["serial"]
                    .as_u64()
                    .unwrap_or_else(|| panic!("{fields}"))
            })
            .collect();
        let once: BTreeSet<u64> = found.iter().copied().collect();
        let expected: BTreeSet<u64> = serials()
            .into_iter()
            .filter(|one| (self.holds)(*one))
            .collect();
        assert_eq!(found.len(), self.times * expected.len(), "{}", self.at);
        assert_eq!(once, expected, "{}", self.at);
        for (fields, serial) in passes.iter().zip(found) {
            for (fetch, value) in &self.values {
                let name = fetch.split(':').next().unwrap();
                let expected = value(serial);
                assert_eq!(fields[name], expected, "{}: {fetch} of {fields}", self.at);
            }
        }
    }
}

/// The line of c/values.c that says so.
fn line(mark: &str) -> usize {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/workloads/c/values.c");
    let source = std::fs::read_to_string(source).unwrap();
    let is_it = |line: &str| line.contains(&format!("/* line: {mark} */"));
    1 + source.lines().position(is_it).unwrap()
}

/// Every probe is set before the guest's first instruction of the workload, and each pass of each must have the
/// values of its serial number, whatever preempted or migrated its thread; what the guest computes is what it
/// computes without.
fn assert_values(probes: &[Probe]) {
    let cmdline = cmdline();
    let untraced = Guest::new(&cmdline).vcpus(2).run().0.good();
    let mut guest = Guest::new(&cmdline).vcpus(2);
    for probe in probes {
        guest = guest.with(["--probe", &probe.definition()]);
    }
    let options = ["--mode", "discard", "--ring-size", "32768"];
    let (ended, trace) = guest.with(options).output().run();
    let ended = ended.good();
    assert_eq!(
        ended.printed(),
        untraced.printed(),
        "probes changed what the guest computes"
    );
    assert_eq!(trace.lost(), 0);
    for probe in probes {
        probe.check(&trace);
    }
}

/// The same by debug information of a kernel that another VMM runs.
#[test]
fn values_of_a_guest_of_qemu_are_what_they_are() {
    let arguments: &[(&str, Expected)] = &[
        ("text:string", |serial| text(third(NAMES, serial))),
        ("item->next->serial", |serial| json!(serial.wrapping_add(1))),
        ("item->part.flags", |serial| json!(serial & 7)),
        ("item->color", |serial| named(third(COLORS, serial))),
    ];
    let locals: &[(&str, Expected)] = &[("late", |serial| json!(late(serial)))];
    let probes = [
        Probe::new("optimised_registers", arguments),
        Probe {
            times: 2,
            ..Probe::new(&format!("values.c:{}", line("locals")), locals)
        },
    ];
    let (rest, name) = (cmdline(), format!("exotrace-values-{}", std::process::id()));
    let cmdline = rest.replace("workload=", "workload=list,spin,");
    let mut qemu = Guest::under_qemu(&name, &cmdline, 2).start();
    qemu.wait_for("workload spin");
    let mut attached = Guest::attached(qemu.pid(), Some(&guest()));
    for probe in &probes {
        attached = attached.with(["--probe", &probe.definition()]);
    }
    let options = ["--mode", "discard", "--ring-size", "32768"];
    let mut attached = attached.with(options).output().start();
    attached.client().status();
    qemu.type_text("q");
    let (ended, _) = qemu.end();
    assert_eq!(ended.code, Some(1), "{ended}");
    let (ended, trace) = attached.end();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!(trace.lost(), 0);
    for probe in &probes {
        probe.check(&trace);
    }
}

/// Arguments of every kind, at the entry of functions in C, without optimisation and with it.
#[test]
fn arguments_in_c_are_what_they_are_whatever_the_compiler_did() {
    let registers: &[(&str, Expected)] = &[
        ("number", |serial| {
            json!(serial.wrapping_mul(3).wrapping_neg() as i32)
        }),
        ("small", |serial| json!(serial as u8)),
        ("narrow", |serial| json!(!serial as i16)),
        ("text:string", |serial| text(third(NAMES, serial))),
        ("item->serial", |serial| json!(serial)),
        ("item->next->serial", |serial| json!(serial.wrapping_add(1))),
        ("item->next->next", |_| json!("0x0")),
        ("item->part.id", |serial| json!((serial >> 3) as u16)),
        ("item->part.level", |serial| {
            json!(serial.wrapping_neg() as i8)
        }),
        ("item->part.flags", |serial| json!(serial & 7)),
        ("item->part.rest", |serial| json!(serial >> 5 & 0x1fff)),
        ("item->color", |serial| named(third(COLORS, serial))),
        ("item->next->color", |serial| {
            named(third(COLORS, serial.wrapping_add(1)))
        }),
        ("item->next->name:string", |serial| {
            text(third(NAMES, serial.wrapping_add(1)))
        }),
        ("item->table[2]", |serial| {
            json!(serial.wrapping_mul(3) as i32)
        }),
    ];
    let stacked: &[(&str, Expected)] = &[
        ("b", |_| json!(1)),
        ("f", |_| json!(5)),
        ("seventh", |serial| json!(serial.wrapping_neg() as i64)),
        ("eighth", |serial| json!(serial.wrapping_mul(7) as i32)),
        ("ninth", |serial| json!(serial.wrapping_mul(5) as u8)),
    ];
    // What is at 0x10 nobody knows.
    let nowhere: &[(&str, Expected)] = &[
        ("item", |serial| {
            let [first, second, _] = ["0x8000000000000000", "0xffffff0000001000", "0x10"];
            json!(third([first, second, ""], serial))
        }),
        ("item->serial", |_| Value::Null),
        ("item->part.flags", |_| Value::Null),
        ("item->name:string", |_| Value::Null),
    ];
    let mut probes = Vec::new();
    for build in ["unoptimised", "optimised"] {
        probes.push(Probe::new(&format!("{build}_registers"), registers));
        probes.push(Probe::new(&format!("{build}_stacked"), stacked));
        let nowhere = Probe::new(&format!("{build}_nowhere"), nowhere);
        probes.push(nowhere.when(" if serial % 3 != 2", |serial| serial % 3 != 2));
    }
    assert_values(&probes);
}

/// In the middle of functions: locals in registers, on the stack, and structures in pieces.
#[test]
fn locals_are_captured_at_lines_in_the_middle_of_functions() {
    let locals: &[(&str, Expected)] = &[
        ("late", |serial| json!(late(serial))),
        ("sum", |serial| json!(sum(serial))),
    ];
    let pieces: &[(&str, Expected)] = &[("turned.first", |serial| {
        json!((serial as i64).wrapping_neg().wrapping_add(1))
    })];
    // Both builds have code for these lines.
    let at = |mark, values| Probe {
        times: 2,
        ..Probe::new(&format!("values.c:{}", line(mark)), values)
    };
    assert_values(&[at("locals", locals), at("pieces", pieces)]);
}

/// What `early` and `step` make of a serial number.
fn sum(serial: u64) -> i64 {
    let count = (serial & 0xffff) as i64;
    (count * 3 + 1) * 3 + 1
}

fn late(serial: u64) -> i64 {
    sum(serial) ^ serial as i64
}

/// Structures, tuples, text and named numbers as Rust has them.
#[test]
fn arguments_in_rust_are_what_they_are() {
    let arguments: &[(&str, Expected)] = &[
        ("point.x", |serial| json!((serial as i32).wrapping_mul(-2))),
        ("point.y", |serial| json!(!serial as i64)),
        ("point.label", |serial| text(third(LABELS, serial))),
        ("state", |serial| {
            named(["Idle", "Busy"][usize::from(serial & 1 == 1)])
        }),
        ("is_odd", |serial| json!(serial & 1 == 1)),
        ("small", |serial| json!(serial as i8)),
    ];
    let texts: &[(&str, Expected)] = &[
        ("text", |serial| text(third(LABELS, serial))),
        ("pair.0", |serial| json!((serial >> 7) as u32)),
        ("pair.1", |serial| json!(!serial as i16)),
    ];
    assert_values(&[
        Probe::new("rust_values_arguments", arguments),
        Probe::new("rust_values_text", texts),
    ]);
}

/// At returns there is only what comes back: as often as each value must come.
#[test]
fn returned_values_are_those_of_all_calls() {
    let returned: &[(&str, &str, &str, Expected)] = &[
        ("color", "$retval", "retval", |serial| {
            named(third(COLORS, serial))
        }),
        ("name", "$retval:string", "retval", |serial| {
            text(third(NAMES, serial))
        }),
        ("is_odd", "$retval", "retval", |serial| {
            json!(serial & 1 == 1)
        }),
        ("pair", "$retval", "retval.first", |serial| {
            json!(serial.wrapping_mul(2) as i64)
        }),
    ];
    let cmdline = cmdline();
    let untraced = Guest::new(&cmdline).vcpus(2).run().0.good();
    let mut guest = Guest::new(&cmdline).vcpus(2);
    for build in ["unoptimised", "optimised"] {
        for (function, fetch, ..) in returned {
            let probe = format!("{build}_{function}%return {fetch}");
            guest = guest.with(["--probe", &probe]);
        }
    }
    let options = ["--mode", "discard", "--ring-size", "32768"];
    let (ended, trace) = guest.with(options).output().run();
    assert_eq!(ended.good().printed(), untraced.printed());
    for build in ["unoptimised", "optimised"] {
        for (function, _, field, value) in returned {
            let at = format!("{build}_{function}%return");
            let found = trace.fields(&at);
            let mut found: Vec<String> = found.iter().map(|one| one[field].to_string()).collect();
            let mut expected: Vec<String> = serials()
                .into_iter()
                .map(|one| value(one).to_string())
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{at}");
        }
    }
}

/// Conditions on numbers, on what pointers lead to, and on text: exactly those passes.
#[test]
fn conditions_are_exact() {
    let some: &[(&str, Expected)] = &[("small", |serial| json!(serial as u8))];
    let with = |at: &str, condition, holds| Probe::new(at, some).when(condition, holds);
    assert_values(&[
        with(
            "unoptimised_registers",
            " if small > 100 && item->next->serial % 2 == 0",
            |serial| serial as u8 > 100 && serial % 2 == 1,
        ),
        with(
            "optimised_registers",
            " if text == \"red\" || narrow < -30000",
            |serial| serial % 3 == 0 || (!serial as i16) < -30000,
        ),
    ]);
}
