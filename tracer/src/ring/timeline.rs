//! From the low bits of the clock in a record to the whole time.
//!
//! The reader looks at the clock each time it looks at a ring's head. Every record before that head
//! was timed before that look, so with less than one round of the low bits between two looks the
//! missing high bits follow. [`Timeline`] keeps those looks for records that are read later, when
//! a flight recorder is dumped.

use std::collections::VecDeque;

use super::geometry::Position;
use crate::record::TIME_BITS;

const ROUND: u64 = 1 << TIME_BITS;

/// The latest time not after `not_after` whose low bits are `low`.
#[must_use]
pub const fn unfold(low: u64, not_after: u64) -> u64 {
    not_after.saturating_sub(not_after.wrapping_sub(low) & (ROUND - 1))
}

/// Looks at the head of one ring, oldest first.
#[derive(Debug, Default)]
pub struct Timeline {
    looks: VecDeque<(Position, u64)>,
    gaps: u64,
    last_look: Option<u64>,
}

impl Timeline {
    /// The head was at `head` and then the clock at `now`; what lies before `keep_from` will not be
    /// asked for any more.
    pub fn look(&mut self, head: Position, now: u64, keep_from: Position) {
        if self
            .last_look
            .is_some_and(|last| now.saturating_sub(last) >= ROUND)
        {
            self.gaps += 1;
        }
        self.last_look = Some(now);
        let newest = self.looks.back().map(|(position, _)| *position);
        // Nothing was written since: the earlier look says more about the records before it.
        if newest.is_none_or(|newest| newest < head) {
            if self.is_close_to_last_but_one(now) {
                self.looks.pop_back();
            }
            self.looks.push_back((head, now));
        }
        while self
            .looks
            .front()
            .is_some_and(|(position, _)| *position <= keep_from)
        {
            self.looks.pop_front();
        }
    }

    /// Whether the newest look can be dropped for one at `now`: its records are then still timed
    /// within a fraction of a round.
    fn is_close_to_last_but_one(&self, now: u64) -> bool {
        let before = self
            .looks
            .len()
            .checked_sub(2)
            .and_then(|index| self.looks.get(index));
        before.is_some_and(|(_, time)| now.saturating_sub(*time) < ROUND / 8)
    }

    /// The whole time of the record at `position` whose low bits are `low`; `None` after the last
    /// look.
    #[must_use]
    pub fn time(&self, position: Position, low: u64) -> Option<u64> {
        let next = self.looks.partition_point(|(head, _)| *head <= position);
        self.looks.get(next).map(|(_, now)| unfold(low, *now))
    }

    /// How often two looks were more than a round of the low bits apart: records from such a gap
    /// may be timed whole rounds too late.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unfolds_every_time_within_a_round(not_after in ROUND..u64::MAX, back in 0..ROUND) {
            let time = not_after - back;
            prop_assert_eq!(unfold(time & (ROUND - 1), not_after), time);
        }
    }

    #[test]
    fn takes_the_first_look_after_the_position() {
        let mut timeline = Timeline::default();
        timeline.look(Position(10), 1000, Position(0));
        timeline.look(Position(10), ROUND + 500, Position(0));
        timeline.look(Position(20), ROUND + 900, Position(0));
        assert_eq!(timeline.time(Position(9), 990), Some(990));
        assert_eq!(timeline.time(Position(10), 800), Some(ROUND + 800));
        assert_eq!(timeline.time(Position(20), 0), None);
        assert_eq!(timeline.gaps(), 0);
    }

    #[test]
    fn keeps_few_looks_however_often_it_looks() {
        let mut timeline = Timeline::default();
        for step in 0..10_000 {
            timeline.look(Position(step + 1), step * (ROUND / 1000), Position(0));
        }
        assert!(
            timeline.looks.len() < 200,
            "{} looks kept",
            timeline.looks.len()
        );
        for step in 0..10_000 {
            let time = step * (ROUND / 1000);
            assert_eq!(
                timeline.time(Position(step), time & (ROUND - 1)),
                Some(time)
            );
        }
    }

    #[test]
    fn counts_looks_that_came_too_late() {
        let mut timeline = Timeline::default();
        timeline.look(Position(1), 0, Position(0));
        timeline.look(Position(2), ROUND, Position(0));
        assert_eq!(timeline.gaps(), 1);
    }
}
