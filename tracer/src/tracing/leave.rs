//! Leaving a guest that goes on without us.

use std::sync::Arc;
use std::time::Duration;

use super::attachment::Attachment;
use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::clock::HostClock;
use crate::engine::{Foothold, FrozenBy, Inside, Leaving};
use crate::guest::Guest;
use crate::points::events::Callback;
use crate::points::locks::{self, LockPrefixes};

/// How often it is looked whether the guest has left the stubs, each look through all of its memory.
const LOOKS: u32 = 7;
/// The first rest between two looks. Each is twice as long as the one before, 1.3 s in all.
const REST: Duration = Duration::from_millis(20);
/// A rest is at least as many times as long as the look before, in which the guest was held: a stack that has no task any more goes
/// when the guest comes to it, and a slow one on a busy host has hardly begun to run after 20 ms.
const REST_FOR_LOOK: u32 = 2;
/// But no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(2);

impl Tracing {
    /// Stops every session, and takes the window out of the guest when nothing in it leads there any more. Returns what
    /// does: then the window is still there, and has to stay.
    ///
    /// Where the kernel does not run any more (`is_replaced`), and where it has cleared the window's page-table entries, nothing
    /// can lead there: then nothing is given back or looked for.
    ///
    /// # Errors
    /// A [`TracingError`] when text could not be given back, or the guest's memory not be looked through.
    pub fn leave(&mut self, guest: &impl Guest, is_replaced: bool) -> Result<Inside, TracingError> {
        let engine = &self.attachment.engine;
        let is_frozen = engine.sites().frozen().is_some();
        if is_replaced && !is_frozen {
            self.end_tracing(guest, FrozenBy::Replaced);
        }
        let engine = &mut self.attachment.engine;
        let window = engine.foothold().map(Foothold::window);
        let is_cleared = window.is_some_and(|window| !window.is_untouched(guest.memory()));
        if is_replaced || (is_frozen && is_cleared) {
            return Ok(engine.leave(&mut guest.stop()?, Leaving::Replaced)?);
        }
        for name in take_up_again(&mut self.attachment)? {
            self.stop(guest, &name)?;
        }
        lead_back(self, guest)?;
        let host = self.attachment.shared.host;
        let engine = &mut self.attachment.engine;
        until_nobody(host, |leaving| {
            Ok(engine.leave(&mut guest.stop()?, leaving)?)
        })
    }
}

/// What somebody has had the guest do otherwise is as it was built: dynamic functions, lock prefixes, and who is called at its
/// events.
fn lead_back(tracing: &mut Tracing, guest: &impl Guest) -> Result<(), TracingError> {
    let image = Arc::clone(&tracing.attachment.shared.image);
    let engine = &tracing.attachment.engine;
    if engine.sites().frozen().is_some() {
        return Ok(());
    }
    let events = engine.points().events();
    let called = image.events().filter_map(|(event, _)| {
        let called = events.called(event).iter().map(|(callback, _)| *callback);
        let of_guest = called.filter(|callback| matches!(callback, Callback::Guest(_)));
        let of_guest: Vec<Callback> = of_guest.collect();
        (!of_guest.is_empty()).then_some((event, of_guest))
    });
    let called: Vec<_> = called.collect();
    let is_unlocked = locks::now(&image, engine.sites()) == LockPrefixes::Off;
    if !called.is_empty() {
        let stops = &mut Stops::default();
        let attachment = &mut tracing.attachment;
        attachment.switch_events(guest, &called, false, stops)?;
    }
    if is_unlocked {
        tracing.switch_locks(guest, LockPrefixes::On)?;
    }
    if !image.dynamic.is_empty() {
        let functions = image.dynamic.iter().map(|function| (&*function.name, None));
        tracing.retarget(guest, functions)?;
    }
    Ok(())
}

/// The sessions that have text of the guest: those that are started, and those that are not since a change failed of which
/// not all was taken back. Those are, too, from now on; not where patching is frozen, which has ended them.
fn take_up_again(on: &mut Attachment) -> Result<Vec<String>, TracingError> {
    let are_taken_up = on.engine.sites().frozen().is_none();
    for index in (0..on.sessions.len()).filter(|_| are_taken_up) {
        on.take_up(index)?;
    }
    let started = on.sessions.started();
    Ok(started.map(|session| session.name.clone()).collect())
}

/// Looks, a few times, until nothing in the guest leads to the window. Returns what the last look has found.
pub(super) fn until_nobody(
    host: HostClock,
    mut look: impl FnMut(Leaving) -> Result<Inside, TracingError>,
) -> Result<Inside, TracingError> {
    let mut rest = REST;
    for _ in 1..LOOKS {
        let begun = (host.now)();
        let inside = look(Leaving::Trying)?;
        if inside.is_nobody() {
            return Ok(inside);
        }
        let took = (host.now)().saturating_sub(begun);
        (host.rest)(rest.max((took * REST_FOR_LOOK).min(LONGEST_REST)));
        rest *= 2;
    }
    look(Leaving::LastTry)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    thread_local! {
        static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static RESTS: RefCell<Vec<u128>> = const { RefCell::new(Vec::new()) };
    }

    const HOST: HostClock = HostClock {
        counter: || 0,
        now: || NOW.get(),
        rest: |rest| RESTS.with_borrow_mut(|all| all.push(rest.as_millis())),
    };

    /// It was once 20 ms, however long the guest had been held.
    #[test]
    fn a_guest_has_more_time_than_it_was_held_until_it_is_looked_again() {
        let held = [5, 300, 1, 90_000, 0, 0, 0];
        let mut looks = held.into_iter();
        let mut last = None;
        let found = until_nobody(HOST, |leaving| {
            let held = Duration::from_millis(looks.next().unwrap());
            NOW.set(NOW.get() + held);
            last = Some(leaving);
            Ok(Inside {
                words: 1,
                ..Inside::NOBODY
            })
        });
        assert_eq!(found.unwrap().words, 1);
        assert_eq!((looks.next(), last), (None, Some(Leaving::LastTry)));
        assert_eq!(RESTS.take(), [20, 600, 80, 2000, 320, 640]);
        let mut looks = 0;
        let found = until_nobody(HOST, |_| {
            looks += 1;
            Ok(Inside::NOBODY)
        });
        assert!(found.unwrap().is_nobody());
        assert_eq!((looks, RESTS.take().len()), (1, 0));
    }
}
