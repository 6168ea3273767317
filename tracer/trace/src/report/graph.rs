//! Calls in the layout of ftrace's `function_graph` tracer.

use std::io::{self, Write};

use terms::function::FunctionId;
use terms::printable::masked;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::stream::{Happened, Leaves, Stream};
use super::{Printed, anomalies};
use crate::event::{End, Event, EventKind};
use crate::export::events::EventLine;
use crate::export::resolution::shorter;
use crate::graph::excerpt::nameless;

/// Columns that ftrace gives the two sides of a context switch.
const THREAD_WIDTH: usize = 14;
pub(crate) const NO_DURATION: &str = "              ";

/// What was printed last of one vCPU.
#[derive(Debug, Clone, Default)]
struct Cpu {
    thread: Option<u32>,
    /// The functions whose opening braces were printed, by depth.
    open: Vec<FunctionId>,
}

pub(super) struct Printer<'a, W> {
    out: W,
    trace: &'a TraceDirectory,
    cpus: Vec<Cpu>,
    cpu_width: usize,
    /// Of the clock that the times are from.
    period_ns: Option<u64>,
}

pub(super) fn print_graph(
    trace: &TraceDirectory,
    calls: &mut Calls,
    out: &mut impl Write,
) -> Result<Printed, ReportError> {
    let mut printer = Printer::new(trace, out);
    printer.header().map_err(ReportError::Output)?;
    let mut printed = Printed::default();
    let mut stream = Stream::of(trace, calls, Leaves::WithoutEvents)?;
    while let Some(happened) = stream.next()? {
        printed.count(&happened);
        let line = match happened {
            Happened::Remark(remark) => printed.remark(&remark, printer.out),
            Happened::Point(event) => printer.point(&event),
            Happened::Call(shown) => printer.shown(stream.calls, shown),
        };
        line.map_err(ReportError::Output)?;
    }
    printed.read_events = stream.events();
    anomalies::print(&anomalies::all(trace), printer.out).map_err(ReportError::Output)?;
    Ok(printed)
}

impl<'a, W: Write> Printer<'a, W> {
    pub(super) fn new(trace: &'a TraceDirectory, out: W) -> Self {
        let vcpus = trace.side.as_ref().map_or(1, |side| side.metadata.vcpus);
        Self {
            out,
            trace,
            cpus: Vec::new(),
            cpu_width: vcpus.saturating_sub(1).to_string().len(),
            period_ns: trace.clock_period_ns(),
        }
    }

    /// One step, or a call in which nothing was called.
    pub(super) fn shown(&mut self, calls: &Calls, shown: Shown) -> io::Result<()> {
        match shown {
            Shown::Leaf(entry, exit) => self.leaf(calls, &entry, &exit),
            Shown::Step(step) => self.step(calls, &step),
        }
    }

    fn header(&mut self) -> io::Result<()> {
        writeln!(self.out, "# tracer: function_graph\n#")?;
        writeln!(self.out, "# CPU  DURATION                  FUNCTION CALLS")?;
        writeln!(self.out, "# |     |   |                     |   |   |   |")
    }

    /// An event, as a comment at the depth of the vCPU's last call, or how many are lost.
    fn point(&mut self, event: &EventLine) -> io::Result<()> {
        match event.event {
            Some(_) => self.comment(event.vcpu, &event.to_string()),
            None => writeln!(self.out, "CPU:{} {event}", event.vcpu),
        }
    }

    fn comment(&mut self, vcpu: u16, text: &str) -> io::Result<()> {
        self.cpu(vcpu)?;
        let indent = self.cpu_mut(vcpu).open.len() * 2;
        writeln!(self.out, "{NO_DURATION}|  {:indent$}/* {text} */", "")
    }

    fn leaf(&mut self, calls: &Calls, entry: &Event, exit: &Event) -> io::Result<()> {
        let EventKind::Exit {
            function,
            end,
            duration,
        } = exit.kind
        else {
            return Ok(());
        };
        self.begin(entry, duration)?;
        let address = calls.functions.address(function);
        let name = self.trace.names.name(address);
        let (args, retval) = (self.trace.args(address, entry), self.retval(exit));
        match end.remark() {
            None => writeln!(self.out, "{name}({args}){retval};"),
            Some(remark) => writeln!(self.out, "{name}({args}){retval}; /* {remark} */"),
        }
    }

