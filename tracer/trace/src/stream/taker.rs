//! Who takes what comes out of the merge, and how much of it.

use crate::columns::Steps;
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

    /// Whether what each of these rings brings in one stretch of time has nothing to do with what the others do: then the
    /// one's comes at once, and after it the other's.
    fn are_apart(&mut self, rings: &[Steps<'_>]) -> bool;
}
