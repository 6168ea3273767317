//! Where hits of probes belong among steps of the same time.
//!
//! Clocks count in steps: 10 ns on one host, and a clock page stands still while the host has nothing to spare for its thread. So
//! a hit has the time of the call's beginning or end now and then, and nobody wrote down which was first: they are in
//! rings, and in files, of their own. What the probe is says it: a hit at a function's entry comes right before its
//! call begins, one at its return right before it ends, one inside of it at some time before that. Events of one vCPU are in
//! the order in which they happened, so what stands before such a hit comes before that step, too.

use std::collections::{HashMap, HashSet};

use super::calls::Calls;
use super::directory::TraceDirectory;
use super::error::ReportError;
use crate::event::{Event, EventKind, Moment};
use crate::export::events::EventLine;
use crate::export::probes::ProbeNote;
use crate::export::uftrace::record::truncated;

/// So many events are looked through for one that belongs before a step.
const LOOKED_AT: usize = 64;

/// Functions of one name that are looked at: hits in others come before all steps of their time.
const ANCHORS_MAX: usize = 64;

/// A step that comes after a probe's hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    /// The low 48 bits of the function's address,
    function: u64,
    /// and what of its call.
    moment: Moment,
    /// Whether each call has one hit at most.
    is_single: bool,
}

/// Whether a trace has calls of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traced {
    /// None so far.
    Unknown,
    /// It had a hit, and no step was there where one belongs.
    No,
    /// It had one.
    Yes,
}

/// The probes of a trace, as far as they say where their hits belong.
#[derive(Debug, Default)]
pub(super) struct Hits {
    /// By the name of the hits: of functions with the same name there are several.
    anchors: HashMap<String, Vec<Anchor>>,
    /// Whether calls have ends.
    has_returns: bool,
    /// Their functions. For steps of what is not traced nothing need wait.
    traced: HashMap<u64, Traced>,
    /// Of each vCPU the probes whose hit belongs to a step that is still to come: another hit belongs to another one.
    shown: HashMap<u16, HashSet<String>>,
    /// The last call of each vCPU in a trace without ends: when, and of which function.
    last: HashMap<u16, (u64, u64)>,
}

impl Hits {
    /// Of the probes of this trace.
    ///
    /// # Errors
    /// A [`ReportError`] that names their file.
    pub fn of(trace: &TraceDirectory, calls: &Calls) -> Result<Self, ReportError> {
        let mut hits = Self {
            has_returns: trace.is_graph(),
            ..Self::default()
        };
        for probe in trace.probes()? {
            if let Some(anchor) = Anchor::of(&probe, calls) {
                hits.traced.insert(anchor.function, Traced::Unknown);
                let anchors = hits.anchors.entry(probe.name).or_default();
                // Each step is compared with all of them.
                if anchors.len() < ANCHORS_MAX && !anchors.contains(&anchor) {
                    anchors.push(anchor);
                }
            }
        }
        Ok(hits)
    }

    /// Whether there are none: then events come before all steps of their time.
    pub fn are_none(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Whether the first of these events, which are of this step's vCPU, comes before the step.
    pub fn is_first_before<'a>(
        &self,
        events: impl Iterator<Item = &'a EventLine> + Clone,
        step: &Event,
        calls: &Calls,
    ) -> bool {
        let first = events.clone().next();
        let first = first.filter(|first| first.time_ns <= step.time_ns);
        first.is_some_and(|first| !self.waits(first, Some((step, calls))))
            || self.has_one_before(events, step, calls)
    }