    fn step(&mut self, calls: &Calls, step: &Event) -> io::Result<()> {
        match step.kind {
            EventKind::Entry(function) => {
                self.begin(step, None)?;
                self.opened(step, function);
                let address = calls.functions.address(function);
                let name = self.trace.names.name(address);
                writeln!(self.out, "{name}({}) {{", self.trace.args(address, step))
            }
            EventKind::Exit {
                function,
                end,
                duration,
            } => {
                self.begin(step, duration)?;
                let is_here = self.was_opened_here(step, function);
                let name = self.trace.names.name(calls.functions.address(function));
                let retval = self.retval(step);
                let is_plain = is_here && retval.is_empty();
                match (end, end.remark()) {
                    (End::Returned, _) | (_, None) if is_plain => writeln!(self.out, "}}"),
                    (End::Returned, _) | (_, None) => writeln!(self.out, "}} /* {name}{retval} */"),
                    (_, Some(remark)) => writeln!(self.out, "}} /* {name}{retval}: {remark} */"),
                }
            }
            EventKind::Lost(count) => {
                writeln!(self.out, "CPU:{} [LOST {count} EVENTS]", step.vcpu)
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    /// What a call has returned, where that was captured.
    fn retval(&self, exit: &Event) -> String {
        let shown = exit.shown_values();
        match shown.is_empty() {
            true => shown,
            false => format!(" = {shown}"),
        }
    }

    /// Everything before the function.
    fn begin(&mut self, step: &Event, duration: Option<u64>) -> io::Result<()> {
        self.switch(step)?;
        self.cpu(step.vcpu)?;
        match duration {
            Some(duration) => write!(self.out, "{}", duration_column(duration, self.period_ns))?,
            None => write!(self.out, "{NO_DURATION}")?,
        }
        let indent = usize::try_from(step.depth).unwrap_or(usize::MAX).min(1023) * 2;
        write!(self.out, "|  {:indent$}", "")
    }

    fn cpu(&mut self, vcpu: u16) -> io::Result<()> {
        let width = self.cpu_width;
        write!(self.out, " {vcpu:width$}) ")
    }

    /// Says so when another thread runs on a vCPU than before.
    fn switch(&mut self, step: &Event) -> io::Result<()> {
        let cpu = self.cpu_mut(step.vcpu);
        let before = cpu.thread.replace(step.thread);
        let Some(before) = before.filter(|before| *before != step.thread) else {
            return Ok(());
        };
        cpu.open.clear();
        let rule = "------------------------------------------";
        writeln!(self.out, " {rule}")?;
        self.cpu(step.vcpu)?;
        let (from, to) = (self.thread_column(before), self.thread_column(step.thread));
        writeln!(self.out, "{from} => {to}\n {rule}\n")
    }

    /// A thread as ftrace shows one, in the middle of its column.
    fn thread_column(&self, thread: u32) -> String {
        let side = self.trace.side.as_ref();
        let name = side.and_then(|side| side.threads.get(&thread));
        match name {
            // What is in a file may be anything.
            Some(name) => format!("{:^THREAD_WIDTH$}", masked(name)),
            None => format!("{:^THREAD_WIDTH$}", nameless(thread)),
        }
    }

    fn cpu_mut(&mut self, vcpu: u16) -> &mut Cpu {
        let vcpu = usize::from(vcpu);
        while self.cpus.len() <= vcpu {
            self.cpus.push(Cpu::default());
        }
        // The loop above made it; there is always one.
        let last = self.cpus.len() - 1;
        #[expect(
            clippy::indexing_slicing,
            reason = "at most the last index of a list that has one"
        )]
        &mut self.cpus[vcpu.min(last)]
    }

    fn opened(&mut self, step: &Event, function: FunctionId) {
        let depth = step.depth as usize;
        let cpu = self.cpu_mut(step.vcpu);
        if cpu.open.len() >= depth {
            cpu.open.truncate(depth);
            cpu.open.push(function);
        }
    }

    /// Whether the brace that a step closes was opened on the same vCPU, in sight.
    fn was_opened_here(&mut self, step: &Event, function: FunctionId) -> bool {
        let cpu = self.cpu_mut(step.vcpu);
        let is_here = cpu.open.get(step.depth as usize) == Some(&function);
        cpu.open.truncate(step.depth as usize);
        is_here
    }
}

/// A duration as ftrace shows it: seven digits, the mark of a long one before them. One that is
/// shorter than the period of the clock has no digits.
pub(crate) fn duration_column(nanoseconds: u64, period: Option<u64>) -> String {
    const DIGITS: usize = 7;
    if let Some(period) = shorter(nanoseconds, period) {
        return format!("  {:<12}", format!("<{period} ns"));
    }
    let (whole, rest) = (nanoseconds / 1000, nanoseconds % 1000);
    let mut digits = whole.to_string();
    if digits.len() < DIGITS {
        let places = format!(".{rest:03}");
        let room = (DIGITS - digits.len() + 1).min(places.len());
        digits.push_str(places.get(..room).unwrap_or_default());
    }
    let fill = 8usize.saturating_sub(digits.len());
    format!("{} {digits} us {:fill$}", mark(nanoseconds), "")
}

/// ftrace's mark for a long call.
const fn mark(nanoseconds: u64) -> char {
    match nanoseconds {
        1_000_000_001.. => '$',
        100_000_001.. => '@',
        10_000_001.. => '*',
        1_000_001.. => '#',
        100_001.. => '!',
        10_001.. => '+',
        _ => ' ',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_look_like_those_of_ftrace() {
        for (nanoseconds, column) in [
            (0, "  0.000 us    "),
            (500, "  0.500 us    "),
            (10_000, "  10.000 us   "),
            (10_001, "+ 10.001 us   "),
            (100_500, "! 100.500 us  "),
            (1_234_567, "# 1234.567 us "),
            (12_345_678, "* 12345.67 us "),
            (123_456_789, "@ 123456.7 us "),
            (1_234_567_890, "$ 1234567 us  "),
            (12_345_678_901, "$ 12345678 us "),
        ] {
            assert_eq!(duration_column(nanoseconds, None), column, "{nanoseconds}");
            assert!(column.len() == NO_DURATION.len());
        }
        for (nanoseconds, column) in [
            (0, "  <100 ns     "),
            (99, "  <100 ns     "),
            (100, "  0.100 us    "),
        ] {
            assert_eq!(duration_column(nanoseconds, Some(100)), column);
        }
    }
}
