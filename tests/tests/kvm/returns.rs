//! Arguments and return values of calls: each call of the workload `values` has its own, exactly.

#![expect(
    clippy::cast_possible_truncation,
    reason = "that is how the guest makes its values"
)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tests::{Guest, Trace};

const COLORS: [&str; 3] = ["VALUES_RED", "VALUES_GREEN", "VALUES_BLUE"];

/// A call as a report shows it: its arguments if this is its beginning, what it returned if it is its end.
#[derive(Debug)]
struct Shown {
    name: String,
    args: Option<String>,
    returned: Option<String>,
}

impl Shown {
    /// `name(args) = returned;`, `name(args) {` or `} /* name = returned */`.
    fn of(call: &str) -> Option<Self> {
        if let Some(end) = call.strip_prefix("} /* ") {
            let (name, returned) = end.strip_suffix(" */")?.split_once(" = ")?;
            return Some(Self {
                name: name.to_owned(),
                args: None,
                returned: Some(returned.to_owned()),
            });
        }
        let (name, rest) = call.split_once('(')?;
        let (args, end) = rest.rsplit_once(')')?;
        let returned = end
            .strip_prefix(" = ")
            .and_then(|end| end.strip_suffix(';'));
        Some(Self {
            name: name.to_owned(),
            args: Some(args.to_owned()),
            returned: returned.map(str::to_owned),
        })
    }

    fn arg(&self, name: &str) -> Option<String> {
        let all = format!(", {}", self.args.as_ref()?);
        let (_, value) = all.split_once(&format!(", {name}="))?;
        Some(value.split(", ").next()?.to_owned())
    }

    fn number(&self, name: &str) -> u64 {
        let text = self
            .arg(name)
            .unwrap_or_else(|| panic!("{self:?}: no {name}"));
        let signed = text.parse::<i64>().map(i64::cast_unsigned);
        signed.or_else(|_| text.parse()).unwrap()
    }

    fn is(&self, name: &str, expected: impl ToString) {
        assert_eq!(
            self.arg(name),
            Some(expected.to_string()),
            "{self:?}: {name}"
        );
    }

    fn returns(&self, expected: impl ToString) {
        if let Some(returned) = &self.returned {
            assert_eq!(*returned, expected.to_string(), "{self:?}");
        }
    }

    /// Checks everything that follows from the arguments.
    fn check(&self) {
        let name = self.name.split_once('_').map_or("", |(_, name)| name);
        if name == "step" {
            let value = self.number("value").cast_signed();
            return self.returns(value.wrapping_mul(3).wrapping_add(1));
        }
        let serial = self.number("serial");
        let signed = serial.cast_signed();
        match name {
            "values" => self.returns(serial + u64::from(self.name != "rust_values")),
            "values_arguments" => {
                let is_odd = serial & 1 == 1;
                self.is("state", if is_odd { "Busy" } else { "Idle" });
                self.is("is_odd", is_odd);
                self.is("small", serial as i8);
                let state = if is_odd { 7 } else { 2 };
                let sum = serial.wrapping_add(state).wrapping_add(u64::from(is_odd));
                self.returns(sum.cast_signed() ^ !signed ^ i64::from(serial as i8));
            }
            "values_text" => self.is("pair.1", !serial as i16),
            "color" => self.returns(COLORS[(serial % 3) as usize]),
            "is_odd" => self.returns(serial & 1 == 1),
            "registers" => {
                self.is("number", (signed as i32).wrapping_mul(-3));
                self.is("small", serial as u8);
                self.is("narrow", !serial as i16);
            }
            "pieces" => {
                self.is("pair.first", signed.wrapping_mul(2));
                self.is("pair.second", signed.wrapping_neg());
                self.returns(signed.wrapping_mul(-2).wrapping_sub(1));
            }
            "locals" => self.is("count", serial & 0xffff),
            _ => {}
        }
    }
}

fn shown(trace: &Trace) -> Vec<Shown> {
    let report = trace.report_with("graph", &[]);
    let calls = report.lines().filter_map(|line| line.split_once("|  "));
    calls
        .filter_map(|(_, call)| Shown::of(call.trim()))
        .collect()
}

#[test]
fn arguments_and_return_values_are_those_of_each_call() {
    // As many as the event rings hold, however slowly they are read.
    let cmdline = "workload=values iterations=60 tick=200";
    for (vcpus, hook) in [(1, "balanced"), (2, "balanced"), (2, "jmp")] {
        let (ended, trace) = Guest::new(cmdline)
            .vcpus(vcpus)
            .with(["--trace", "graph", "--args", "--retval"])
            .with(["--return-hook", hook])
            .with(["--filter", "rust_values*", "--filter", "*optimised_*"])
            .with(["--mode", "discard", "--ring-size", "32768"])
            .output()
            .run();
        let printed = ended.good().printed();
        let text = std::fs::read_to_string(trace.path().join("exotrace.json")).unwrap();
        let side: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(side["anomalies"], Value::Array(Vec::new()));
        assert_eq!(trace.uftrace(), printed.called(), "uftrace report");
        let (mut calls, mut returns) = (BTreeMap::new(), BTreeMap::new());
        let mut serials = BTreeSet::new();
        for shown in shown(&trace) {
            if shown.args.is_some() {
                shown.check();
                *calls.entry(shown.name.clone()).or_insert(0u64) += 1;
                if shown.name == "rust_values" {
                    serials.insert(shown.number("serial"));
                }
            }
            if shown.returned.is_some() {
                *returns.entry(shown.name).or_insert(0u64) += 1;
            }
        }
        let called = printed.called();
        for (name, count) in &called {
            assert_eq!(calls.get(name), Some(count), "calls of {name}");
            // Structures are left out.
            if !name.ends_with("_pair") {
                assert_eq!(returns.get(name), Some(count), "returns of {name}");
            }
        }
        // Each call has a serial of its own.
        assert_eq!(Some(&(serials.len() as u64)), called.get("rust_values"));
    }
}

#[test]
fn values_are_for_graphs_with_exact_times() {
    for options in [["--trace", "function"], ["--trace", "profile"]] {
        let (ended, _) = Guest::new("workload=calls")
            .with(options)
            .with(["--args"])
            .run();
        let said = ended.refused(100);
        assert!(said.contains("are for the graph tracer"), "{said}");
    }
}
