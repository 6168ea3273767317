//! Who takes what comes out of the merge, and how much of it.

use crate::columns::{LentSteps, Steps};
use crate::event::Timed;

/// What of that which waits is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// What is certain of its place, in the middle of a round.
    Certain,
    /// The same when a round is over, and what waits in vain for others.
    Round,
    /// Everything: no ring brings any more.
    All,
}

/// Where records go to in their order.
pub trait Taker {
    /// The next one, of this ring.
    fn one(&mut self, ring: usize, timed: Timed);

    /// The next ones: no other ring brings anything of their times, or what they bring is apart.
    fn steps(&mut self, steps: Steps<'_>);

    /// Whether it can say that rings are apart.
    fn knows_apart(&self) -> bool;

    /// Whether what each of these rings brings in one stretch of time has nothing to do with what the others do: then all of
    /// it comes next, by [`Self::apart`].
    fn are_apart(&mut self, rings: &[Steps<'_>]) -> bool;

    /// The next steps of rings that are apart, each ring's in its order. All come back, in the same order.
    fn apart(&mut self, rings: Vec<LentSteps>) -> Vec<LentSteps>;
}
