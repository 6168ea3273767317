//! A graph trace in the JSON format of Chrome's trace viewer, which Perfetto opens too: one complete
//! event for each call that returned, one instant for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use terms::function::FunctionId;
use terms::printable;

use crate::event::{End, Event, EventKind};
use crate::export::events::EventLine;
use crate::export::remark::Remark;
use crate::export::resolution::shorter;

/// A call that has begun.
#[derive(Debug)]
struct Begun {
    function: FunctionId,
    time_ns: u64,
    arguments: Map<String, Value>,
}

/// Writes one trace.
#[derive(Debug)]
pub struct Chrome<W> {
    out: W,
    is_first: bool,
    /// Of the clock that the times are from, if it does not tell every nanosecond.
    period_ns: Option<u64>,
    /// The entries of the calls of each thread that are open.
    threads: BTreeMap<u32, Vec<Begun>>,
    /// What the guest calls its threads.
    names: BTreeMap<u32, String>,
    /// vCPUs that have a track for events.
    vcpus: BTreeSet<u16>,
}

impl<W: Write> Chrome<W> {
    /// Begins the trace of threads that are called so. Events that are shorter than `period_ns` say so.
    ///
    /// # Errors
    /// What `out` says.
    pub fn begin(
        mut out: W,
        names: BTreeMap<u32, String>,
        period_ns: Option<u64>,
    ) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self {
            out,
            is_first: true,
            period_ns,
            threads: BTreeMap::new(),
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
            let name = json!({"name": told.unwrap_or_else(|| format!("thread-{thread}"))});
            self.put(
                &json!({"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": name}),
            )?;
        }
        let open = self.threads.entry(thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                open.push(Begun {
                    function,
                    time_ns: step.time_ns,
                    arguments: values,
                });
                Ok(())
            }
            EventKind::Exit { end, duration, .. } => {
                let begun = open.pop();
                let entered = begun.as_ref().map_or(step.time_ns, |call| call.time_ns);
                let mut event = complete(step, name, entered, end, duration);
                if let Some(args) = event.get_mut("args").and_then(Value::as_object_mut) {
                    args.extend(begun.into_iter().flat_map(|call| call.arguments));
                    args.extend(values);
                }
                let shorter = duration.and_then(|time| shorter(time, self.period_ns));
                if let Some((period, args)) = shorter.zip(event.get_mut("args")) {
                    args["duration"] = json!(format!("<{period} ns"));
                }
                self.put(&event)
            }
            EventKind::Lost(count) => {
                let name = format!("LOST {count} events");
                self.put(&instant(step, step.time_ns, &name))
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
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
            .map(|(name, value)| (name.clone(), json!(value)))
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

    /// Ends the trace. Calls that are still open are instants; `name` gives the names of functions.
    ///
    /// # Errors
    /// What `out` says.
    pub fn finish(mut self, name: impl Fn(FunctionId) -> String) -> io::Result<()> {
        for (thread, open) in std::mem::take(&mut self.threads) {
            for Begun {
                function, time_ns, ..
            } in open
            {
                let name = format!("{} (open at the end)", name(function));
                let ts = microseconds(time_ns);
                self.put(&json!({
                    "ph": "i", "s": "t", "pid": 0, "tid": thread, "ts": ts, "name": name,
                }))?;
            }
        }
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

fn complete(step: &Event, name: &str, entered: u64, end: End, duration: Option<u64>) -> Value {
    match (duration, end.remark()) {
        (Some(duration), _) => json!({
            "ph": "X", "pid": 0, "tid": step.thread, "name": name, "ts": microseconds(entered),
            "dur": microseconds(duration), "args": {"vcpu": step.vcpu},
        }),
        (None, remark) => {
            let name = format!("{name} ({})", remark.unwrap_or("duration unknown"));
            instant(step, entered, &name)
        }
    }
}

fn instant(step: &Event, time_ns: u64, name: &str) -> Value {
    let (thread, ts) = (step.thread, microseconds(time_ns));
    json!({
        "ph": "i", "s": "t", "pid": 0, "tid": thread, "ts": ts, "name": name,
        "args": {"vcpu": step.vcpu},
    })
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

    #[test]
    fn a_call_has_its_arguments_and_what_it_returned() {
        let mut out = Vec::new();
        let mut chrome = Chrome::begin(&mut out, BTreeMap::new(), None).unwrap();
        let step = |time_ns, kind| Event {
            time_ns,
            vcpu: 1,
            thread: 0,
            depth: 0,
            kind,
            values: None,
        };
        let values = |name: &str, value| Map::from_iter([(name.to_owned(), json!(value))]);
        let entry = EventKind::Entry(FunctionId(3));
        let exit = EventKind::Exit {
            function: FunctionId(3),
            end: End::Returned,
            duration: Some(5),
        };
        chrome
            .add(&step(10, entry), "f", values("count", 7))
            .unwrap();
        chrome
            .add(&step(15, exit), "f", values("returned", -1))
            .unwrap();
        chrome.finish(|_| String::new()).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        let args = &trace["traceEvents"][1]["args"];
        assert_eq!(*args, json!({"vcpu": 1, "count": 7, "returned": -1}));
    }
}
