//! All that a trace has, as one stream in the order of time: steps of threads, events, and what is said of all vCPUs.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::vec;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::events::Events;
use super::hits::Hits;
use crate::event::Event;
use crate::export::events::EventLine;
use crate::export::remark::Remark;

/// What happened next.
#[derive(Debug)]
pub enum Happened {
    /// A step of a thread, or a call in which nothing happened.
    Call(Shown),
    /// An event, or a loss of some.
    Point(EventLine),
    /// Something that concerns all vCPUs.
    Remark(Remark),
}

/// Which calls in which nothing was called come whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// All.
    Whole,
    /// Those in which no event happened on their vCPU.
    WithoutEvents,
    /// None: each step comes in the order of time.
    Apart,
}

/// What is merged.
#[derive(Debug)]
pub struct Stream<'a> {
    pub calls: &'a mut Calls,
    events: Events,
    hits: Hits,
    remarks: Peekable<vec::IntoIter<Remark>>,
    /// The next step, when it is known what comes before it.
    next: Option<Shown>,
    leaves: Leaves,
    /// Whether nothing but remarks has come so far.
    is_empty: bool,
}

impl<'a> Stream<'a> {
    /// Of this trace, whose calls these are.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn of(
        trace: &'a TraceDirectory,
        calls: &'a mut Calls,
        leaves: Leaves,
    ) -> Result<Self, ReportError> {
        let remarks = trace.side.as_ref().map(Remark::all);
        let events = Events::of(trace, &calls.excerpt)?;
        let hits = Hits::of(trace, calls)?;
        Ok(Self {
            calls,
            events,
            hits,
            remarks: remarks.unwrap_or_default().into_iter().peekable(),
            next: None,
            leaves,
            is_empty: true,
        })
    }

    /// What comes next.
    ///
    /// # Errors
    /// As of [`Calls::pop`], and [`ReportError::Events`].
    pub fn next(&mut self) -> Result<Option<Happened>, ReportError> {
        loop {
            let happened = self.any()?;
            let Some(Happened::Remark(remark)) = &happened else {
                if std::mem::take(&mut self.is_empty) && happened.is_none() {
                    self.calls.note_empty_part(self.events.read);
                }
                return Ok(happened);
            };
            let (excerpt, time_ns) = (&self.calls.excerpt, remark.time_ns());
            if !excerpt.is_early(time_ns) && !excerpt.is_late(time_ns) {
                return Ok(happened);
            }
        }
    }

    /// Events that were read so far, whether or not they were asked for.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events.read
    }

    /// The same with all remarks.
    fn any(&mut self) -> Result<Option<Happened>, ReportError> {
        if self.next.is_none() {
            self.next = self.calls.pop()?;
        }
        let time_ns = match &self.next {
            Some(Shown::Step(first) | Shown::Leaf(first, _)) => first.time_ns,
            None => u64::MAX,
        };
        let is_due = |remark: &Remark| remark.time_ns() <= time_ns;
        let remark = self.remarks.peek().filter(|remark| is_due(remark));
        let until_ns = remark.map_or(time_ns, |remark| remark.time_ns().saturating_sub(1));
        if !self.is_next()
            && let Some(event) = self.events.next_until(until_ns)?
        {
            self.hits.show(&event);
            return Ok(Some(Happened::Point(event)));
        }
        if let Some(remark) = self.remarks.next_if(is_due) {
            return Ok(Some(Happened::Remark(remark)));
        }
        let Some(next) = self.next.take() else {
            return Ok(None);
        };
        let shown = self.opened(next);
        let (Shown::Step(last) | Shown::Leaf(_, last)) = &shown;
        if let Shown::Leaf(entry, _) = &shown {
            self.hits.step(entry, self.calls);
        }
        self.hits.step(last, self.calls);
        Ok(Some(Happened::Call(shown)))
    }

    /// Whether the next step comes before the next event, of which the time is not after it.
    fn is_next(&self) -> bool {
        let both = self.events.peek().zip(self.next.as_ref());
        both.is_some_and(|(event, next)| self.hits.is_after(event, next, self.calls))
    }

    /// A call, or its beginning when an event comes before its end.
    fn opened(&mut self, shown: Shown) -> Shown {
        match shown {
            Shown::Leaf(entry, exit) if self.is_apart(&entry, &exit) => {
                self.calls.put_back(exit);
                Shown::Step(entry)
            }
            other => other,
        }
    }

    fn is_apart(&self, entry: &Event, exit: &Event) -> bool {
        match self.leaves {
            Leaves::Whole => false,
            Leaves::WithoutEvents => self.events.peek().is_some_and(|event| {
                let is_before = match event.time_ns.cmp(&exit.time_ns) {
                    Ordering::Less => true,
                    Ordering::Equal => self.hits.is_before_end(event, exit, self.calls),
                    Ordering::Greater => false,
                };
                is_before && event.vcpu == entry.vcpu
            }),
            Leaves::Apart => true,
        }
    }
}
