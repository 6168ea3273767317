//! Where hits of probes belong among steps of the same time.
//!
//! Clocks count in steps: 10 ns on one host, and a clock page stands still while the host has nothing to spare for its thread. So
//! a hit has the time of the call's beginning or end now and then, and nobody wrote down which was first: they are in
//! rings, and in files, of their own. What the probe is says it: a hit at a function's entry comes right before its
//! call begins, one at its return right before it ends, one inside of it at some time before that.

use std::collections::{HashMap, HashSet};

use super::calls::{Calls, Shown};
use super::directory::TraceDirectory;
use super::error::ReportError;
use crate::event::{Event, EventKind, Moment};
use crate::export::events::EventLine;
use crate::export::probes::ProbeNote;
use crate::export::uftrace::record::truncated;

/// What comes after the hits of a probe.
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
    /// It had a hit, and no step came after it where one belongs.
    No,
    /// It had one.
    Yes,
}

/// The probes of a trace, as far as they say where their hits belong.
#[derive(Debug, Default)]
pub(super) struct Hits {
    anchors: HashMap<String, Anchor>,
    /// Their functions, and whether the trace has calls of them. Of others nothing need be waited for.
    traced: HashMap<u64, Traced>,
    /// Of each vCPU the probes whose hit comes before its next step: another hit comes before another step.
    shown: HashMap<u16, HashSet<String>>,
}

impl Hits {
    /// Of the probes of this trace.
    ///
    /// # Errors
    /// A [`ReportError`] that names their file.
    pub fn of(trace: &TraceDirectory, calls: &Calls) -> Result<Self, ReportError> {
        let probes = trace.probes()?;
        let anchors = probes
            .iter()
            .filter_map(|probe| Some((probe.name.clone(), Anchor::of(probe, calls)?)));
        let anchors: HashMap<_, _> = anchors.collect();
        let functions = anchors.values().map(|anchor| anchor.function);
        Ok(Self {
            traced: functions.map(|one| (one, Traced::Unknown)).collect(),
            anchors,
            shown: HashMap::new(),
        })
    }

    /// Whether this step, the next of all, comes before this event, of which the time is not after the step's.
    pub fn is_after(&self, event: &EventLine, next: &Shown, calls: &Calls) -> bool {
        let (Shown::Step(step) | Shown::Leaf(step, _)) = next;
        let Some(anchor) = self.anchor(event).filter(|_| event.time_ns == step.time_ns) else {
            return false;
        };
        let is_own = event.vcpu == step.vcpu && anchor.is_before(step, calls);
        let is_due = is_own && !self.is_shown(event, anchor);
        !is_due && self.traced.get(&anchor.function) != Some(&Traced::No)
    }

    /// Whether this event comes before this end of a call that has the same time.
    pub fn is_before_end(&self, event: &EventLine, exit: &Event, calls: &Calls) -> bool {
        let anchor = self.anchor(event);
        anchor.is_some_and(|anchor| anchor.is_before(exit, calls))
    }

    /// The event is shown.
    pub fn show(&mut self, event: &EventLine) {
        if self.anchor(event).is_some_and(|anchor| anchor.is_single) {
            let name = event.event.clone().unwrap_or_default();
            self.shown.entry(event.vcpu).or_default().insert(name);
        }
    }

    /// The step is shown.
    pub fn step(&mut self, step: &Event, calls: &Calls) {
        if self.anchors.is_empty() {
            return;
        }
        let shown = self.shown.get_mut(&step.vcpu);
        for name in shown.into_iter().flat_map(HashSet::drain) {
            let anchor = self.anchors.get(&name);
            if let Some(anchor) = anchor.filter(|anchor| !anchor.is_before(step, calls))
                && let Some(unknown) = self.traced.get_mut(&anchor.function)
                && *unknown == Traced::Unknown
            {
                *unknown = Traced::No;
            }
        }
        if let EventKind::Entry(function) = step.kind
            && let Some(traced) = self.traced.get_mut(&calls.functions.address(function))
        {
            *traced = Traced::Yes;
        }
    }

    fn anchor(&self, event: &EventLine) -> Option<Anchor> {
        let name = event.event.as_ref().filter(|_| !event.is_of_host)?;
        self.anchors.get(name).copied()
    }

    fn is_shown(&self, event: &EventLine, anchor: Anchor) -> bool {
        let name = event.event.as_deref().unwrap_or_default();
        let shown = self.shown.get(&event.vcpu);
        anchor.is_single && shown.is_some_and(|shown| shown.contains(name))
    }
}

impl Anchor {
    /// Of a probe that is in a function.
    fn of(probe: &ProbeNote, calls: &Calls) -> Option<Self> {
        let digits = probe.address.strip_prefix("0x")?;
        let address = u64::from_str_radix(digits, 16).ok()?;
        let function = calls.functions.around(address)?;
        let function = calls.functions.address(function);
        let is_at_entry = truncated(address) == function && !probe.is_return;
        Some(Self {
            function,
            moment: match is_at_entry {
                true => Moment::Entry,
                false => Moment::Exit,
            },
            is_single: is_at_entry || probe.is_return,
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
