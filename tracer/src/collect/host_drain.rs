//! What the host did with the vCPUs, for one session.

use std::sync::Arc;

use trace::event::{Record, RecordKind};
use trace::host::HostStep;
use trace::stream::Origin;

use super::backlog::{Batch, Records};
use crate::clock::RunClock;
use crate::host_events::HostEvents;

/// Reads what was told since the session began.
#[derive(Debug)]
pub(super) struct HostDrain {
    events: Arc<HostEvents>,
    /// How many steps of each vCPU were before the session, and how many have been read.
    vcpus: Vec<Seen>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    before: u64,
    read: u64,
}

impl HostDrain {
    /// From now on.
    pub fn new(events: &Arc<HostEvents>) -> Self {
        events.ask();
        let seen = |vcpu| {
            let before = events.count(vcpu);
            Seen {
                before,
                read: before,
            }
        };
        Self {
            events: Arc::clone(events),
            vcpus: (0..events.vcpus()).map(seen).collect(),
        }
    }

    /// What has come since the last time: a batch for each vCPU.
    pub fn read(&mut self, clock: &RunClock, mut to: impl FnMut(Batch)) {
        self.events.ask();
        for (vcpu, seen) in (0..).zip(&mut self.vcpus) {
            let (batch, count) = batch(&self.events, vcpu, seen.read, clock);
            seen.read = count;
            to(batch);
        }
    }

    /// What is kept of the session's time; nothing is taken.
    pub fn copy(&self, clock: &RunClock, mut to: impl FnMut(Batch)) {
        self.events.ask();
        for (vcpu, seen) in (0..).zip(&self.vcpus) {
            let (batch, _) = batch(&self.events, vcpu, seen.before, clock);
            to(Batch::held(
                batch.origin,
                batch.records.into_rows(Vec::new()),
            ));
        }
    }
}

fn batch(events: &HostEvents, vcpu: u16, seen: u64, clock: &RunClock) -> (Batch, u64) {
    let fresh = events.since(vcpu, seen);
    let looked_ns = clock.nanoseconds(fresh.looked);
    let first = fresh
        .steps
        .first()
        .map_or(fresh.looked, |(ticks, _)| *ticks);
    let lost = u32::try_from(fresh.lost).unwrap_or(u32::MAX);
    let lost = (lost > 0).then_some((first, HostStep::Lost(lost)));
    let record = |(ticks, step)| Record {
        time_ns: clock.nanoseconds(ticks),
        kind: RecordKind::Host(Box::new(step)),
    };
    let batch = Batch {
        origin: Origin::Host(vcpu),
        records: Records::Rows(lost.into_iter().chain(fresh.steps).map(record).collect()),
        values: 0,
        looked_ns: Some(looked_ns),
        until_ns: looked_ns,
    };
    (batch, fresh.count)
}
