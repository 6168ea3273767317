//! What a directory keeps of a graph: of all its threads, or of some, where several are taken side by side.

use super::VcpuTotals;
use super::called::Called;
use super::error::ExportError;
use super::threads::ThreadLanes;
use crate::event::{Event, EventKind, Sink, SureStep};

/// The files of threads, and what was seen of these.
#[derive(Debug)]
pub struct Tracks {
    pub(super) lanes: ThreadLanes,
    /// What was seen of each vCPU.
    seen: Vec<VcpuTotals>,
    called: Called,
    /// Why not everything was written, where these are lent.
    error: Option<ExportError>,
}

impl Tracks {
    pub(super) fn new(lanes: ThreadLanes) -> Self {
        Self {
            lanes,
            seen: Vec::new(),
            called: Called::default(),
            error: None,
        }
    }

    /// Lends those of these threads, until they are [back](Self::take_back). `None` if they are not to be had.
    pub(super) fn lend(&mut self, threads: &[u32]) -> Option<Self> {
        self.lanes.lend(threads).map(Self::new)
    }

    /// They are back, with steps alone: nothing was lost among these. Says why not everything was written.
    pub(super) fn take_back(&mut self, lent: Self) -> Result<(), ExportError> {
        let outcome = self.lanes.take_back(lent.lanes);
        self.called.join(lent.called);
        for totals in lent.seen {
            if let Some(seen) = self.seen_on(totals.vcpu) {
                seen.entries += totals.entries;
                seen.unknown += totals.unknown;
            }
        }
        lent.error.map_or(outcome, Err)
    }

    /// What was seen of each vCPU.
    pub(super) fn seen(&self) -> impl Iterator<Item = VcpuTotals> {
        self.seen.iter().copied()
    }

    /// Which functions were called.
    pub(super) const fn called(&self) -> &Called {
        &self.called
    }

    fn seen_on(&mut self, vcpu: u16) -> Option<&mut VcpuTotals> {
        while self.seen.len() <= usize::from(vcpu) {
            let number = u16::try_from(self.seen.len()).unwrap_or(u16::MAX);
            self.seen.push(VcpuTotals {
                vcpu: number,
                ..VcpuTotals::default()
            });
        }
        self.seen.get_mut(usize::from(vcpu))
    }

    /// A step of a thread.
    pub(super) fn append(&mut self, event: &Event) -> Result<(), ExportError> {
        let result = self.lanes.append(event);
        let is_known = !matches!(result, Ok(false));
        if let EventKind::Entry(function) = event.kind
            && is_known
        {
            self.called.note(function);
        }
        if let Some(seen) = self.seen_on(event.vcpu) {
            match event.kind {
                _ if !is_known => seen.unknown += 1,
                EventKind::Entry(_) => seen.entries += 1,
                EventKind::Lost(count) => seen.lost = seen.lost.saturating_add(count),
                _ => {}
            }
        }
        result.map(drop)
    }

    /// Steps of a thread, on one vCPU.
    pub(super) fn append_all(
        &mut self,
        vcpu: u16,
        thread: u32,
        steps: &[SureStep],
    ) -> Result<(), ExportError> {
        let called = &mut self.called;
        let (counts, result) = self.lanes.append_all(vcpu, thread, steps, called);
        if let Some(seen) = self.seen_on(vcpu) {
            seen.entries += counts.entries;
            seen.unknown += counts.unknown;
        }
        result
    }

    /// The first error stays.
    fn note(&mut self, outcome: Result<(), ExportError>) {
        if let Err(error) = outcome {
            self.error.get_or_insert(error);
        }
    }
}

/// As who they are lent to adds to them.
impl Sink for Tracks {
    fn event(&mut self, event: Event) {
        let outcome = self.append(&event);
        self.note(outcome);
    }

    fn steps(&mut self, vcpu: u16, thread: u32, steps: &[SureStep]) {
        let outcome = self.append_all(vcpu, thread, steps);
        self.note(outcome);
    }
}
