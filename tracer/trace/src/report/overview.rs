//! The first screen: what was traced, for how long, what is missing; where the time went, and the slowest calls.

use std::io::{self, Write};

use serde::Serialize;
use terms::printable::masked;
use terms::quantity::{counted, grouped, percent};

use super::calls::Calls;
use super::directory::TraceDirectory;
use super::gather::Gathered;
use super::summary::Summary;
use super::times::Times;
use crate::export::uftrace::{Fired, Pause, PauseSpread, Waits};

/// So many calls when nobody says how many.
pub(super) const CALLS: usize = 5;

/// How many records there are of what is shown: as a run says at its end, where that is all.
fn records(trace: &TraceDirectory, calls: &Calls, gathered: &Gathered) -> u64 {
    let printed = &gathered.printed;
    if calls.are_all() {
        let read = calls.records().saturating_add(printed.events);
        return trace.records.unwrap_or(read);
    }
    let of_each = if trace.is_graph() { 2 } else { 1 };
    let of_calls = printed.entries.saturating_mul(of_each);
    of_calls.saturating_add(printed.events)
}

/// What a trace is.
#[derive(Debug, Default, Serialize)]
pub(super) struct About {
    image: String,
    vcpus: u16,
    command_line: String,
    tracer: String,
    filter: Vec<String>,
    notrace: Vec<String>,
    /// The vCPUs that were recorded last; none when all were.
    only_vcpus: Vec<u16>,
    /// The tasks that were recorded last, or were not; none when all were.
    only_tasks: Vec<String>,
    not_tasks: Vec<String>,
    follow_forks: bool,
    clock: String,
    mode: String,
    /// The times of the first and of the last thing that happened.
    span_ns: Option<(u64, u64)>,
    calls: u64,
    functions: u64,
    events: u64,
    /// Records that are there, in the same part of the trace as the calls: of a call its entry and, in a graph, its end.
    records: u64,
    lost: u64,
    /// Whether there may have been more than is there.
    #[serde(skip)]
    is_cut: bool,
    /// How long the guest stood still for being traced; none where the trace does not say.
    pauses: Option<PauseSpread>,
    /// When the first of them were.
    paused: Vec<Pause>,
    /// Triggers that have fired.
    fired: Vec<Fired>,
    /// How long vCPUs waited for the reader; none where none did.
    waits: Option<Waits>,
    /// Whether that is time of the guest: `visible` or `hidden`.
    wait_time: String,
    /// The same for people.
    #[serde(skip)]
    waits_said: Option<String>,
}

impl About {
    /// With so many waits one by one.
    pub fn new(trace: &TraceDirectory, calls: &Calls, gathered: &Gathered, listed: usize) -> Self {
        let functions = gathered.summary.as_ref().map_or(0, Summary::len);
        let of_calls = Self {
            span_ns: gathered.span_ns.filter(|_| trace.has_times()),
            calls: gathered.printed.entries,
            functions: functions as u64,
            events: gathered.printed.events,
            lost: gathered.printed.lost,
            records: records(trace, calls, gathered),
            is_cut: trace.remark.is_some(),
            ..Self::default()
        };
        let Some(side) = &trace.side else {
            return of_calls;
        };
        // What is in a file may be anything.
        let clean = |text: &String| masked(text).into_owned();
        let tracer = match &*side.metadata.tracer {
            "" => "function",
            tracer => tracer,
        };
        Self {
            image: clean(&side.metadata.image),
            vcpus: side.metadata.vcpus,
            command_line: clean(&side.metadata.command_line),
            tracer: masked(tracer).into_owned(),
            filter: side.metadata.filter.iter().map(clean).collect(),
            notrace: side.metadata.notrace.iter().map(clean).collect(),
            only_vcpus: side.metadata.only_vcpus.clone(),
            only_tasks: side.metadata.only_tasks.iter().map(clean).collect(),
            not_tasks: side.metadata.not_tasks.iter().map(clean).collect(),
            follow_forks: side.metadata.follow_forks,
            clock: clean(&side.metadata.clock),
            mode: clean(&side.metadata.mode),
            pauses: Some(side.metadata.pauses).filter(|pauses| !pauses.is_empty()),
            paused: side.metadata.paused.clone(),
            fired: side.metadata.fired.iter().map(Fired::clean).collect(),
            waits: Some(&side.waits)
                .filter(|waits| !waits.is_empty())
                .map(|waits| waits.listed(listed)),
            wait_time: clean(&side.metadata.wait_time),
            waits_said: side.waits_said(),
            ..of_calls
        }
    }

