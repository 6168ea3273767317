//! The last calls of each vCPU before something happened: what a crash report is for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use terms::function::FunctionId;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::graph::Printer;
use super::stream::{Happened, Leaves, Stream};
use super::times::Times;
use super::{Printed, ReportError, entry_line, function_line};
use crate::event::EventKind;
use crate::export::events::EventLine;
use crate::graph::excerpt::Excerpt;

/// Which part of a trace.
#[derive(Debug, Clone, Copy)]
pub struct Last<'a> {
    /// Calls of each vCPU.
    pub calls: usize,
    /// The trace ends where one of these functions is entered first, if it is.
    pub until: &'a [&'a str],
    /// Where a compact trace may be put together, in a directory of its own; none: among the temporary files.
    pub room: Option<&'a Path>,
}

/// Prints the last calls of each vCPU in `directory`, one vCPU after the other: nested when the trace is
/// a graph, after a line with all calls that its thread is in. Then its last events, if there are any.
///
/// # Errors
/// A [`ReportError`] that names the file.
pub fn print_last(
    directory: &Path,
    last: Last<'_>,
    out: impl Write,
) -> Result<Printed, ReportError> {
    let trace = TraceDirectory::open_within(directory, last.room)?;
    let mut out = BufWriter::new(out);
    let mut calls = Calls::open(&trace, &Excerpt::default())?;
    let mut ends = Ends::new(last.calls);
    let read = ends.read(&trace, &mut calls, last.until);
    // What was good is shown, whatever came after it.
    let entries = ends.print(&trace, &calls, &mut out);
    let flushed = out.flush();
    let entries = entries
        .and_then(|entries| flushed.map(|()| entries))
        .map_err(ReportError::Output)?;
    read.map(|()| Printed {
        entries,
        notes: calls.notes,
        ..Printed::default()
    })
}

/// Beside each call that is kept, so many things that are none: ends of calls, and what is lost. A guest can make them alone.
const BESIDE: usize = 64;

/// The newest of each vCPU.
struct Tails<T> {
    of_vcpu: Vec<Tail<T>>,
    most: usize,
}

/// The newest of one, and how many of them are calls.
struct Tail<T> {
    items: VecDeque<T>,
    calls: usize,
}

impl<T> Tails<T> {
    const fn new(most: usize) -> Self {
        Self {
            of_vcpu: Vec::new(),
            most,
        }
    }

    /// Adds one; `is_call` when it counts.
    fn push(&mut self, vcpu: usize, item: T, is_call: impl Fn(&T) -> bool) {
        while self.of_vcpu.len() <= vcpu {
            self.of_vcpu.push(Tail {
                items: VecDeque::new(),
                calls: 0,
            });
        }
        let Some(tail) = self.of_vcpu.get_mut(vcpu) else {
            return;
        };
        tail.calls += usize::from(is_call(&item));
        tail.items.push_back(item);
        let all = self.most.saturating_mul(1 + BESIDE);
        while tail.calls > self.most || tail.items.len() > all {
            let oldest = tail.items.pop_front();
            tail.calls -= usize::from(oldest.is_some_and(|oldest| is_call(&oldest)));
        }
    }
}

/// The calls that are open in each thread, and the thread that ran last on each vCPU.
#[derive(Default)]
struct Open {
    of_thread: HashMap<u32, Vec<FunctionId>>,
    on_vcpu: BTreeMap<u16, u32>,
}

impl Open {
    fn step(&mut self, shown: &Shown) {
        let (Shown::Step(step) | Shown::Leaf(step, _)) = shown;
        self.on_vcpu.insert(step.vcpu, step.thread);
        let open = self.of_thread.entry(step.thread).or_default();
        open.truncate(usize::try_from(step.depth).unwrap_or(usize::MAX));
        if let (Shown::Step(_), EventKind::Entry(function)) = (shown, step.kind) {
            open.push(function);
        }
    }

    /// What a vCPU is in, from the outermost call that is known.
    fn line(&self, vcpu: u16, name: impl Fn(FunctionId) -> String) -> Option<String> {
        let open = self.of_thread.get(self.on_vcpu.get(&vcpu)?)?;
        let names: Vec<String> = open.iter().map(|function| name(*function)).collect();
        (!names.is_empty()).then(|| format!("# CPU {vcpu} is in {}", names.join(" > ")))
    }
}

/// Exits come and go with the calls before them.
fn is_call(shown: &Shown) -> bool {
    let (Shown::Step(step) | Shown::Leaf(step, _)) = shown;
    matches!(step.kind, EventKind::Entry(_))
}

/// What is kept of a trace while it is read.
struct Ends {
    calls: Tails<Shown>,
    points: Tails<EventLine>,
    open: Open,
}

impl Ends {
    fn new(most: usize) -> Self {
        Self {
            calls: Tails::new(most),
            points: Tails::new(most),
            open: Open::default(),
        }
    }

