//! What the host did with the vCPUs of a guest, as traces and their readers show it.

use std::collections::BTreeMap;

use serde_json::Value;

/// How often there is each of these events.
///
/// # Panics
/// When some of them were lost.
#[must_use]
pub fn counts(events: &[Value]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for event in events {
        let name = event["event"].as_str().expect("nothing is lost");
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// How often there was an exit for each reason; each has a thread and a place.
///
/// # Panics
/// When one has not.
#[must_use]
pub fn reasons(events: &[Value]) -> BTreeMap<&str, u64> {
    let exits = events
        .iter()
        .filter(|event| event["event"] == "host:kvm_exit");
    let mut reasons = BTreeMap::new();
    for exit in exits {
        let fields = &exit["fields"];
        assert!(fields["tid"].as_u64().is_some_and(|tid| tid > 0), "{exit}");
        let rip = fields["rip"].as_str();
        assert!(rip.is_some_and(|rip| rip.starts_with("0x")), "{exit}");
        let why = fields.pointer("/reason/enum").and_then(Value::as_str);
        let why = why.expect("why");
        *reasons.entry(why).or_default() += 1;
    }
    reasons
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

/// What trace-cmd has shown.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Calls of the guest.
    pub calls: u64,
    /// vCPUs that were in the guest, or not.
    pub vcpus: usize,
}

/// Checks of what trace-cmd makes of a host and its guest together that it is in the order of time, and that a vCPU records
/// nothing that is not in the guest.
///
/// # Panics
/// When it is not so.
#[must_use]
pub fn assert_calls_inside(both: &str) -> Seen {
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
        // A remark is nothing that the guest did.
        if event == "print:" {
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
    Seen {
        calls,
        vcpus: inside.0.len(),
    }
}
