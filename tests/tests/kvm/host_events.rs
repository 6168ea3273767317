//! `run --host-events`: what the host did with the vCPUs, beside what the guest did on them.

use std::collections::BTreeMap;

use serde_json::Value;
use tests::{Guest, Printed, Trace, vmm_says};

/// A guest on two vCPUs, with what the host did.
fn traced(tracer: &str) -> (Printed, Trace) {
    let (ended, trace) = Guest::new("workload=calls iterations=500")
        .vcpus(2)
        .with(["--trace", tracer, "--filter", "calls_*", "--host-events"])
        .output()
        .run();
    (ended.good().printed(), trace)
}

/// How often there is each of these events.
fn counts(events: &[Value]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for event in events {
        let name = event["event"].as_str().expect("nothing is lost");
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// Who was in the guest: a vCPU is in it or not, and nothing is known before its first event.
#[derive(Default)]
struct Inside(BTreeMap<u64, bool>);

impl Inside {
    /// The vCPU of `vcpu1-2718` enters, or is back: by turns.
    fn turn(&mut self, thread: &str, is_entry: bool, line: &str) {
        let (name, _) = thread.rsplit_once('-').expect(line);
        let vcpu = name.strip_prefix("vcpu").and_then(|vcpu| vcpu.parse().ok());
        let before = self.0.insert(vcpu.expect(line), is_entry);
        assert_ne!(before, Some(is_entry), "twice the same: {line}");
    }
}

/// What trace-cmd reads is what we have written; and a vCPU records nothing that is not in the guest.
#[test]
fn trace_cmd_shows_host_and_guest_as_one_and_calls_only_between_entry_and_exit() {
    for tracer in ["function", "graph"] {
        let (printed, trace) = traced(tracer);
        let events = trace.host_events();
        let ours = counts(&events);
        let [alone, both] = trace.trace_cmd_with_host();
        for (event, count) in &ours {
            let name = event.strip_prefix("host:").expect("its name");
            let theirs = alone
                .lines()
                .filter(|line| line.contains(&format!(": {name}:")));
            assert_eq!(theirs.count() as u64, *count, "{event}");
        }
        let (mut inside, mut last, mut calls) = (Inside::default(), String::new(), 0);
        for line in both.lines().filter(|line| !line.contains("cpus=")) {
            let (file, rest) = line.split_once(": ").expect(line);
            let mut words = rest.split_whitespace();
            let (thread, cpu) = (words.next().expect(line), words.next().expect(line));
            let time = words.next().expect(line).to_owned();
            assert!(
                time.len() > last.len() || time >= last,
                "{line} after {last}"
            );
            last = time;
            let event = words.next().expect(line);
            if file.trim() == "host" {
                inside.turn(thread, event == "kvm_entry:", line);
                continue;
            }
            let vcpu = cpu.trim_matches(['[', ']']).parse().expect(line);
            assert_ne!(
                inside.0.get(&vcpu),
                Some(&false),
                "not in the guest: {line}"
            );
            calls += u64::from(matches!(event, "function:" | "funcgraph_entry:"));
        }
        assert_eq!(calls, printed.total(), "{tracer}");
        assert_eq!(inside.0.len(), 2, "{tracer}");
    }
}

/// What the guest prints goes through a port, a byte each time, and so does what it tells us at its end.
#[test]
fn an_exit_says_why_and_every_report_has_it() {
    let (_, trace) = traced("graph");
    let events = trace.host_events();
    let exits = events
        .iter()
        .filter(|event| event["event"] == "host:kvm_exit");
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for exit in exits {
        let fields = &exit["fields"];
        assert!(fields["tid"].as_u64().is_some_and(|tid| tid > 0), "{exit}");
        assert!(
            fields["rip"]
                .as_str()
                .is_some_and(|rip| rip.starts_with("0x"))
        );
        *reasons
            .entry(fields["reason"]["enum"].as_str().expect("why"))
            .or_default() += 1;
    }
    assert!(reasons["port_write"] > 0, "{reasons:?}");
    let counted = trace.report_with("values", &["--json"]);
    let counted: Value = serde_json::from_str(&counted).expect("JSON");
    let total = |name: &str| counts(&events)[name];
    let said = counted.to_string();
    for name in ["host:kvm_entry", "host:kvm_exit"] {
        assert!(said.contains(name), "{said}");
        let in_side = &trace.side()["events"]["events"][name];
        assert_eq!(in_side, &Value::from(total(name)));
    }
    assert!(trace.export("chrome").contains("host:kvm_exit"));
    assert!(
        trace
            .report("graph")
            .contains("/* host:kvm_exit: reason=port_write rip=0x")
    );
    let path = trace.path();
    let path = path.to_str().expect("a path");
    let said = vmm_says(&["export", path, "--format", "chrome", "--host", "host"]);
    assert!(
        said.refused(100).contains("--host: only trace-dat"),
        "{said}"
    );
}

#[test]
fn what_was_not_asked_for_is_not_told() {
    let (ended, trace) = Guest::new("workload=calls iterations=5")
        .with(["--trace", "graph", "--filter", "calls_*"])
        .output()
        .run();
    let _ = ended.good();
    assert_eq!(trace.host_events(), Vec::<Value>::new());
}
