//! Large changes of text in slices: many short pauses instead of a long one.
//!
//! How many sites fit in a slice is learned from those before: it differs by an order of magnitude between
//! hosts. What is bounded is the time in which text is written; stopping the vCPUs comes on top. Sites at which several
//! instructions become one are all written in one pause: in each the guest's memory is searched for threads.

use std::time::Duration;

use crate::engine::Applied;
use crate::filter::Selection;
use crate::patch::functions::{Change, Plan};
use crate::patch::poke::PokeError;
use crate::session::SessionId;
use terms::function::FunctionId;

use super::Tracing;
use super::error::TracingError;
use crate::guest::Guest;

/// Sites of the first slice: at most half a millisecond on every host that we know.
const FIRST: usize = 64;
/// Fewer would be a pause for next to nothing.
const FEWEST: usize = 16;
/// Pauses in which a site with a thread inside gets its turn again.
const ROUNDS: u32 = 8;

/// How large a slice is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slices {
    budget: Option<Duration>,
    sites: usize,
}

/// What a change did, and how often and for how long at most it paused the guest.
#[derive(Debug, Default)]
pub(super) struct Sliced {
    pub applied: Applied,
    pub pauses: u64,
    pub longest: Duration,
}

impl Slices {
    /// Slices that take `budget`; without one everything is one slice.
    pub const fn new(budget: Option<Duration>) -> Self {
        Self {
            budget,
            sites: FIRST,
        }
    }

    fn sites(&self) -> usize {
        self.budget.map_or(usize::MAX, |_| self.sites)
    }

    /// `sites` took `time`: how many fit the budget, less a quarter for luck. Not twice as many as before at
    /// once.
    fn learn(&mut self, sites: usize, time: Duration) {
        let Some(budget) = self.budget.filter(|_| sites >= FEWEST) else {
            return;
        };
        let fitting = (sites as u128) * budget.as_nanos() * 3 / 4 / time.as_nanos().max(1);
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        self.sites = fitting.clamp(FEWEST, self.sites.saturating_mul(2));
    }
}

impl Sliced {
    fn add(&mut self, part: Applied, pause: Duration) {
        self.applied.patched += part.patched;
        self.applied.restored += part.restored;
        self.applied.skipped.extend(part.skipped);
        self.paused(pause);
    }

    fn paused(&mut self, pause: Duration) {
        self.pauses += 1;
        self.longest = self.longest.max(pause);
    }
}

impl Tracing {
    /// Carries out `plan` for session `id`, which traced `before`.
    ///
    /// # Errors
    /// Why a slice failed; those before it were taken back, or it is said that they could not be.
    pub(super) fn apply_slices(
        &mut self,
        guest: &impl Guest,
        id: SessionId,
        plan: Plan,
        before: &Selection,
    ) -> Result<Sliced, TracingError> {
        let mut sliced = Sliced::default();
        match self.each_slice(guest, plan, &mut sliced) {
            Ok(()) => Ok(sliced),
            Err(error) if sliced.pauses == 0 => Err(error),
            Err(error) => {
                if let Err(stuck) = self.take_back(guest, id, before) {
                    log::error!("what was changed before could not be taken back: {stuck}");
                }
                Err(error)
            }
        }
    }

    fn each_slice(
        &mut self,
        guest: &impl Guest,
        mut plan: Plan,
        sliced: &mut Sliced,
    ) -> Result<(), TracingError> {
        if self.slices.budget.is_some() {
            let joins = |change: &Change| self.engine.joins_instructions(change);
            let (joining, others) = plan.changes.into_iter().partition(joins);
            self.join(guest, joining, sliced)?;
            plan.changes = others;
            if plan.changes.is_empty() && sliced.pauses > 0 {
                return Ok(());
            }
        }
        loop {
            let sites = self.slices.sites().min(plan.changes.len());
            let later = plan.changes.split_off(sites);
            let (applied, time) = self.apply_slice(guest, &plan)?;
            self.slices.learn(sites, time);
            sliced.add(applied, guest.last_pause());
            if later.is_empty() {
                return Ok(());
            }
            plan.changes = later;
        }
    }

    /// Makes several instructions one at each of these sites, all in one pause: in each the guest's whole memory is
    /// searched for threads. Sites with a thread inside get their turn in the next one, after the guest has run.
    fn join(
        &mut self,
        guest: &impl Guest,
        changes: Vec<Change>,
        sliced: &mut Sliced,
    ) -> Result<(), TracingError> {
        let mut plan = Plan { changes };
        for left in (0..ROUNDS).rev() {
            if plan.changes.is_empty() {
                break;
            }
            let (mut applied, _) = self.apply_slice(guest, &plan)?;
            let passes = |(_, why): &(FunctionId, PokeError)| left > 0 && why.passes();
            let mut again: Vec<FunctionId> = applied
                .skipped
                .extract_if(.., |one| passes(one))
                .map(|(function, _)| function)
                .collect();
            // The guest can hold up every one of them.
            again.sort_unstable();
            let comes_again = |change: &Change| again.binary_search(&change.poke.function).is_ok();
            plan.changes.retain(comes_again);
            sliced.add(applied, guest.last_pause());
        }
        Ok(())
    }

    /// One pause. Also answers for how long text was written.
    fn apply_slice(
        &mut self,
        guest: &impl Guest,
        plan: &Plan,
    ) -> Result<(Applied, Duration), TracingError> {
        let mut stopped = guest.stop()?;
        let now = self.shared.host.now;
        let since = now();
        let applied = self.engine.apply(&mut stopped, plan);
        let time = now().saturating_sub(since);
        drop(stopped);
        Ok((applied?, time))
    }

    fn take_back(
        &mut self,
        guest: &impl Guest,
        id: SessionId,
        before: &Selection,
    ) -> Result<(), TracingError> {
        let memory = &mut guest.memory().clone();
        let plan = self.engine.plan(memory, id, before)?;
        self.each_slice(guest, plan, &mut Sliced::default())
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
