//! All that a trace has, as one stream in the order of time: steps of threads, events, and how late the clock was.

use std::iter::Peekable;
use std::slice;

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use super::events::Events;
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

/// What is merged.
#[derive(Debug)]
pub struct Stream<'a> {
    pub calls: &'a mut Calls,
    events: Events,
    stalls: Peekable<slice::Iter<'a, ClockStall>>,
    /// The next step, when it is known what comes before it; also the end of a call that an event has taken apart.
    next: Option<Shown>,
    /// Whether a call in which an event happened is taken apart.
    is_nested: bool,
}

impl<'a> Stream<'a> {
    /// Of this trace, whose calls these are. A call in which an event happened on its vCPU is taken apart if `is_nested`.
    ///
    /// # Errors
    /// [`ReportError::Events`].
    pub fn of(
        trace: &'a TraceDirectory,
        calls: &'a mut Calls,
        is_nested: bool,
    ) -> Result<Self, ReportError> {
        let stalls = trace.side.as_ref().map(|side| &*side.clock_stalls);
        Ok(Self {
            calls,
            events: Events::of(trace)?,
            stalls: stalls.unwrap_or_default().iter().peekable(),
            next: None,
            is_nested,
        })
    }

    /// What comes next.
    ///
    /// # Errors
    /// As of [`Calls::pop`], and [`ReportError::Events`].
    pub fn next(&mut self) -> Result<Option<Happened>, ReportError> {
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
            Shown::Leaf(entry, exit)
                if self.is_nested && self.events.is_next_before(exit.time_ns, entry.vcpu) =>
            {
                self.next = Some(Shown::Step(exit));
                Shown::Step(entry)
            }
            other => other,
        }
    }
}