    /// Reads up to where one of these functions is entered first.
    fn read(
        &mut self,
        trace: &TraceDirectory,
        calls: &mut Calls,
        until: &[&str],
    ) -> Result<(), ReportError> {
        let mut stream = Stream::of(trace, calls, Leaves::Whole)?;
        while let Some(happened) = stream.next()? {
            let shown = match happened {
                Happened::Call(shown) => shown,
                Happened::Point(point) => {
                    self.points.push(point.vcpu.into(), point, |_| true);
                    continue;
                }
                Happened::Remark(_) => continue,
            };
            self.open.step(&shown);
            let (Shown::Step(step) | Shown::Leaf(step, _)) = &shown;
            let (vcpu, kind) = (usize::from(step.vcpu), step.kind);
            if trace.is_graph() || is_call(&shown) {
                self.calls.push(vcpu, shown, is_call);
            }
            if let EventKind::Entry(function) = kind
                && until.contains(&&*stream.calls.name(trace, function))
            {
                break;
            }
        }
        Ok(())
    }

    /// Returns how many calls and events there were.
    fn print(
        &self,
        trace: &TraceDirectory,
        calls: &Calls,
        out: &mut impl Write,
    ) -> io::Result<u64> {
        let name = |function| calls.name(trace, function).into_owned();
        let mut printed = 0;
        for (vcpu, tail) in (0..).zip(&self.calls.of_vcpu) {
            printed += tail.calls as u64;
            let items = &tail.items;
            match trace.is_graph() {
                true => print_nested(trace, calls, self.open.line(vcpu, name), items, out)?,
                false => print_flat(trace, calls, items, out)?,
            }
        }
        let of_vcpu = self.points.of_vcpu.iter().enumerate();
        for (vcpu, tail) in of_vcpu.filter(|(_, tail)| !tail.items.is_empty()) {
            writeln!(out, "# events of CPU {vcpu}")?;
            printed += tail.items.len() as u64;
            tail.items.iter().try_for_each(|point| {
                function_line(
                    out,
                    vcpu,
                    &Times::default().moment_if_known(trace.time_of_event(point)),
                    &point.to_string(),
                )
            })?;
        }
        Ok(printed)
    }
}

/// The newest calls of a vCPU in a graph, from the first on, after a line with what it is in.
fn print_nested(
    trace: &TraceDirectory,
    calls: &Calls,
    line: Option<String>,
    tail: &VecDeque<Shown>,
    out: &mut impl Write,
) -> io::Result<()> {
    if let Some(line) = line {
        writeln!(out, "{line}")?;
    }
    let mut printer = Printer::new(trace, &mut *out);
    let mut from_call = tail.iter().skip_while(|shown| !is_call(shown));
    from_call.try_for_each(|shown| printer.shown(calls, shown.clone()))
}

/// The same of a trace of functions.
fn print_flat(
    trace: &TraceDirectory,
    calls: &Calls,
    tail: &VecDeque<Shown>,
    out: &mut impl Write,
) -> io::Result<()> {
    tail.iter().try_for_each(|shown| {
        let (Shown::Step(step) | Shown::Leaf(step, _)) = shown;
        let caller = calls.caller_name(trace, step);
        entry_line((trace, calls), Times::default(), (step, caller), out)
    })
}

#[cfg(test)]
mod tests {
    use terms::event_format::{EventFormat, EventId};

    use super::*;
    use crate::export::store::{News, Store};
    use crate::export::uftrace::{GRAPH, Metadata, NO_CLOCK, UftraceWriter};
    use crate::testing::{event, functions, text_of};

    /// In the place of the time there was when its ring began.
    #[test]
    fn an_event_of_a_trace_without_a_clock_has_no_time() {
        let folder = tempfile::tempdir().unwrap();
        for (clock, shown) in [(NO_CLOCK, " -: sent"), ("tsc", " 0.000012: sent")] {
            let directory = folder.path().join(clock);
            let metadata = Metadata {
                vcpus: 1,
                tracer: GRAPH.into(),
                clock: clock.into(),
                ..Metadata::default()
            };
            let text = functions(1);
            let writer = UftraceWriter::create(&directory, text_of(&text), metadata, false);
            let mut writer = writer.unwrap();
            let sent = EventFormat::new("sent".into(), Vec::new());
            writer.learn(News::Points(&[sent.into()]));
            let sent = event(12_000, 0, 0, 0, EventKind::Point(EventId(0)));
            writer.append(sent).unwrap();
            writer.finish().unwrap();
            let last = Last {
                calls: 10,
                until: &[],
                room: None,
            };
            let mut out = Vec::new();
            print_last(&directory, last, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(shown), "{text}");
        }
    }

    /// Each was compared with all before it, and all were kept.
    #[test]
    fn what_is_no_call_is_kept_beside_calls_and_so_much_of_it() {
        let mut tails = Tails::new(2);
        for item in 0..10_000 {
            tails.push(0, item, |item| item % 1000 == 0);
        }
        let tail = &tails.of_vcpu[0];
        assert_eq!((tail.items.len(), tail.calls), (2 * (1 + BESIDE), 0));
        assert_eq!(tail.items.back(), Some(&9_999));
        for item in [10_000, 10_001, 11_000, 12_000, 12_001] {
            tails.push(0, item, |item| item % 1000 == 0);
        }
        let tail = &tails.of_vcpu[0];
        assert_eq!(tail.calls, 2);
        assert_eq!(tail.items, [10_001, 11_000, 12_000, 12_001]);
    }
}
