//! A graph trace in the JSON format of Chrome's trace viewer, which Perfetto opens too: one complete
//! event for each call that returned, one instant for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::event::FunctionId;
use crate::export::events::EventLine;
use crate::graph::{CallEvent, CallKind, End};
use crate::report::resolution::shorter;

/// Writes one trace.
#[derive(Debug)]
pub struct Chrome<W> {
    out: W,
    is_first: bool,
    /// Of the clock that the times are from, if it does not tell every nanosecond.
    period_ns: Option<u64>,
    /// The entries of the calls of each thread that are open.
    threads: BTreeMap<u32, Vec<(FunctionId, u64)>>,
    /// vCPUs that have a track for events.
    vcpus: BTreeSet<u16>,
}

impl<W: Write> Chrome<W> {
    /// Begins the trace. Events that are shorter than `period_ns` say so.
    ///
    /// # Errors
    /// What `out` says.
    pub fn begin(mut out: W, period_ns: Option<u64>) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self {
            out,
            is_first: true,
            period_ns,
            threads: BTreeMap::new(),
            vcpus: BTreeSet::new(),
        })
    }

    /// The next step of a thread; `name` is its function's.
    ///
    /// # Errors
    /// What `out` says.
    pub fn add(&mut self, step: &CallEvent, name: &str) -> io::Result<()> {
        let thread = step.thread;
        let is_new = !self.threads.contains_key(&thread);
        if is_new {
            let name = json!({"name": format!("thread-{thread}")});
            self.put(
                &json!({"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": name}),
            )?;
        }
        let open = self.threads.entry(thread).or_default();
        match step.kind {
            CallKind::Entry(function) => {
                open.push((function, step.time_ns));
                Ok(())
            }
            CallKind::Exit { end, duration, .. } => {
                let entered = open.pop().map_or(step.time_ns, |(_, time)| time);
                let mut event = complete(step, name, entered, end, duration);
                let shorter = duration.and_then(|time| shorter(time, self.period_ns));
                if let Some((period, args)) = shorter.zip(event.get_mut("args")) {
                    args["duration"] = json!(format!("<{period} ns"));
                }
                self.put(&event)
            }
            CallKind::Lost(count) => {
                let name = format!("LOST {count} events");
                self.put(&instant(step, step.time_ns, &name))
            }
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

    fn put(&mut self, event: &Value) -> io::Result<()> {
        let separator = if self.is_first { "\n" } else { ",\n" };
        self.is_first = false;
        write!(self.out, "{separator}{event}")
    }

    /// Ends the trace. Calls that are still open are instants; `name` gives the names of functions.
    ///
    /// # Errors
    /// What `out` says.
    pub fn finish(mut self, name: impl Fn(FunctionId) -> String) -> io::Result<()> {
        for (thread, open) in std::mem::take(&mut self.threads) {
            for (function, time_ns) in open {
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

fn complete(step: &CallEvent, name: &str, entered: u64, end: End, duration: Option<u64>) -> Value {
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

fn instant(step: &CallEvent, time_ns: u64, name: &str) -> Value {
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
