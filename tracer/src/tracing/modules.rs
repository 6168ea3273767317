//! Functions that come and go while the guest runs: those of its modules, and its init text. What has come is traced
//! by the sessions whose filters select it.

use std::sync::Arc;
use std::time::Duration;

use log::Level;
use terms::addr::Gva;
use terms::function::FunctionId;
use trace::export::uftrace::WaitingModules;

use super::Tracing;
use super::attachment::Attachment;
use super::patience::is_patching;
use super::probes::SetProbes;
use super::remarks::functions_traced;
use super::stops::Stops;
use super::untraced::{Came, Untraced};
use super::window::{WINDOW_PERIOD, put_off};
use crate::engine::Moved;
use crate::guest::Guest;

/// The least time between two tries to trace what has come, while the guest lets none of them be the last; each is twice as long
/// as the one before, up to [`WINDOW_PERIOD`].
const SHORTEST_REST: Duration = Duration::from_millis(40);

/// When the guest was asked for its modules, and what came of it.
#[derive(Debug, Default)]
pub(super) struct Modules {
    last: Option<Duration>,
    /// Modules have their turn in a later look since this one, or since the one after it.
    waiting_since: Option<Duration>,
    /// What is there and could not be traced, as the guest was changing its own text.
    unfinished: Option<Unfinished>,
    /// The pauses in which what has come was traced, or the guest was asked what that is.
    pub looks: Stops,
}

/// What is to be tried again.
#[derive(Debug, Default)]
struct Unfinished {
    /// For probes: each session has its own.
    came: Untraced,
    /// Not before this,
    next: Duration,
    /// which was so long after the last try, or longer.
    rest: Duration,
}

impl Unfinished {
    /// It was seen so, and did not stay so from `begun` to `now`.
    fn put_off(&mut self, begun: Duration, now: Duration) {
        let twice = self.rest.saturating_mul(2);
        self.rest = twice.clamp(SHORTEST_REST, WINDOW_PERIOD);
        self.next = put_off(begun, now, self.rest);
    }
}

impl Modules {
    /// A look began at `now`, after which so many modules have their turn still to come. Returns when one began in
    /// which the modules that are new now were not live; none if there was no such look.
    fn note(&mut self, now: Duration, waiting: usize) -> Option<Duration> {
        let last = self.last.replace(now);
        let before = self.waiting_since.or(last);
        self.waiting_since = before.or(Some(now)).filter(|_| waiting > 0);
        before
    }

    /// Looks; the module whose description is at `announced` is there as well, and none of its functions has run.
    pub fn look(
        &mut self,
        on: &mut Attachment,
        probes: &mut SetProbes,
        guest: &impl Guest,
        announced: Option<Gva>,
    ) {
        let now = (on.shared.host.now)();
        let moved = match on.engine.read_modules(guest.memory(), announced) {
            Ok(moved) => moved,
            Err(error) => {
                log::debug!("{error}");
                return;
            }
        };
        let before = self.note(now, moved.waiting);
        on.note_waiting(moved.waiting as u64);
        for (module, why) in &moved.unread {
            let refused = format!("module {module} cannot be traced: {why}");
            on.remarks.say(Level::Warn, refused);
        }
        if !moved.is_change() && !self.is_time_to_try_again(on, guest, now) {
            return;
        }
        log::debug!("modules: came {:?}, left {:?}", moved.came, moved.left);
        on.patching.is_for_a_look(true);
        self.follow(on, probes, guest, (&moved, before));
        on.patching.is_for_a_look(false);
    }

    /// Whether something is left of an earlier look, and it may be done now.
    fn is_time_to_try_again(&self, on: &Attachment, guest: &impl Guest, now: Duration) -> bool {
        let left = self.unfinished.as_ref();
        left.is_some_and(|left| now >= left.next) && !on.is_seen_to_change_text(guest)
    }

    /// Traces what has come, and what could not be traced before.
    fn follow(
        &mut self,
        on: &mut Attachment,
        probes: &mut SetProbes,
        guest: &impl Guest,
        (moved, before): (&Moved, Option<Duration>),
    ) {
        let begun = (on.shared.host.now)();
        on.look_for_lost_probes();
        on.take_over_image(guest.memory());
        let was_free = !on.is_seen_to_change_text(guest);
        let came = moved.came.iter().map(|module| {
            let is_announced = Some(module) == moved.announced.as_ref();
            Came {
                module: Arc::clone(module),
                since: if is_announced { Some(begun) } else { before },
                may_run: !is_announced,
            }
        });
        let came: Vec<Came> = came.collect();
        let mut left = self.unfinished.take();
        let of_before = left.as_mut().map(|left| std::mem::take(&mut left.came));
        let stops = &mut Stops::default();
        let mut is_done = on.refilter_started(guest, &came, stops);
        let came = of_before
            .unwrap_or_default()
            .with(&came, on.engine.transient());
        is_done &= probes.modules_came(on, guest, &came, stops);
        self.looks = self.looks.and(*stops);
        if is_done {
            return;
        }
        // At first it is tried again as soon as the guest has been seen to change nothing: no pause is needed to see that, and
        // mostly it stays so.
        if let Some(left) = left.as_mut().filter(|_| was_free) {
            left.put_off(begun, (on.shared.host.now)());
        }
        let mut left = left.unwrap_or_default();
        left.came.are(came);
        self.unfinished = Some(left);
    }
}