    /// How long the guest was held, and when for longest.
    fn pauses(&self, times: Times) -> String {
        let Some(pauses) = &self.pauses else {
            return String::new();
        };
        let longest = self.paused.iter().max_by_key(|pause| pause.length_ns);
        // Of one that came after those that are kept nobody knows when it was.
        let is_longest = |pause: &&Pause| pause.length_ns >= pauses.max_ns;
        let when = longest.filter(is_longest);
        let when = when.map(|pause| format!(", at {} s", times.moment(pause.begin_ns)));
        format!("{pauses}{}", when.unwrap_or_default())
    }

    fn triggers(&self, times: Times) -> String {
        let Some(first) = self.fired.first() else {
            return String::new();
        };
        let count = counted(self.fired.len() as u64, "time");
        let first = match first.time_ns {
            Some(time_ns) => format!("'{}' at {} s", first.trigger, times.moment(time_ns)),
            None => format!("'{}'", first.trigger),
        };
        let untimed = self.fired.iter().filter(|fired| fired.time_ns.is_none());
        let untimed = match untimed.count() {
            0 => String::new(),
            count => format!("; of {count} the record was lost, and with it when that was"),
        };
        format!("fired {count}, first {first}{untimed}")
    }

    pub fn print(&self, times: Times, out: &mut impl Write) -> io::Result<()> {
        let mut line = |label: &str, text: String| match text.is_empty() {
            true => Ok(()),
            false => writeln!(out, "{label:<9} {text}"),
        };
        let vcpus = counted(self.vcpus.into(), "vCPU");
        if self.vcpus > 0 {
            let image = match &*self.image {
                "" => String::new(),
                image => format!("{image}, "),
            };
            line("guest", format!("{image}{vcpus}"))?;
        }
        line("command", self.command_line.clone())?;
        line("recorded", self.recorded())?;
        if let Some((first, last)) = self.span_ns {
            let [length, first, last] = [last - first, first, last].map(|ns| times.moment(ns));
            line("time", format!("{length} s, from {first} to {last}"))?;
        }
        if self.calls > 0 || self.events == 0 {
            let functions = counted(self.functions, "function");
            line("calls", format!("{} of {functions}", grouped(self.calls)))?;
        }
        if self.events > 0 {
            line("events", grouped(self.events))?;
        }
        let all = u128::from(self.records) + u128::from(self.lost);
        let of = if self.is_cut {
            ", of what is there"
        } else {
            ""
        };
        let lost = match self.lost {
            0 => "nothing".to_owned(),
            lost => format!("{} ({})", counted(lost, "record"), percent(lost, all)),
        };
        line("lost", lost + of)?;
        line("pauses", self.pauses(times))?;
        line("triggers", self.triggers(times))?;
        line("waits", self.waits_said.clone().unwrap_or_default())
    }

    fn recorded(&self) -> String {
        if self.tracer.is_empty() {
            return String::new();
        }
        let mut text = self.tracer.clone();
        let globs = |globs: &[String]| globs.join(" ");
        if !self.filter.is_empty() {
            text += &format!(" of {}", globs(&self.filter));
        }
        if !self.notrace.is_empty() {
            text += &format!(", not of {}", globs(&self.notrace));
        }
        if !self.only_vcpus.is_empty() {
            let numbers: Vec<String> = self.only_vcpus.iter().map(u16::to_string).collect();
            text += &format!(", on vCPU {} only", numbers.join(", "));
        }
        for (tasks, what) in [(&self.only_tasks, "only of"), (&self.not_tasks, "not of")] {
            if !tasks.is_empty() {
                let theirs = if self.follow_forks { " and theirs" } else { "" };
                text += &format!(", {what} tasks {}{theirs}", tasks.join(", "));
            }
        }
        if !self.clock.is_empty() {
            text += &format!(", clock {}", self.clock);
        }
        if !self.mode.is_empty() {
            text += &format!(", {}", self.mode);
        }
        text
    }
}
