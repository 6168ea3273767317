//! The time of a run: its zero, the vCPUs' counters, and the clock page while a session needs one.

use std::sync::Arc;

use terms::addr::Gpa;

use super::TracingError;
use super::session::TraceSession;
use super::sessions::TraceSessions;
use super::stops::Stops;
use crate::clock::page::{Beat, Beats, ClockPage};
use crate::clock::{RunClock, VcpuClocks};
use crate::guest::Guest;
use status::{ClockPageStatus, VcpuClocksStatus};

/// What is known of the guest's time, and who keeps it.
#[derive(Debug)]
pub(super) struct Timekeeping {
    /// The host's counter when the guest was about to start: the zero of all times.
    zero: u64,
    /// Known from the first attach on.
    pub clock: Option<RunClock>,
    /// The vCPUs' counters, from the first attach on.
    vcpus: Option<Arc<VcpuClocks>>,
    /// While a session that is timed by it has rings.
    page: Option<Box<dyn ClockPage>>,
    /// It was kept, and whoever keeps it next has to look at the time since.
    is_interrupted: bool,
    beats: Arc<Beats>,
}

impl Timekeeping {
    /// Time begins at this count of the host's counter.
    pub fn new(zero: u64) -> Self {
        Self {
            zero,
            clock: None,
            vcpus: None,
            page: None,
            is_interrupted: false,
            beats: Arc::default(),
        }
    }

    /// Time begins here instead.
    pub const fn set_zero(&mut self, zero: u64) {
        self.zero = zero;
    }

    /// The clock page's beats.
    pub const fn beats(&self) -> &Arc<Beats> {
        &self.beats
    }

    /// Whether the vCPUs' counters are to be measured when tracing begins: asked before the pause, which that
    /// would make longer.
    pub fn is_measured(&self, guest: &impl Guest) -> bool {
        self.clock.is_none() && guest.has_own_clocks()
    }

    /// The clock of the run, which begins with the first attach.
    ///
    /// # Errors
    /// Why the vCPUs' counters could not be measured.
    pub fn begin<G: Guest>(
        &mut self,
        guest: &G,
        stopped: &mut G::Stopped<'_>,
        is_measured: bool,
    ) -> Result<RunClock, TracingError> {
        let clock = match self.clock {
            Some(clock) => clock,
            None => {
                if is_measured {
                    guest.measure_clocks(stopped)?;
                }
                RunClock::new(self.zero, guest.khz())
            }
        };
        self.clock = Some(clock);
        self.vcpus = Some(Arc::clone(guest.clocks()));
        Ok(clock)
    }

    /// Has the clock page kept as the sessions need it, at `at`: by a thread while one of those with that clock
    /// has rings, spinning while one of them is started, with the shortest of their periods.
    ///
    /// # Errors
    /// Why nobody can keep it so, while a session that is timed by it is started: it is kept as it was then.
    pub fn keep_page(
        &mut self,
        guest: &impl Guest,
        at: Option<Gpa>,
        sessions: &TraceSessions,
    ) -> Result<(), TracingError> {
        let live = |session: &&TraceSession| session.live.is_some();
        let users = sessions.iter().filter(live);
        let beats = users.filter_map(|session| Some((session.started, session.beat()?)));
        let started = beats.clone().any(|(started, _)| started);
        let of_started = beats.filter(|(is, _)| *is == started).map(|(_, beat)| beat);
        let wanted = of_started.reduce(|one, other| Beat {
            period_ns: one.period_ns.min(other.period_ns),
            cpu: one.cpu.or(other.cpu),
        });
        self.keep_page_by(guest, at, wanted, started)
    }

    /// Has it kept so; as it was before, where nobody can.
    fn keep_page_by(
        &mut self,
        guest: &impl Guest,
        at: Option<Gpa>,
        wanted: Option<Beat>,
        started: bool,
    ) -> Result<(), TracingError> {
        let kept = self.page.as_ref().map(|page| page.beat());
        let mut changed = Ok(());
        // One that is not started needs no other thread than the one that is there.
        if kept != wanted && (started || wanted.is_none() || kept.is_none()) {
            self.is_interrupted |= self.page.take().is_some();
            self.is_interrupted &= wanted.is_some();
            changed = self.begin_page(guest, at, wanted);
            if changed.is_err()
                && let Err(error) = self.begin_page(guest, at, kept)
            {
                log::error!("times of the clock page stand still from now on: {error}");
            }
        }
        if let Some(page) = &self.page {
            page.spin(started);
        }
        match changed {
            // No one records by it now. Who starts later is told.
            Err(error) if !started => {
                log::warn!("the clock page of a session that is not started is not kept: {error}");
                Ok(())
            }
            changed => changed,
        }
    }

