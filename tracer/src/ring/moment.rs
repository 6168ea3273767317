//! When a ring was looked at, by the host's clock, and how the clock in its records relates to that.

use crate::record::TIME_BITS;

/// So many ticks pass until the low bits in a record are the same again.
pub const ROUND: u64 = 1 << TIME_BITS;

/// The clock at a look. All times are ticks of the host's clock; what records hold are low bits of the
/// clock of whoever writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// The time of the look.
    pub now: u64,
    /// What the clock in the records is ahead.
    pub offset: u64,
    /// How far that may be from the truth, either way.
    pub bound: u64,
}

impl Moment {
    /// A look at records that are timed by the host's clock.
    #[must_use]
    pub const fn exact(now: u64) -> Self {
        Self {
            now,
            offset: 0,
            bound: 0,
        }
    }

    /// The latest time that a record before this look can have, as far as the offset is known.
    #[must_use]
    pub const fn latest(self) -> u64 {
        self.now.saturating_add(self.bound)
    }

    /// The time of a record before this look whose low bits are `low`: the latest that it can be. None when that
    /// would be before the host's clock began.
    #[must_use]
    pub const fn unfold(self, low: u64) -> Option<u64> {
        let back = self.latest().wrapping_add(self.offset).wrapping_sub(low) & (ROUND - 1);
        self.latest().checked_sub(back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unfolds_every_time_within_a_round(
            now in ROUND..u64::MAX / 2, back in 0..ROUND, offset in any::<u64>(), bound in 0..ROUND / 2,
        ) {
            let at = Moment { now, offset, bound };
            let time = now + bound - back;
            prop_assert_eq!(at.unfold(time.wrapping_add(offset) & (ROUND - 1)), Some(time));
        }

        /// The offset is off by as much as its bound says: each record is off by that, and no more.
        #[test]
        fn an_offset_within_its_bound_moves_all_times_alike(
            now in ROUND..u64::MAX / 2, back in 0..ROUND / 2, offset in any::<u64>(), bound in 0..ROUND / 8,
            part in 0.0..1.0f64, is_early in any::<bool>(),
        ) {
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss,
                reason = "any part of the bound will do")]
            let error = (bound as f64 * part) as u64;
            let truth = if is_early { offset.wrapping_add(error) } else { offset.wrapping_sub(error) };
            let low = (now - back).wrapping_add(truth) & (ROUND - 1);
            let found = Moment { now, offset, bound }.unfold(low);
            let expected = if is_early { now - back + error } else { now - back - error };
            prop_assert_eq!(found, Some(expected));
        }
    }

    #[test]
    fn a_time_before_the_clock_began_is_none() {
        assert_eq!(Moment::exact(5).unfold(5), Some(5));
        assert_eq!(Moment::exact(5).unfold(6), None);
    }
}
