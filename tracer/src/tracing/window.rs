//! The look at the window between changes. A guest that gives its place to something else, or executes its text with
//! page tables in which it is not, would run into nothing at the next traced function; another kernel in the place of the
//! traced one (kexec) has text of its own. It is noticed,
//! said, and tracing ends: recording stops, our jumps are taken out where they still stand, and nothing is written any
//! more.

use std::time::Duration;

use crate::engine::Foothold;
use crate::engine::FrozenBy;

use super::Tracing;
use super::attachment::Attachment;
use super::beginning::has_ended;
use super::place::is_where_loaded;
use super::stops::Stops;
use crate::guest::{Guest, StopError};
use crate::target::StoppedTarget;

/// Time between two looks that need the vCPUs' registers, and so a pause.
pub const WINDOW_PERIOD: Duration = Duration::from_secs(1);

/// A look that comes to nothing is made again after so many times as long as it took, at least: the guest may have stood still
/// for it, and so has who asked.
const REST_FOR_LOOK: u32 = 4;

/// When a look comes again that has come to nothing, from `begun` to `now`: after `least`, or later if it took long.
pub(super) fn put_off(begun: Duration, now: Duration, least: Duration) -> Duration {
    let took = now.saturating_sub(begun);
    now.saturating_add(least.max(took.saturating_mul(REST_FOR_LOOK)))
}

/// When the window is looked at, and the pauses in which it was.
#[derive(Debug, Default)]
pub(super) struct WindowWatch {
    next: Option<Duration>,
    /// Those so far.
    pub looks: Stops,
}

impl WindowWatch {
    /// Whether it is time for another look; the first one is due a period after the first question.
    fn is_due(&mut self, now: Duration) -> bool {
        let next = *self.next.get_or_insert(now.saturating_add(WINDOW_PERIOD));
        let is_due = now >= next;
        if is_due {
            self.next = Some(now.saturating_add(WINDOW_PERIOD));
        }
        is_due
    }

    /// The look that was due has come to nothing, from `begun` to `now`.
    fn put_off(&mut self, begun: Duration, now: Duration) {
        self.next = Some(put_off(begun, now, WINDOW_PERIOD));
    }
}

impl Tracing {
    /// Looks whether the window is still where it was put, while a session is started. What the guest has cleared is put
    /// back; when the window is lost, tracing ends. Says whether it did so.
    pub fn look_at_window(&mut self, guest: &impl Guest) -> bool {
        let attachment = &mut self.attachment;
        let is_started = attachment.sessions.started().next().is_some();
        let Some(window) = attachment
            .engine
            .foothold()
            .map(Foothold::window)
            .filter(|_| is_started)
        else {
            return false;
        };
        let is_untouched = window.is_untouched(guest.memory());
        let now = attachment.shared.host.now;
        let begun = now();
        let is_due = self.window_watch.is_due(begun);
        if is_untouched && (!is_due || guest.is_held()) {
            return false;
        }
        match attachment.check_foothold(guest, &mut self.window_watch.looks) {
            Ok(Ok(())) => {}
            Ok(Err(lost)) => {
                self.end_tracing(guest, lost);
                return true;
            }
            Err(error) => {
                log::debug!("the window cannot be looked at: {error}");
                self.window_watch.put_off(begun, now());
            }
        }
        false
    }

    /// Ends tracing. A jump that is not where it was written means that this text is not ours any more: then nothing
    /// of it is written.
    pub(super) fn end_tracing(&mut self, guest: &impl Guest, why: FrozenBy) {
        log::error!("tracing has ended, the guest continues: {why}");
        self.stop_recording();
        let started = self.attachment.sessions.started();
        let names: Vec<String> = started.map(|session| session.name.clone()).collect();
        for name in names {
            if let Err(error) = self.stop(guest, &name) {
                log::warn!("session {name}: the guest's text is left as it is: {error}");
            }
            let mut sessions = self.attachment.sessions.iter_mut();
            if let Some(session) = sessions.find(|session| session.name == name) {
                has_ended(session);
            }
        }
        self.attachment.engine.sites_mut().freeze(why);
    }
}

impl Attachment {
    /// One look: a pause, which is one more of `looks`.
    pub(super) fn check_foothold(
        &mut self,
        guest: &impl Guest,
        looks: &mut Stops,
    ) -> Result<Result<(), FrozenBy>, StopError> {
        looks.during(guest, |stopped| {
            let vcpus = StoppedTarget::vcpus(stopped).to_vec();
            let is_in_place = is_where_loaded(guest, &*stopped, &self.engine);
            self.patching.found_in_place(is_in_place);
            self.engine.check_foothold(stopped, &vcpus)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_due_once_in_each_period() {
        let (mut watch, start) = (WindowWatch::default(), Duration::from_secs(7));
        let mut due = |periods: f64| watch.is_due(start + WINDOW_PERIOD.mul_f64(periods));
        let at = [0.0, 0.9, 1.0, 1.1, 1.9, 2.0, 9.5, 9.6, 10.5];
        let expected = [false, false, true, false, false, true, true, false, true];
        assert_eq!(at.map(&mut due), expected);
    }
}
