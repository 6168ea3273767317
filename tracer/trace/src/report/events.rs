//! Events as lines among the calls.

use std::collections::BTreeMap;

use terms::printable::masked;

use super::directory::TraceDirectory;
use super::error::ReportError;
use super::table::{Cell, Column, Table, Unit};
use super::values::change;
use crate::export::events::{EventLine, EventReader};
use crate::graph::excerpt::Excerpt;
use terms::quantity::plain;

/// The events of a trace that are asked for, to be shown where they belong.
#[derive(Debug)]
pub struct Events {
    reader: EventReader,
    excerpt: Excerpt,
    /// Events that were read, whether or not they were asked for.
    pub read: u64,
}

impl Events {
    /// The events of this trace.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn of(trace: &TraceDirectory, excerpt: &Excerpt) -> Result<Self, ReportError> {
        let mut events = Self {
            reader: EventReader::open(&trace.path)?,
            excerpt: excerpt.clone(),
            read: 0,
        };
        events.skip()?;
        Ok(events)
    }

    /// Reads until the next one is asked for.
    fn skip(&mut self) -> Result<(), ReportError> {
        while self.reader.peek().is_some_and(|next| !self.has(next)) {
            self.pop(u64::MAX)?;
        }
        Ok(())
    }

    /// Whether it is asked for. Which thread it was on nobody knows.
    fn has(&self, line: &EventLine) -> bool {
        self.excerpt.threads.is_empty() && self.excerpt.has(line.vcpu, line.time_ns)
    }

    fn pop(&mut self, time_ns: u64) -> Result<Option<EventLine>, ReportError> {
        let line = self.reader.pop_until(time_ns)?;
        let is_event = line.as_ref().is_some_and(|line| line.event.is_some());
        self.read += u64::from(is_event);
        Ok(line)
    }

    /// The next event, if it was at `time_ns` or before.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn next_until(&mut self, time_ns: u64) -> Result<Option<EventLine>, ReportError> {
        let line = self.pop(time_ns)?;
        if line.is_some() {
            self.skip()?;
        }
        Ok(line)
    }

    /// The next event.
    #[must_use]
    pub fn peek(&self) -> Option<&EventLine> {
        self.reader.peek()
    }
}

/// How often there is which event.
#[derive(Debug, Default)]
pub(super) struct Counts {
    of_event: BTreeMap<String, u64>,
    /// Events that were lost.
    lost: u64,
}

impl Counts {
    /// One more, or a loss.
    pub fn add(&mut self, line: &EventLine) {
        self.lost = self.lost.saturating_add(line.lost);
        if let Some(name) = &line.event {
            change(&mut self.of_event, name, |count| *count += 1);
        }
    }

    /// How many there are; none if there was nothing, and nothing was lost.
    pub fn table(&self) -> Option<Table> {
        if self.of_event.is_empty() && self.lost == 0 {
            return None;
        }
        let all = self.of_event.values().sum();
        let row =
            |(name, count): (&String, &u64)| vec![Cell::from(*count), Cell::name(masked(name))];
        Some(Table {
            name: "events",
            columns: vec![
                Column::new("count", "COUNT", Unit::Number(14)),
                Column::new("event", "EVENT", Unit::Name("")),
            ],
            rows: self.of_event.iter().map(row).collect(),
            remarks: vec![format!("{}, {} lost", plain(all, "event"), self.lost)],
        })
    }
}
