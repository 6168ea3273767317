//! Clock stalls as lines among the calls: times up to such a line are too early.

use std::io::{self, Write};

use super::directory::TraceDirectory;
use crate::export::uftrace::ClockStall;

/// The stalls of a trace, to be printed where they belong.
#[derive(Debug)]
pub struct Stalls<'a>(std::iter::Peekable<std::slice::Iter<'a, ClockStall>>);

impl<'a> Stalls<'a> {
    pub fn of(trace: &'a TraceDirectory) -> Self {
        let stalls = trace.side.as_ref().map(|side| &*side.clock_stalls);
        Self(stalls.unwrap_or_default().iter().peekable())
    }

    /// Prints those that were over at `time_ns`, the time of the next line.
    pub fn print_until(&mut self, time_ns: u64, out: &mut impl Write) -> io::Result<()> {
        while let Some(stall) = self.0.next_if(|stall| stall.end_ns <= time_ns) {
            writeln!(out, "# {stall}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_printed_once_before_what_comes_after_it() {
        let stalls = [1_000, 5_000_000].map(|end_ns| ClockStall {
            end_ns,
            length_ns: 20_500,
        });
        let mut stalls = Stalls(stalls.iter().peekable());
        let mut said = Vec::new();
        let mut until = |time| {
            stalls.print_until(time, &mut said).unwrap();
            said.iter().filter(|byte| **byte == b'\n').count()
        };
        assert_eq!(
            [999, 1_000, 4_000_000, u64::MAX].map(&mut until),
            [0, 1, 1, 2]
        );
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with("# the clock stood still for 20 us up to here\n"));
    }
}
