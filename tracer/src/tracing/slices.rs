//! How large a slice of a change is: many short pauses instead of a long one.
//!
//! How many steps fit in a slice is learned from those before: it differs by an order of magnitude between
//! hosts. What is bounded is the time in which text is written; stopping the vCPUs comes on top.

use std::time::Duration;

/// Sites of the first slice: at most half a millisecond on every host that we know.
const FIRST: usize = 64;
/// Fewer would be a pause for next to nothing.
const FEWEST: usize = 16;
/// How large a slice is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slices {
    budget: Option<Duration>,
    sites: usize,
}

impl Slices {
    /// Slices that take `budget`; without one everything is one slice.
    pub const fn new(budget: Option<Duration>) -> Self {
        Self {
            budget,
            sites: FIRST,
        }
    }

    /// Whether changes are cut at all.
    pub const fn are_wanted(&self) -> bool {
        self.budget.is_some()
    }

    /// How many steps the next one has.
    pub fn sites(&self) -> usize {
        self.budget.map_or(usize::MAX, |_| self.sites)
    }

    /// `sites` took `time`: how many fit the budget, less a quarter for luck. Not twice as many as before at
    /// once.
    pub fn learn(&mut self, sites: usize, time: Duration) {
        let Some(budget) = self.budget.filter(|_| sites >= FEWEST) else {
            return;
        };
        let fitting = (sites as u128) * budget.as_nanos() * 3 / 4 / time.as_nanos().max(1);
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        self.sites = fitting.clamp(FEWEST, self.sites.saturating_mul(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_grow_and_shrink_towards_their_budget() {
        let millisecond = Duration::from_millis(1);
        let mut slices = Slices::new(Some(millisecond));
        let per_site = Duration::from_nanos(100);
        for _ in 0..20 {
            let sites = slices.sites();
            slices.learn(sites, per_site * u32::try_from(sites).unwrap());
        }
        assert_eq!(slices.sites(), 7500);
        slices.learn(7500, 75 * millisecond);
        assert_eq!(slices.sites(), 75);
        slices.learn(75, Duration::from_secs(1));
        assert_eq!(slices.sites(), FEWEST);
        // So few say nothing about many.
        slices.learn(1, Duration::from_nanos(1));
        assert_eq!(slices.sites(), FEWEST);
        assert_eq!(Slices::new(None).sites(), usize::MAX);
    }
}
