//! A trace in the JSON format of Chrome's trace viewer, which Perfetto opens too: two events for each call, where it begins
//! and where it ends, in the order of time; where returns are not traced a call is an instant.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use terms::field::FieldValue;
use terms::printable;

use crate::event::{End, Event, EventKind};
use crate::export::events::EventLine;
use crate::export::remark::Remark;
use crate::export::resolution::shorter;
use crate::graph::excerpt::nameless;

/// Writes one trace.
#[derive(Debug)]
pub struct Chrome<W> {
    out: W,
    is_first: bool,
    /// Of the clock that the times are from, if it does not tell every nanosecond.
    period_ns: Option<u64>,
    /// How many calls of each thread are open.
    threads: BTreeMap<u32, u32>,
    /// Whether returns are traced.
    has_ends: bool,
    /// What the guest calls its threads.
    names: BTreeMap<u32, String>,
    /// vCPUs that have a track for events.
    vcpus: BTreeSet<u16>,
}

impl<W: Write> Chrome<W> {
    /// Begins the trace of threads that are called so. Calls that are shorter than `period_ns` say so; where returns are not
    /// traced (`has_ends`) they are moments.
    ///
    /// # Errors
    /// What `out` says.
    pub fn begin(
        mut out: W,
        names: BTreeMap<u32, String>,
        period_ns: Option<u64>,
        has_ends: bool,
    ) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self {
            out,
            is_first: true,
            period_ns,
            threads: BTreeMap::new(),
            has_ends,
            names,
            vcpus: BTreeSet::new(),
        })
    }

    /// The next step of a thread; `name` is its function's, `values` what is known of the call: arguments at its
    /// beginning, what it returned at its end.
    ///
    /// # Errors
    /// What `out` says.
    pub fn add(&mut self, step: &Event, name: &str, values: Map<String, Value>) -> io::Result<()> {
        let thread = step.thread;
        let is_new = !self.threads.contains_key(&thread);
        if is_new {
            let told = self.names.get(&thread).cloned();
            let name = json!({"name": told.unwrap_or_else(|| self.nameless(thread))});
            self.put(
                &json!({"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": name}),
            )?;
        }
        let open = self.threads.entry(thread).or_default();
        match step.kind {
            EventKind::Entry(_) if !self.has_ends => self.put(&instant(step, name, values)),
            EventKind::Entry(_) => {
                *open = open.saturating_add(1);
                self.put(&event("B", step, Some(name), values))
            }
            EventKind::Exit { end, duration, .. } if *open > 0 => {
                *open -= 1;
                let values = self.ended(end, duration, values);
                self.put(&event("E", step, None, values))
            }
            EventKind::Exit { end, duration, .. } => {
                let values = self.ended(end, duration, values);
                self.put(&instant(step, name, values))
            }
            EventKind::Lost(count) => {
                let name = format!("LOST {count} events");
                self.put(&instant(step, &name, Map::new()))
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    /// What a thread is called of which the guest has told nothing. Without returns nothing is known of threads.
    fn nameless(&self, thread: u32) -> String {
        match self.has_ends {
            true => nameless(thread),
            false => format!("vCPU {thread}"),
        }
    }

    /// The values of a call that ends, with what is to be known of its duration.
    fn ended(
        &self,
        end: End,
        duration: Option<u64>,
        mut values: Map<String, Value>,
    ) -> Map<String, Value> {
        let remark = match duration {
            None => Some(("end", end.remark().unwrap_or("duration unknown").to_owned())),
            Some(time) => {
                let shorter = shorter(time, self.period_ns);
                shorter.map(|period| ("duration", format!("<{period} ns")))
            }
        };
        values.extend(remark.map(|(name, text)| (name.to_owned(), json!(text))));
        values
    }

    /// An event of the guest's own, on a track of its vCPU.
    ///
    /// # Errors
    /// What `out` says.
    pub fn point(&mut self, event: &EventLine) -> io::Result<()> {
        let (vcpu, ts) = (event.vcpu, microseconds(event.time_ns));
        if self.vcpus.insert(vcpu) {
            let name = json!({"name": format!("events of vCPU {vcpu}")});
            self.put(
                &json!({"ph": "M", "pid": 1, "tid": vcpu, "name": "thread_name", "args": name}),
            )?;
        }
        let name = match &event.event {
            Some(name) => name.clone(),
            None => event.to_string(),
        };
        let fields = event.fields.0.iter();
        let fields: Map<String, Value> = fields
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect();
        self.put(&json!({
            "ph": "i", "s": "t", "pid": 1, "tid": vcpu, "ts": ts, "name": name, "args": fields,
        }))
    }

    /// What concerns all vCPUs, across all tracks.
    ///
    /// # Errors
    /// What `out` says.
    pub fn remark(&mut self, remark: &Remark) -> io::Result<()> {
        let (ts, name) = (microseconds(remark.time_ns()), remark.to_string());
        self.put(&json!({"ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": ts, "name": name}))
    }

    fn put(&mut self, event: &Value) -> io::Result<()> {
        let separator = if self.is_first { "\n" } else { ",\n" };
        self.is_first = false;
        let event = printable::json(event)?;
        write!(self.out, "{separator}{event}")
    }

    /// Ends the trace. Calls that are still open have no end.
    ///
    /// # Errors
    /// What `out` says.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

/// A value as viewers show it: of an enumerator its name.
#[must_use]
pub fn plain(value: &FieldValue) -> Value {
    match value {
        FieldValue::Enumerator { name } => json!(name),
        other => json!(other),
    }
}

fn event(phase: &str, step: &Event, name: Option<&str>, mut values: Map<String, Value>) -> Value {
    let (thread, ts) = (step.thread, microseconds(step.time_ns));
    // An argument of the guest's can be called so.
    let vcpu = values.entry("vcpu");
    vcpu.or_insert_with(|| json!(step.vcpu));
    let mut event = json!({"ph": phase, "pid": 0, "tid": thread, "ts": ts, "args": values});
    if let Some((name, event)) = name.zip(event.as_object_mut()) {
        event.insert("name".to_owned(), json!(name));
    }
    event
}

fn instant(step: &Event, name: &str, values: Map<String, Value>) -> Value {
    let mut event = event("i", step, Some(name), values);
    // Of its thread (scope).
    if let Some(event) = event.as_object_mut() {
        event.insert("s".to_owned(), json!("t"));
    }
    event
}

/// The format's unit.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact to the nanosecond for the first 104 days"
)]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use terms::function::FunctionId;

    /// What is written of a call that begins at 10 ns and ends at 15.
    fn written(has_ends: bool, duration: Option<u64>) -> Value {
        let mut out = Vec::new();
        let mut chrome = Chrome::begin(&mut out, BTreeMap::new(), None, has_ends).unwrap();
        let step = |time_ns, kind| Event {
            time_ns,
            vcpu: 1,
            thread: 0,
            depth: 0,
            kind,
            values: None,
        };
        let values = |name: &str, value| Map::from_iter([(name.to_owned(), value)]);
        let busy = FieldValue::Enumerator {
            name: "BUSY".into(),
        };
        let entry = step(10, EventKind::Entry(FunctionId(3)));
        chrome
            .add(&entry, "f", values("state", plain(&busy)))
            .unwrap();
        if has_ends {
            let kind = EventKind::Exit {
                function: FunctionId(3),
                end: End::Returned,
                duration,
            };
            let exit = step(15, kind);
            chrome
                .add(&exit, "f", values("returned", json!(-1)))
                .unwrap();
        }
        chrome.finish().unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        trace["traceEvents"].clone()
    }

    #[test]
    fn a_call_begins_with_its_arguments_and_ends_with_what_it_returned() {
        let written = written(true, Some(5));
        assert_eq!(written[0]["args"]["name"], "thread-0");
        let begin = json!({"ph": "B", "pid": 0, "tid": 0, "ts": 0.01, "name": "f", "args": {"vcpu": 1, "state": "BUSY"}});
        let end = json!({"ph": "E", "pid": 0, "tid": 0, "ts": 0.015, "args": {"vcpu": 1, "returned": -1}});
        assert_eq!((&written[1], &written[2]), (&begin, &end));
    }

    #[test]
    fn an_end_that_may_have_been_at_another_time_says_so() {
        let written = written(true, None);
        assert_eq!(written[2]["args"]["end"], "duration unknown");
    }

    #[test]
    fn without_returns_a_call_is_a_moment_of_its_vcpu() {
        let written = written(false, None);
        assert_eq!(written[0]["args"]["name"], "vCPU 0");
        assert_eq!(
            (&written[1]["ph"], &written[1]["name"]),
            (&json!("i"), &json!("f"))
        );
        assert_eq!(written.as_array().unwrap().len(), 2);
    }
}
