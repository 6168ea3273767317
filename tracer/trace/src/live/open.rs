//! Calls that have not ended, of functions that somebody waits for to take long.

use std::collections::HashMap;

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
    by_thread: HashMap<u32, Vec<Open>>,
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
                self.by_thread.clear();
                false
            }
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => false,
        }
    }

    fn enter(&mut self, event: &Event) {
        let is_known = self.by_thread.contains_key(&event.thread);
        if !is_known && self.by_thread.len() >= THREADS_MAX {
            return;
        }
        let open = self.by_thread.entry(event.thread).or_default();
        if open.len() < DEPTH_MAX {
            open.push(Open {
                entry: event.clone(),
                is_told: false,
            });
        }
    }

    /// What lies as deep as this, or deeper, is over. Says whether the call at this depth was told.
    fn end_of(&mut self, event: &Event) -> bool {
        let Some(open) = self.by_thread.get_mut(&event.thread) else {
            return false;
        };
        let mut was_told = false;
        while let Some(last) = open.pop_if(|last| last.entry.depth >= event.depth) {
            was_told = last.entry.depth == event.depth && last.is_told;
        }
        if open.is_empty() {
            self.by_thread.remove(&event.thread);
        }
        was_told
    }

    /// The entry of one that has not been told and is open for longer than this; it counts as told from now on.
    pub fn longer(&mut self, now_ns: u64, longer_ns: u64) -> Option<Event> {
        let all = self.by_thread.values_mut().flatten();
        let is_long =
            |one: &&mut Open| !one.is_told && now_ns.saturating_sub(one.entry.time_ns) > longer_ns;
        let found = all.filter(is_long).min_by_key(|one| one.entry.time_ns)?;
        found.is_told = true;
        Some(found.entry.clone())
    }
}
