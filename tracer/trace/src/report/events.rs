//! Events as lines among the calls.

use std::collections::{BTreeMap, VecDeque};

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
    /// What was looked at before its turn, of each vCPU that has something.
    ahead: BTreeMap<u16, VecDeque<EventLine>>,
    /// Events that were read, whether or not they were asked for.
    pub read: u64,
}

/// So many of a vCPU are looked at before their turn, at most: while a clock stands still, all have the same time.
const AHEAD_MAX: usize = 1 << 14;

impl Events {
    /// The events of this trace.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn of(trace: &TraceDirectory, excerpt: &Excerpt) -> Result<Self, ReportError> {
        let mut events = Self {
            reader: EventReader::open(&trace.path)?,
            excerpt: excerpt.clone(),
            ahead: BTreeMap::new(),
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
        self.count(line.as_ref());
        Ok(line)
    }

    fn count(&mut self, line: Option<&EventLine>) {
        self.read += u64::from(line.is_some_and(|line| line.event.is_some()));
    }

    /// The next event.
    #[must_use]
    pub fn first(&self) -> Option<&EventLine> {
        let ahead = self.ahead.values().filter_map(VecDeque::front);
        let ahead = ahead.min_by_key(|line| line.time_ns);
        let read = self.reader.peek();
        // Of one vCPU and time it is what was read first.
        match ahead.zip(read) {
            Some((ahead, read)) if ahead.time_ns > read.time_ns => Some(read),
            _ => ahead.or(read),
        }
    }

    /// Takes it.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn take_first(&mut self) -> Result<Option<EventLine>, ReportError> {
        let Some((time_ns, vcpu)) = self.first().map(|line| (line.time_ns, line.vcpu)) else {
            return Ok(None);
        };
        let is_ahead = |line: &EventLine| line.time_ns == time_ns;
        if self
            .ahead
            .get(&vcpu)
            .and_then(VecDeque::front)
            .is_some_and(is_ahead)
        {
            return Ok(self.take_of(vcpu));
        }
        let line = self.pop(time_ns)?;
        self.skip()?;
        Ok(line)
    }

    /// When the next event of this vCPU is, if that is at `until_ns` or before.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn time_of(&mut self, vcpu: u16, until_ns: u64) -> Result<Option<u64>, ReportError> {
        if let Some(first) = self.ahead.get(&vcpu).and_then(VecDeque::front) {
            return Ok((first.time_ns <= until_ns).then_some(first.time_ns));
        }
        while let Some(first) = self.reader.peek_of(vcpu)
            && first.time_ns <= until_ns
        {
            if self.has(first) {
                return Ok(Some(first.time_ns));
            }
            let line = self.reader.pop_of(vcpu, until_ns)?;
            self.count(line.as_ref());
        }
        Ok(None)
    }

    /// The next events of this vCPU: all that are at `until_ns` or before, as far as there is room for them.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn of_vcpu(
        &mut self,
        vcpu: u16,
        until_ns: u64,
    ) -> Result<&VecDeque<EventLine>, ReportError> {
        while self.ahead.get(&vcpu).map_or(0, VecDeque::len) < AHEAD_MAX
            && let Some(line) = self.reader.pop_of(vcpu, until_ns)?
        {
            self.count(Some(&line));
            if self.has(&line) {
                self.ahead.entry(vcpu).or_default().push_back(line);
            }
        }
        self.skip()?;
        Ok(self.ahead.get(&vcpu).unwrap_or(&NONE))
    }

    /// Takes the next one of those.
    pub fn take_of(&mut self, vcpu: u16) -> Option<EventLine> {
        let ahead = self.ahead.get_mut(&vcpu)?;
        let line = ahead.pop_front();
        if ahead.is_empty() {
            self.ahead.remove(&vcpu);
        }
        line
    }
}

static NONE: VecDeque<EventLine> = VecDeque::new();

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
