//! All that a trace has, as one stream in the order of time: steps of threads, events, and how late the clock was.

use std::iter::Peekable;
use std::slice;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::events::Events;
use crate::event::Event;
use crate::export::events::EventLine;
use crate::export::uftrace::ClockStall;

/// What happened next.
#[derive(Debug)]
pub enum Happened {
    /// A step of a thread, or a call in which nothing happened.
    Call(Shown),
    /// An event, or a loss of some.
    Point(EventLine),
    /// The clock was late: times up to here are too early.
    Stall(ClockStall),
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
    stalls: Peekable<slice::Iter<'a, ClockStall>>,
    /// The next step, when it is known what comes before it.
    next: Option<Shown>,
    leaves: Leaves,
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
        let stalls = trace.side.as_ref().map(|side| &*side.clock_stalls);
        let events = Events::of(trace, &calls.excerpt)?;
        Ok(Self {
            calls,
            events,
            stalls: stalls.unwrap_or_default().iter().peekable(),
            next: None,
            leaves,
        })
    }

    /// What comes next.
    ///
    /// # Errors
    /// As of [`Calls::pop`], and [`ReportError::Events`].
    pub fn next(&mut self) -> Result<Option<Happened>, ReportError> {
        loop {
            let happened = self.any()?;
            let Some(Happened::Stall(stall)) = &happened else {
                return Ok(happened);
            };
            let excerpt = &self.calls.excerpt;
            if !excerpt.is_early(stall.end_ns) && !excerpt.is_late(stall.end_ns) {
                return Ok(happened);
            }
        }
    }

    /// Events that were read so far, whether or not they were asked for.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events.read
    }

    /// The same with all that is said of the clock.
    fn any(&mut self) -> Result<Option<Happened>, ReportError> {
        if self.next.is_none() {
            self.next = self.calls.pop()?;
        }
        let Some(Shown::Step(first) | Shown::Leaf(first, _)) = &self.next else {
            // What is said of the clock is of the times before.
            return Ok(self.events.next_until(u64::MAX)?.map(Happened::Point));
        };
        let time_ns = first.time_ns;
        let stall = self.stalls.peek().filter(|stall| stall.end_ns <= time_ns);
        let until_ns = stall.map_or(time_ns, |stall| stall.end_ns.saturating_sub(1));
        if let Some(event) = self.events.next_until(until_ns)? {
            return Ok(Some(Happened::Point(event)));
        }
        if let Some(stall) = self.stalls.next_if(|stall| stall.end_ns <= time_ns) {
            return Ok(Some(Happened::Stall(*stall)));
        }
        Ok(self
            .next
            .take()
            .map(|next| Happened::Call(self.opened(next))))
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
            Leaves::WithoutEvents => self.events.is_next_before(exit.time_ns, entry.vcpu),
            Leaves::Apart => true,
        }
    }
}