impl Tracing {
    /// Whether modules can come and go.
    #[must_use]
    pub fn has_modules(&self) -> bool {
        self.attachment.engine.transient().has_modules()
    }

    /// Looks what has come and gone since the last time. Sessions that are started trace what their
    /// filters select among what has come. The guest is paused only for that.
    pub fn look(&mut self, guest: &impl Guest) {
        self.modules
            .look(&mut self.attachment, &mut self.probes, guest, None);
    }
}

impl Attachment {
    /// Whether the guest is changing its own text, as far as its memory says it now: nobody is paused.
    fn is_seen_to_change_text(&self, guest: &impl Guest) -> bool {
        let transient = self.engine.transient();
        transient.changes_text(guest.memory()) == Some(true)
    }

    /// Sessions that are started say how many modules they have not been able to trace yet.
    fn note_waiting(&mut self, modules: u64) {
        let found = self.found();
        for session in self.sessions.started_mut() {
            let waiting = WaitingModules(modules);
            if std::mem::replace(&mut session.waiting_modules, waiting) != waiting {
                session.describe(&self.shared, found);
            }
        }
    }

    /// What has come with these modules is traced by a session, from now on only where it could be called before, which it says; or
    /// is still to be.
    fn note_came(&mut self, index: usize, came: &[Came], is_traced: bool) {
        let (found, now) = (self.found(), (self.shared.host.now)());
        let Ok(session) = self.sessions.at(index) else {
            return;
        };
        let before = std::mem::take(&mut session.untraced);
        let came = before.with(came, self.engine.transient());
        if !is_traced {
            return session.untraced.are(came);
        }
        let selection = session.live.as_ref().and_then(|live| {
            let session = self.engine.sessions().get(live.id).ok()?;
            Some(&session.selection.selected)
        });
        let mut is_late = false;
        for came in came {
            let (module, Some(late)) = (&came.module, came.late(now)) else {
                continue;
            };
            let is_of = |id: &&FunctionId| {
                let function = self.shared.image.function(**id);
                let its = function.and_then(|function| function.module.as_ref());
                its == Some(module) && !self.engine.sites().is_gone(**id)
            };
            let functions = selection.into_iter().flatten().filter(is_of).count();
            if functions > 0 {
                session.late.note(module, functions as u64, late);
                is_late = true;
            }
        }
        if is_late {
            session.describe(&self.shared, found);
        }
    }

    /// Has sessions trace what there is now. Says whether that was done, or the guest was changing its own text: then it is for a
    /// later look.
    fn refilter_started(&mut self, guest: &impl Guest, came: &[Came], stops: &mut Stops) -> bool {
        let mut is_done = true;
        for index in 0..self.sessions.len() {
            let Ok(session) = self.sessions.at(index) else {
                continue;
            };
            let (name, filter) = (session.name.clone(), session.filter.clone());
            // Others trace what there was when they began, or no functions at all.
            let follows = session.started && session.follows_modules;
            let Some(id) = session.started().ok().filter(|_| follows) else {
                continue;
            };
            let selected = filter.select(&self.shared.image, &self.shared.sources);
            let changed = selected
                .map_err(Into::into)
                .and_then(|selection| self.change(guest, index, id, (filter, selection), stops));
            let is_traced = !changed.as_ref().is_err_and(is_patching);
            is_done &= is_traced;
            self.note_came(index, came, is_traced);
            let (level, remark) = match changed {
                Ok(changed) => {
                    let traced = functions_traced(changed.traced);
                    (Level::Info, format!("session {name}: {traced}"))
                }
                Err(error) => (Level::Warn, format!("session {name}: {error}")),
            };
            self.remarks.say(level, remark);
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_module_that_had_to_wait_for_its_turn_was_there_before_the_first_look_that_left_it_out() {
        let start = Duration::from_secs(7);
        let at = |second| start + Duration::from_secs(second);
        let mut looks = Modules::default();
        assert_eq!(looks.note(at(0), 0), None);
        assert_eq!(looks.note(at(1), 0), Some(at(0)));
        // Some of what came after second 1 is left for later, twice.
        assert_eq!(looks.note(at(2), 3), Some(at(1)));
        assert_eq!(looks.note(at(3), 1), Some(at(1)));
        assert_eq!(looks.note(at(4), 0), Some(at(1)));
        assert_eq!(looks.note(at(5), 0), Some(at(4)));
    }

    #[test]
    fn what_the_first_look_leaves_out_was_there_when_it_began() {
        let start = Duration::from_secs(7);
        let mut looks = Modules::default();
        assert_eq!(looks.note(start, 1), None);
        let later = start + Duration::from_secs(1);
        assert_eq!(looks.note(later, 0), Some(start));
        assert_eq!(looks.note(later, 0), Some(later));
    }
}
