//! Which sessions the clock page is kept for, and how; and how the vCPUs' counters are measured.

use std::sync::Arc;

use super::clock_page::{Beat, ClockPage};
use super::session::TraceSession;
use super::{Tracing, TracingError};
use crate::clock::{Relation, offset_is_applied};
use crate::machine::{Machine, PATIENCE};
use crate::quiesce::Quiesced;
use crate::vcpu::{AskVcpuError, Reply, Request};

/// Readings of each vCPU's counter, of which the tightest counts. The host may take our CPU in any of them, but
/// hardly in all.
const SAMPLES: u32 = 16;
/// Milliseconds until a counter is looked at again: what is recorded meanwhile is in doubt when it was set.
const INTERVAL_MS: u64 = 1000;

/// Whether the vCPUs' counters can be other ones than the host's. Takes some milliseconds.
pub(super) fn is_to_be_measured() -> bool {
    offset_is_applied()
}

/// Measures the counter of each vCPU. From now on they are looked at again and again.
pub(super) fn measure(machine: &Machine, quiesced: &mut Quiesced<'_>) -> Result<(), AskVcpuError> {
    let clocks = machine.clocks();
    let mut relations = Vec::with_capacity(clocks.count());
    for vcpu in 0..machine.vcpus() {
        if let Reply::Tsc(sample) = quiesced.ask(vcpu, Request::ReadTsc(SAMPLES), PATIENCE)? {
            relations.push(Relation::from(sample));
        }
    }
    clocks.begin(
        &relations,
        INTERVAL_MS.saturating_mul(machine.tsc_khz().into()),
    );
    Ok(())
}

/// Looks at the counters once more, so that nothing that was recorded before is in doubt.
pub(super) fn check(machine: &Machine, quiesced: &mut Quiesced<'_>) {
    for vcpu in (0..machine.vcpus()).filter(|_| machine.clocks().is_begun()) {
        match quiesced.ask(vcpu, Request::ReadTsc(SAMPLES), PATIENCE) {
            Ok(Reply::Tsc(sample)) => machine.clocks().check(vcpu, sample),
            Ok(_) => {}
            Err(error) => log::debug!("the last times were not checked: {error}"),
        }
    }
}

impl Tracing {
    /// Has the vCPUs' counters looked at, if they are not the host's.
    pub(super) fn check_clocks(&self, machine: &Machine) {
        if machine.clocks().is_begun()
            && let Ok(mut quiesced) = machine.quiesce(PATIENCE)
        {
            check(machine, &mut quiesced);
        }
    }

    /// Has the clock page kept as the sessions need it: by a thread while one of those with that clock
    /// has rings, spinning while one of them is started, with the shortest of their periods.
    pub(super) fn keep_time(&mut self, machine: &Machine) -> Result<(), TracingError> {
        let users = || {
            let live = |session: &&TraceSession| session.live.is_some();
            self.sessions.iter().filter(live)
        };
        let beats = users().filter_map(|session| Some((session.started, session.beat()?)));
        let started = beats.clone().any(|(started, _)| started);
        let of_started = beats.filter(|(is, _)| *is == started).map(|(_, beat)| beat);
        let wanted = of_started.reduce(|one, other| Beat {
            period_ns: one.period_ns.min(other.period_ns),
            cpu: one.cpu.or(other.cpu),
        });
        let kept = self.clock_page.as_ref().map(ClockPage::beat);
        // One that is not started needs no other thread than the one that is there.
        if kept != wanted && (started || wanted.is_none() || kept.is_none()) {
            let goes_on = self.clock_page.take().is_some();
            if let (Some(beat), Some(clock), Some((_, at))) =
                (wanted, self.clock, self.engine.clock_page())
            {
                let (memory, vcpus) = (machine.memory(), machine.cpu_times());
                let beats = Arc::clone(&self.beats);
                let page = ClockPage::start(memory, at, clock, beat, vcpus, beats, goes_on)?;
                self.clock_page = Some(page);
            }
        }
        if let Some(page) = &self.clock_page {
            page.spin(started);
        }
        Ok(())
    }
}
