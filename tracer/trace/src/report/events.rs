//! Events as lines among the calls.

use std::collections::BTreeMap;
use std::io::{self, Write};

use terms::printable::masked;

use super::directory::TraceDirectory;
use super::error::ReportError;
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
}

/// How often there is which event.
#[derive(Debug, Default)]
pub(super) struct Counts {
    of_event: BTreeMap<String, u64>,
    /// Events that were lost.
    pub lost: u64,
}

impl Counts {
    /// One more, or a loss.
    pub fn add(&mut self, line: EventLine) {
        self.lost = self.lost.saturating_add(line.lost);
        if let Some(name) = line.event {
            *self.of_event.entry(name).or_default() += 1;
        }
    }

    /// How many there are.
    pub fn all(&self) -> u64 {
        self.of_event.values().sum()
    }

    /// Prints them, if there are any.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if self.of_event.is_empty() && self.lost == 0 {
            return Ok(());
        }
        writeln!(out, "{:>14}  EVENT", "COUNT")?;
        for (name, count) in &self.of_event {
            let name = masked(name);
            writeln!(out, "{count:>14}  {name}")?;
        }
        writeln!(out, "# {}, {} lost", plain(self.all(), "event"), self.lost)
    }
}
