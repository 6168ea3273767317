//! Events one after the other as text: as ftrace's `trace_pipe` has them, each with its time and its thread.
//!
//! ```text
//!      1.204311870  0) cat-42         |   2.410 us    |    vfs_open(flags=0) = 0;
//! ```

use std::fmt::Write as _;

use terms::printable::masked;
use terms::quantity::in_seconds;

use super::live_event::{Happening, LiveEvent};
use crate::graph::excerpt::nameless;
use crate::report::graph::{NO_DURATION, duration_column};

/// What a name of a thread takes.
const TASK_WIDTH: usize = 16;
/// Calls that are deeper are shown as this deep.
const DEPTH_MAX: u32 = 64;

/// Writes lines. An entry waits for what comes next: a call in which nothing was called is one line.
#[derive(Debug, Default)]
pub struct Lines {
    text: String,
    waiting: Option<LiveEvent>,
}

impl Lines {
    /// What the columns are.
    #[must_use]
    pub fn header() -> String {
        let task = format!("{:<TASK_WIDTH$}", "TASK");
        format!("#         TIME  CPU {task}|  DURATION     |  FUNCTION CALLS\n")
    }

    /// One more event.
    pub fn add(&mut self, event: LiveEvent) {
        if let Some(entry) = self.waiting.take() {
            match &event.what {
                Happening::Return { .. } if is_of(&event, &entry) => {
                    return self.leaf(&entry, &event);
                }
                _ => self.line(&entry),
            }
        }
        match event.what {
            Happening::Call { .. } => self.waiting = Some(event),
            _ => self.line(&event),
        }
    }

    /// Nothing more is there now: the lines so far.
    pub fn take(&mut self) -> String {
        if let Some(entry) = self.waiting.take() {
            self.line(&entry);
        }
        std::mem::take(&mut self.text)
    }

    fn leaf(&mut self, entry: &LiveEvent, exit: &LiveEvent) {
        let (Happening::Call { function, args }, Happening::Return { duration_ns, .. }) =
            (&entry.what, &exit.what)
        else {
            return;
        };
        self.begin(entry, *duration_ns);
        let (retval, remark) = endings(&exit.what);
        let function = masked(function);
        let args = commas(args);
        self.end(&format!("{function}({args}){retval};{remark}"));
    }

    fn line(&mut self, event: &LiveEvent) {
        match &event.what {
            Happening::Entry { function, caller } => {
                self.begin(event, None);
                self.end(&made_by(function, caller.as_deref()));
            }
            Happening::Call { function, args } => {
                self.begin(event, None);
                let (function, args) = (masked(function), commas(args));
                self.end(&format!("{function}({args}) {{"));
            }
            Happening::Return {
                function,
                duration_ns,
                ..
            } => {
                self.begin(event, *duration_ns);
                let (retval, remark) = endings(&event.what);
                let function = masked(function);
                self.end(&format!("}} /* {function}{retval} */{remark}"));
            }
            Happening::Open { function, open_ns } => {
                self.begin(event, Some(*open_ns));
                self.end(&format!("/* {} has not ended */", masked(function)));
            }
            Happening::Event {
                event: name,
                fields,
            } => {
                self.begin(event, None);
                let (colon, name) = (if fields.is_empty() { "" } else { ": " }, masked(name));
                self.end(&format!("/* {name}{colon}{fields} */"));
            }
            Happening::Lost { count: 0 } => {
                self.end(&format!(
                    "# CPU:{}: nothing was recorded up to here",
                    event.vcpu
                ));
            }
            // As ftrace says it, whatever was lost.
            Happening::Lost { count } | Happening::LostEvents { count } => {
                self.end(&format!("# CPU:{} [LOST {count} EVENTS]", event.vcpu));
            }
            Happening::Stall { length_ns } => {
                let text = format!("# the clock stood still for {length_ns} ns up to here");
                self.end(&text);
            }
            Happening::Wait { length_ns } => {
                let vcpu = event.vcpu;
                let text = format!("# vCPU {vcpu} waited {length_ns} ns for the reader up to here");
                self.end(&text);
            }
            Happening::Unread { count } => {
                let text = format!("# {count} events came faster than they were taken: not shown");
                self.end(&text);
            }
        }
    }

    /// Everything before the function.
    fn begin(&mut self, event: &LiveEvent, duration_ns: Option<u64>) {
        let LiveEvent {
            time_ns,
            vcpu,
            thread,
            task,
            depth,
            ..
        } = event;
        let time = in_seconds(*time_ns);
        let task = match task {
            Some(task) => masked(task).into_owned(),
            None => nameless(*thread),
        };
        let duration = duration_ns.map(|ns| duration_column(ns, None));
        let duration = duration.as_deref().unwrap_or(NO_DURATION);
        let indent = 2 * (*depth).min(DEPTH_MAX) as usize;
        // Writing to a string cannot fail.
        let _ = write!(
            self.text,
            "{time:>15} {vcpu:>3}) {task:<TASK_WIDTH$}|{duration} |  {:indent$}",
            ""
        );
    }

    fn end(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }
}

/// A call, with what made it, if that is known.
fn made_by(function: &str, caller: Option<&str>) -> String {
    match caller {
        Some(caller) => format!("{} <-{}", masked(function), masked(caller)),
        None => masked(function).into_owned(),
    }
}

/// Whether it is the end of the call that this is the entry of.
fn is_of(exit: &LiveEvent, entry: &LiveEvent) -> bool {
    (exit.thread, exit.depth, exit.vcpu) == (entry.thread, entry.depth, entry.vcpu)
}

/// What stands after the end of a call: what it returned, and how it ended.
fn endings(what: &Happening) -> (String, String) {
    let Happening::Return { remark, retval, .. } = what else {
        return Default::default();
    };
    let values: Vec<String> = retval.iter().map(ToString::to_string).collect();
    let values = match values.is_empty() {
        true => String::new(),
        false => format!(" = {}", values.join(", ")),
    };
    let remark = remark.as_ref();
    let remark = remark.map_or_else(String::new, |remark| format!(" /* {} */", masked(remark)));
    (values, remark)
}

fn commas(args: &crate::export::events::Fields) -> String {
    let shown = args
        .0
        .iter()
        .map(|(name, value)| format!("{}={value}", masked(name)));
    shown.collect::<Vec<_>>().join(", ")
}