    /// Whether one of these events belongs before the step, which has the same time.
    pub fn has_one_before<'a>(
        &self,
        events: impl Iterator<Item = &'a EventLine>,
        step: &Event,
        calls: &Calls,
    ) -> bool {
        let at_once = events.take_while(|event| event.time_ns == step.time_ns);
        at_once.take(LOOKED_AT).any(|event| {
            let Some((name, anchors)) = self.anchors(event) else {
                return false;
            };
            anchors.iter().any(|anchor| {
                let is_shown = anchor.is_single && self.is_shown(event.vcpu, name);
                anchor.is_before(step, calls) && !is_shown
            })
        })
    }

    /// Whether this event waits for a step of its time: for this one, which is of its vCPU, or for any.
    pub fn waits(&self, event: &EventLine, step: Option<(&Event, &Calls)>) -> bool {
        let Some((_, anchors)) = self.anchors(event) else {
            return false;
        };
        let is_traced = |anchor: &&Anchor| self.traced.get(&anchor.function) != Some(&Traced::No);
        anchors.iter().filter(is_traced).any(|anchor| {
            if self.has_returns || anchor.moment == Moment::Entry {
                return true;
            }
            // Its call has no end: it comes after the beginning.
            let begins = |(step, calls): (&Event, &Calls)| match step.kind {
                EventKind::Entry(function) => calls.functions.address(function) == anchor.function,
                _ => false,
            };
            let has_begun = self.last.get(&event.vcpu) == Some(&(event.time_ns, anchor.function));
            step.is_none_or(begins) && !has_begun
        })
    }

    /// The event is shown.
    pub fn show(&mut self, event: &EventLine) {
        let Some((name, anchors)) = self.anchors(event) else {
            return;
        };
        let (name, anchors) = (name.to_owned(), anchors.to_vec());
        for anchor in &anchors {
            // Of what is traced the beginning has been shown.
            if anchor.moment == Moment::Exit {
                self.is_not_traced(anchor.function);
            }
        }
        if anchors.iter().all(|anchor| anchor.is_single) {
            self.shown.entry(event.vcpu).or_default().insert(name);
        }
    }

    /// The step is shown.
    pub fn step(&mut self, step: &Event, calls: &Calls) {
        if self.are_none() {
            return;
        }
        let (function, is_entry) = match step.kind {
            EventKind::Entry(function) => (function, true),
            EventKind::Exit { function, .. } => (function, false),
            EventKind::Lost(_) => {
                self.shown.remove(&step.vcpu);
                return;
            }
            _ => return,
        };
        let shown = self.shown.remove(&step.vcpu).unwrap_or_default();
        for name in shown {
            let anchors = self.anchors.get(&name).cloned().unwrap_or_default();
            if anchors.iter().any(|anchor| anchor.is_before(step, calls)) {
                continue;
            }
            for anchor in anchors {
                self.is_not_traced(anchor.function);
            }
            // An interrupt may have come between.
            self.shown.entry(step.vcpu).or_default().insert(name);
        }
        let function = calls.functions.address(function);
        if let Some(traced) = self.traced.get_mut(&function) {
            *traced = Traced::Yes;
        }
        if is_entry && !self.has_returns {
            self.last.insert(step.vcpu, (step.time_ns, function));
        }
    }

    fn is_not_traced(&mut self, function: u64) {
        if let Some(traced) = self.traced.get_mut(&function)
            && *traced == Traced::Unknown
        {
            *traced = Traced::No;
        }
    }

    fn anchors<'a>(&'a self, event: &'a EventLine) -> Option<(&'a str, &'a [Anchor])> {
        let name = event.event.as_deref().filter(|_| !event.is_of_host)?;
        Some((name, self.anchors.get(name)?))
    }

    fn is_shown(&self, vcpu: u16, name: &str) -> bool {
        let shown = self.shown.get(&vcpu);
        shown.is_some_and(|shown| shown.contains(name))
    }
}

impl Anchor {
    /// Of a probe that is in a function.
    fn of(probe: &ProbeNote, calls: &Calls) -> Option<Self> {
        let is_return = probe.is_return?;
        let digits = probe.address.strip_prefix("0x")?;
        let address = u64::from_str_radix(digits, 16).ok()?;
        let function = calls.functions.around(address)?;
        let function = calls.functions.address(function);
        let is_at_entry = truncated(address) == function && !is_return;
        Some(Self {
            function,
            moment: match is_at_entry {
                true => Moment::Entry,
                false => Moment::Exit,
            },
            is_single: is_at_entry || is_return,
        })
    }

    fn is_before(self, step: &Event, calls: &Calls) -> bool {
        let (function, moment) = match step.kind {
            EventKind::Entry(function) => (function, Moment::Entry),
            EventKind::Exit { function, .. } => (function, Moment::Exit),
            _ => return false,
        };
        self.moment == moment && self.function == calls.functions.address(function)
    }
}
