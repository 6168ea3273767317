//! All that a trace has, as one stream in the order of time: steps of threads, events, and what is said of all vCPUs.

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

impl Happened {
    /// When.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        match self {
            Self::Call(Shown::Step(last) | Shown::Leaf(_, last)) => last.time_ns,
            Self::Point(event) => event.time_ns,
            Self::Remark(remark) => remark.time_ns(),
        }
    }
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
        let hits = match leaves {
            // Nobody asks for an order.
            Leaves::Whole => Hits::default(),
            Leaves::WithoutEvents | Leaves::Apart => {
                Hits::of(trace, calls).unwrap_or_else(|error| {
                    let remark =
                        format!("{error}: hits of probes stand before all steps of their time");
                    calls.notes.push(remark);
                    Hits::default()
                })
            }
        };
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
        if let Some(event) = self.event(until_ns)? {
            self.hits.show(&event);
            return Ok(Some(Happened::Point(event)));
        }
        if let Some(remark) = self.remarks.next_if(is_due) {
            return Ok(Some(Happened::Remark(remark)));
        }
        let Some(next) = self.next.take() else {
            return Ok(None);
        };
        let shown = self.opened(next)?;
        let (Shown::Step(last) | Shown::Leaf(_, last)) = &shown;
        if let Shown::Leaf(entry, _) = &shown {
            self.hits.step(entry, self.calls);
        }
        self.hits.step(last, self.calls);
        Ok(Some(Happened::Call(shown)))
    }

    /// The next event, if it was at `until_ns` or before and comes before the next step, whose time is not before that.
    fn event(&mut self, until_ns: u64) -> Result<Option<EventLine>, ReportError> {
        let Some(first) = self
            .events
            .first()
            .filter(|first| first.time_ns <= until_ns)
        else {
            return Ok(None);
        };
        let step = match &self.next {
            Some(Shown::Step(step) | Shown::Leaf(step, _)) if !self.hits.are_none() => step,
            _ => return self.events.take_first(),
        };
        if first.time_ns < step.time_ns {
            return self.events.take_first();
        }
        let own = self.events.of_vcpu(step.vcpu, step.time_ns)?;
        if self.hits.is_first_before(own.iter(), step, self.calls) {
            return Ok(self.events.take_of(step.vcpu));
        }
        let is_other = |first: &EventLine| first.vcpu != step.vcpu && first.time_ns <= until_ns;
        match self.events.first() {
            Some(first) if is_other(first) && !self.hits.waits(first, None) => {
                self.events.take_first()
            }
            _ => Ok(None),
        }
    }

    /// A call, or its beginning when an event comes before its end.
    fn opened(&mut self, shown: Shown) -> Result<Shown, ReportError> {
        Ok(match shown {
            Shown::Leaf(entry, exit) if self.is_apart(&entry, &exit)? => {
                self.calls.put_back(exit);
                Shown::Step(entry)
            }
            other => other,
        })
    }

    fn is_apart(&mut self, entry: &Event, exit: &Event) -> Result<bool, ReportError> {
        if self.leaves != Leaves::WithoutEvents {
            return Ok(self.leaves == Leaves::Apart);
        }
        let next_ns = self.events.time_of(entry.vcpu, exit.time_ns)?;
        if next_ns.is_none_or(|next_ns| next_ns < exit.time_ns) || self.hits.are_none() {
            return Ok(next_ns.is_some_and(|next_ns| next_ns < exit.time_ns));
        }
        let at_once = self.events.of_vcpu(entry.vcpu, exit.time_ns)?;
        Ok(self.hits.has_one_before(at_once.iter(), exit, self.calls))
    }
}