    /// Has it kept so from now on, if it is wanted.
    fn begin_page(
        &mut self,
        guest: &impl Guest,
        at: Option<Gpa>,
        wanted: Option<Beat>,
    ) -> Result<(), TracingError> {
        let (Some(beat), Some(clock), Some(at)) = (wanted, self.clock, at) else {
            return Ok(());
        };
        let beats = Arc::clone(&self.beats);
        let page = guest.keep_clock_page(at, clock, beat, beats, self.is_interrupted)?;
        self.page = Some(page);
        self.is_interrupted = false;
        Ok(())
    }

    /// Nobody keeps the clock page any more.
    pub fn leave_page(&mut self) {
        self.page = None;
        self.is_interrupted = false;
    }

    /// What becomes of the clock page.
    pub fn page_status(&self) -> Option<ClockPageStatus> {
        let page = self.page.as_ref()?;
        let (stalls, longest) = self.beats.stalls();
        let ns = |ticks: u64| self.clock.map_or(0, |clock| clock.duration_ns(ticks));
        Some(ClockPageStatus {
            period_ns: page.beat().period_ns,
            cpu: page.beat().cpu,
            stalls,
            longest_stall_ns: ns(longest),
        })
    }

    /// What is known of the vCPUs' counters.
    pub fn vcpus_status(&self) -> Option<VcpuClocksStatus> {
        let (clocks, clock) = self.vcpus.as_ref().zip(self.clock)?;
        let summary = clocks.summary();
        Some(VcpuClocksStatus {
            bound_ns: clock.duration_ns(summary.bound),
            sets: summary.jumps.sets,
            differ: summary.do_differ,
        })
    }
}

/// Has the vCPUs' counters looked at, if they are not the host's.
pub(super) fn check_clocks(guest: &impl Guest, stops: &mut Stops) {
    if guest.clocks().is_begun() {
        // A guest that does not stop keeps what is known of them.
        let _ = stops.during(guest, |stopped| guest.check_clocks(stopped));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{MockGuest, MockTarget};

    /// Where the next keeper cannot be, the page was once kept by nobody from then on, and times of all sessions stood still.
    #[test]
    fn a_page_that_nobody_can_keep_as_it_is_wanted_is_kept_as_it_was() {
        let mut time = Timekeeping::new(0);
        time.clock = Some(RunClock::new(0, 1_000_000));
        let mut guest = MockGuest::new(MockTarget::new(1, 1 << 20));
        guest.keeps_page = |beat| beat.cpu.is_none();
        let on = |cpu| {
            Some(Beat {
                period_ns: 100,
                cpu,
            })
        };
        // Who starts or stops another session has nothing to do with it.
        time.keep_page_by(&guest, Some(Gpa(0)), on(Some(1)), false)
            .unwrap();
        let keep = |time: &mut Timekeeping, guest: &MockGuest, beat| {
            let kept = time.keep_page_by(guest, Some(Gpa(0)), beat, true);
            let status = time.page_status();
            (
                kept.is_ok(),
                status.map(|status| (status.cpu, status.stalls)),
            )
        };
        // Of the first one that fails nothing stays.
        assert_eq!(keep(&mut time, &guest, on(Some(1))), (false, None));
        assert_eq!(keep(&mut time, &guest, on(None)), (true, Some((None, 0))));
        assert_eq!(
            keep(&mut time, &guest, on(Some(1))),
            (false, Some((None, 1)))
        );
        guest.keeps_page = |_| false;
        assert_eq!(keep(&mut time, &guest, on(Some(1))), (false, None));
        // Who keeps it later looks at the time since.
        guest.keeps_page = |_| true;
        assert_eq!(
            keep(&mut time, &guest, on(Some(1))),
            (true, Some((Some(1), 2)))
        );
        // It was not wanted any more.
        assert_eq!(keep(&mut time, &guest, None), (true, None));
        assert_eq!(keep(&mut time, &guest, on(None)), (true, Some((None, 2))));
    }
}
