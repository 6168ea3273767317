//! Events as lines among the calls.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};

use terms::printable::masked;

use super::directory::TraceDirectory;
use super::error::ReportError;
use super::function_line;
use crate::export::events::{EventLine, EventReader};
use terms::quantity::plain;

/// The events of a trace, to be shown where they belong.
#[derive(Debug)]
pub struct Events(EventReader);

impl Events {
    /// The events of this trace.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn of(trace: &TraceDirectory) -> Result<Self, ReportError> {
        Ok(Self(EventReader::open(&trace.path)?))
    }

    /// The next event, if it was at `time_ns` or before.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn next_until(&mut self, time_ns: u64) -> Result<Option<EventLine>, ReportError> {
        Ok(self.0.pop_until(time_ns)?)
    }

    /// Whether the next event was on this vCPU and before `time_ns`.
    #[must_use]
    pub fn is_next_before(&self, time_ns: u64, vcpu: u16) -> bool {
        self.0
            .peek()
            .is_some_and(|event| event.vcpu == vcpu && event.time_ns < time_ns)
    }

    /// Prints the last `most` events of each vCPU up to `until_ns`, one vCPU after the other. Returns how many.
    ///
    /// # Errors
    /// [`ReportError::Events`] or [`ReportError::Output`].
    pub(super) fn print_last(
        mut self,
        until_ns: u64,
        most: usize,
        out: &mut impl Write,
    ) -> Result<u64, ReportError> {
        let mut tails: BTreeMap<u16, VecDeque<EventLine>> = BTreeMap::new();
        while let Some(event) = self.next_until(until_ns)? {
            let tail = tails.entry(event.vcpu).or_default();
            tail.push_back(event);
            while tail.len() > most {
                tail.pop_front();
            }
        }
        let mut printed = 0;
        for (vcpu, tail) in &tails {
            writeln!(out, "# events of CPU {vcpu}").map_err(ReportError::Output)?;
            for event in tail {
                printed += 1;
                let (vcpu, said) = (usize::from(*vcpu), event.to_string());
                function_line(out, vcpu, event.time_ns, &said).map_err(ReportError::Output)?;
            }
        }
        Ok(printed)
    }

    /// Prints how often there is which event, if there are any. Returns how many there are, and how many were lost.
    ///
    /// # Errors
    /// [`ReportError::Events`] or [`ReportError::Output`].
    pub fn print_counts(mut self, out: &mut impl Write) -> Result<(u64, u64), ReportError> {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut lost = 0u64;
        while let Some(event) = self.next_until(u64::MAX)? {
            lost = lost.saturating_add(event.lost);
            if let Some(name) = event.event {
                *counts.entry(name).or_default() += 1;
            }
        }
        table(&counts, lost, out).map_err(ReportError::Output)?;
        Ok((counts.values().sum(), lost))
    }
}

fn table(counts: &BTreeMap<String, u64>, lost: u64, out: &mut impl Write) -> io::Result<()> {
    if counts.is_empty() && lost == 0 {
        return Ok(());
    }
    writeln!(out, "{:>14}  EVENT", "COUNT")?;
    for (name, count) in counts {
        let name = masked(name);
        writeln!(out, "{count:>14}  {name}")?;
    }
    let all: u64 = counts.values().sum();
    writeln!(out, "# {}, {lost} lost", plain(all, "event"))
}
