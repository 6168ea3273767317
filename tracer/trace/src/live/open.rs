//! Calls that have not ended, of functions that somebody waits for to take long.

use std::collections::HashMap;
use std::mem;

use crate::event::{Event, EventKind};

/// Threads whose open calls are kept. A guest can have as many as it likes.
const THREADS_MAX: usize = 4096;
/// Open calls of one thread that are kept.
const DEPTH_MAX: usize = 1024;

/// One of them.
#[derive(Debug, Clone)]
struct Open {
    entry: Event,
    /// Whether it was told.
    is_told: bool,
}

/// Those that are open.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    /// The thread of the last event, and its own. Most events are of the same thread as the one before.
    last: (u32, Vec<Open>),
    /// Those of other threads that have any.
    others: HashMap<u32, Vec<Open>>,
}

impl OpenCalls {
    /// Follows what happens; `is_it` when it is about a function that is waited for. Says whether this is the end of a
    /// call that was told while it was open.
    pub fn follow(&mut self, event: &Event, is_it: impl FnOnce() -> bool) -> bool {
        match event.kind {
            EventKind::Entry(_) => {
                self.end_of(event);
                if is_it() {
                    self.enter(event);
                }
                false
            }
            EventKind::Exit { .. } => self.end_of(event),
            // Their ends may be what is missing.
            EventKind::Lost(_) => {
                self.last.1.clear();
                self.others.clear();
                false
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => false,
        }
    }

    /// Those of this thread.
    fn of(&mut self, thread: u32) -> &mut Vec<Open> {
        if self.last.0 != thread {
            let open = self.others.remove(&thread).unwrap_or_default();
            let (before, open) = mem::replace(&mut self.last, (thread, open));
            if !open.is_empty() {
                self.others.insert(before, open);
            }
        }
        &mut self.last.1
    }

    fn enter(&mut self, event: &Event) {
        self.of(event.thread);
        let (is_full, open) = (self.others.len() >= THREADS_MAX, &mut self.last.1);
        if open.is_empty() && is_full {
            return;
        }
        if open.len() < DEPTH_MAX {
            open.push(Open {
                entry: event.clone(),
                is_told: false,
            });
        }
    }

    /// What lies as deep as this, or deeper, is over. Says whether the call at this depth was told.
    fn end_of(&mut self, event: &Event) -> bool {
        let open = self.of(event.thread);
        let mut was_told = false;
        while let Some(last) = open.pop_if(|last| last.entry.depth >= event.depth) {
            was_told = last.entry.depth == event.depth && last.is_told;
        }
        was_told
    }

    /// The entry of one that has not been told and is open for longer than this; it counts as told from now on.
    pub fn longer(&mut self, now_ns: u64, longer_ns: u64) -> Option<Event> {
        let all = self.others.values_mut().chain([&mut self.last.1]).flatten();
        let is_long =
            |one: &&mut Open| !one.is_told && now_ns.saturating_sub(one.entry.time_ns) > longer_ns;
        let found = all.filter(is_long).min_by_key(|one| one.entry.time_ns)?;
        found.is_told = true;
        Some(found.entry.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, event, exit};

    /// One that knows these calls of thread 3: when they were entered, and how deep.
    fn with(entered: &[(u64, u32)]) -> OpenCalls {
        let mut open = OpenCalls::default();
        for (time_ns, depth) in entered {
            let told = open.follow(&event(*time_ns, 0, 3, *depth, entry(1)), || true);
            assert!(!told);
        }
        open
    }

    /// When those were entered that are told as too long, in their order.
    fn told(open: &mut OpenCalls, now_ns: u64, longer_ns: u64) -> Vec<u64> {
        // If each were told again, there were no end.
        std::iter::from_fn(|| open.longer(now_ns, longer_ns))
            .take(9)
            .map(|entry| entry.time_ns)
            .collect()
    }

    #[test]
    fn what_is_open_for_longer_is_told_once_the_oldest_first() {
        let mut open = with(&[(100, 0), (150, 1), (190, 2)]);
        assert!(told(&mut open, 200, 100).is_empty(), "not longer yet");
        assert_eq!(told(&mut open, 201, 100), [100]);
        assert_eq!(told(&mut open, 260, 100), [150]);
        assert_eq!(told(&mut open, 1000, 100), [190]);
        assert!(told(&mut open, 1000, 0).is_empty());
    }

    #[test]
    fn the_end_of_a_call_says_whether_that_call_was_told() {
        let mut open = with(&[(100, 0), (150, 1)]);
        assert_eq!(told(&mut open, 220, 100), [100]);
        let mut ends = |depth| open.follow(&event(230, 0, 3, depth, exit(1)), || true);
        assert!(!ends(1), "the inner one was not");
        assert!(ends(0));
        assert!(!ends(0), "it is gone");
    }

    /// Ends are missing where calls were unwound, or are of functions that were switched off.
    #[test]
    fn a_call_as_deep_as_another_says_that_it_and_all_in_it_are_over() {
        let mut open = with(&[(100, 0), (110, 1), (120, 2)]);
        // Of a function that nobody waits for.
        open.follow(&event(130, 0, 3, 1, entry(2)), || false);
        assert_eq!(told(&mut open, 1000, 0), [100]);
        let mut open = with(&[(100, 0), (110, 1)]);
        assert_eq!(told(&mut open, 1000, 0), [100, 110]);
        let is_told = open.follow(&event(1010, 0, 3, 0, exit(1)), || true);
        assert!(is_told, "the one that has ended, whatever was in it");
        let mut open = with(&[(100, 1)]);
        assert_eq!(told(&mut open, 1000, 0), [100]);
        let is_told = open.follow(&event(1010, 0, 3, 0, exit(1)), || true);
        assert!(!is_told, "another has ended");
        assert!(told(&mut open, 5000, 0).is_empty());
    }

    #[test]
    fn threads_have_calls_of_their_own_and_a_loss_ends_them_all() {
        let mut open = with(&[(100, 0)]);
        open.follow(&event(110, 0, 4, 0, entry(1)), || true);
        assert!(!open.follow(&event(120, 0, 4, 0, exit(1)), || true));
        assert_eq!(told(&mut open, 1000, 0), [100]);
        open.follow(&event(1010, 0, 4, 0, entry(1)), || true);
        open.follow(&event(1015, 0, 5, 0, entry(1)), || true);
        open.follow(&event(1020, 0, 6, 0, EventKind::Lost(1)), || true);
        assert!(told(&mut open, 5000, 0).is_empty());
    }

    #[test]
    fn a_guest_with_threads_and_calls_without_end_is_bounded() {
        let deep: Vec<_> = (0..2 * u32::try_from(DEPTH_MAX).unwrap())
            .map(|depth| (100, depth))
            .collect();
        let mut open = with(&deep);
        assert_eq!(open.of(3).len(), DEPTH_MAX);
        let most = u32::try_from(THREADS_MAX).unwrap();
        for thread in 0..2 * most {
            open.follow(&event(100, 0, thread, 0, entry(1)), || true);
        }
        assert_eq!(open.others.len(), THREADS_MAX);
        assert!(!open.of(3).is_empty(), "those of before stay");
        assert!(open.of(most).is_empty(), "no more come");
    }
}
