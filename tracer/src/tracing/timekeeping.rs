//! Which sessions the clock page is kept for, and how; and when the vCPUs' counters are looked at.

use std::sync::Arc;

use super::session::TraceSession;
use super::{Tracing, TracingError};
use crate::clock::page::Beat;
use crate::guest::Guest;

impl Tracing {
    /// Has the vCPUs' counters looked at, if they are not the host's.
    pub(super) fn check_clocks(&self, guest: &impl Guest) {
        if guest.clocks().is_begun()
            && let Ok(mut stopped) = guest.stop()
        {
            guest.check_clocks(&mut stopped);
        }
    }

    /// Has the clock page kept as the sessions need it: by a thread while one of those with that clock
    /// has rings, spinning while one of them is started, with the shortest of their periods.
    pub(super) fn keep_time(&mut self, guest: &impl Guest) -> Result<(), TracingError> {
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
        let kept = self.clock_page.as_ref().map(|page| page.beat());
        // One that is not started needs no other thread than the one that is there.
        if kept != wanted && (started || wanted.is_none() || kept.is_none()) {
            let continues = self.clock_page.take().is_some();
            if let (Some(beat), Some(clock), Some((_, at))) =
                (wanted, self.clock, self.engine.clock_page())
            {
                let beats = Arc::clone(&self.beats);
                let page = guest.keep_clock_page(at, clock, beat, beats, continues)?;
                self.clock_page = Some(page);
            }
        }
        if let Some(page) = &self.clock_page {
            page.spin(started);
        }
        Ok(())
    }
}
