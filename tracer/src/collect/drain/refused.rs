//! What rings have refused, and when, for who copies them later: it has no place among their slots.

use std::collections::VecDeque;

/// Times of a ring that are kept; what is older is told as refused by the oldest of them.
const KEPT_MAX: usize = 1 << 10;

/// So many records were refused by a time, after that of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefusedBy {
    /// By the host's counter.
    pub by: u64,
    /// How many.
    pub count: u64,
}

/// All that one ring has refused, as far as somebody has looked, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Refused {
    known: VecDeque<RefusedBy>,
    /// How many are known.
    all: u64,
}

impl Refused {
    /// There are so many by then.
    pub fn note(&mut self, all: u64, by: u64) {
        let count = all.saturating_sub(self.all);
        if count == 0 {
            return;
        }
        self.all = all;
        // Clocks of which this may be one or the other can differ a little.
        let by = self.known.back().map_or(by, |last| by.max(last.by));
        self.known.push_back(RefusedBy { by, count });
        if self.known.len() > KEPT_MAX
            && let Some(oldest) = self.known.pop_front()
            && let Some(next) = self.known.front_mut()
        {
            next.count = next.count.saturating_add(oldest.count);
        }
    }

    /// Those that are known.
    pub fn known(&self) -> VecDeque<RefusedBy> {
        self.known.clone()
    }
}

/// What the rings of a session have refused.
#[derive(Debug, Default)]
pub(super) struct AllRefused {
    /// Each ring of calls.
    pub calls: Vec<Refused>,
    /// Each ring of events.
    pub events: Vec<Refused>,
}

impl AllRefused {
    /// There are so many by then, of each.
    pub fn note(&mut self, calls: &[u64], events: &[u64], by: u64) {
        note_each(&mut self.calls, calls, by);
        note_each(&mut self.events, events, by);
    }
}

fn note_each(rings: &mut Vec<Refused>, all: &[u64], by: u64) {
    if rings.len() < all.len() {
        rings.resize_with(all.len(), Refused::default);
    }
    for (ring, all) in rings.iter_mut().zip(all) {
        ring.note(*all, by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_old_to_be_kept_is_told_with_the_oldest_that_is() {
        let mut refused = Refused::default();
        let most = KEPT_MAX as u64;
        for one in 1..=most + 2 {
            refused.note(3 * one, one);
            refused.note(3 * one, one + 1);
        }
        let known = refused.known();
        assert_eq!(known.len(), KEPT_MAX);
        assert_eq!(known[0], RefusedBy { by: 3, count: 9 });
        assert_eq!(known[1], RefusedBy { by: 4, count: 3 });
        let all: u64 = known.iter().map(|one| one.count).sum();
        assert_eq!(all, 3 * (most + 2));
    }
}
