//! How what rings bring that are apart comes to a sink: one after the other, or side by side.

use super::calls::Graph;
use crate::columns::LentSteps;
use crate::crew::{Crew, on_each};
use crate::event::{KeepsApart, Sink};
use crate::graph::share::Share;

/// How a sink takes what rings bring that are apart.
pub(super) trait Way<S> {
    /// Whether it takes such at all.
    const IS_APART: bool;

    /// The next steps of such rings. All come back, in the same order.
    fn apart(&self, graph: &mut Graph, rings: Vec<LentSteps>, sink: &mut S) -> Vec<LentSteps>;
}

/// Everything comes in the order of time.
pub(super) struct InOrder;

impl<S: Sink> Way<S> for InOrder {
    const IS_APART: bool = false;

    fn apart(&self, graph: &mut Graph, rings: Vec<LentSteps>, sink: &mut S) -> Vec<LentSteps> {
        one_by_one(graph, rings, sink)
    }
}

/// One ring's after the other's.
fn one_by_one(graph: &mut Graph, rings: Vec<LentSteps>, sink: &mut impl Sink) -> Vec<LentSteps> {
    let each = rings.iter();
    each.for_each(|ring| graph.steps(ring.steps(), sink));
    rings
}

/// Each ring's by itself, side by side where this crew is more than one.
pub(super) struct SideBySide<'a>(pub &'a dyn Crew);

impl<S: KeepsApart> Way<S> for SideBySide<'_> {
    const IS_APART: bool = true;

    fn apart(&self, graph: &mut Graph, rings: Vec<LentSteps>, sink: &mut S) -> Vec<LentSteps> {
        let lengths = rings.iter().map(|ring| ring.range.len());
        let (all, longest) = (lengths.clone().sum::<usize>(), lengths.max());
        if !self.0.is_worth_sharing(all - longest.unwrap_or(0)) {
            return one_by_one(graph, rings, sink);
        }
        let lots = match Lot::of_each(graph, rings, all, sink) {
            Ok(lots) => lots,
            Err(rings) => return one_by_one(graph, rings, sink),
        };
        let (lots, failure) = on_each(self.0, lots, Lot::work);
        graph.failure = failure;
        let lots = lots.into_iter();
        lots.map(|lot| lot.take_back(graph, sink)).collect()
    }
}

/// What one thread of the host works on: steps of a ring, with the threads that they are of, and what keeps these.
struct Lot<P> {
    lent: LentSteps,
    share: Share,
    part: P,
}

impl<P: Sink> Lot<P> {
    /// One of each ring, of `all` steps together. The rings themselves where that cannot be.
    fn of_each<S: KeepsApart<Part = P>>(
        graph: &mut Graph,
        rings: Vec<LentSteps>,
        all: usize,
        sink: &mut S,
    ) -> Result<Vec<Self>, Vec<LentSteps>> {
        if !graph.selection.is_everything() {
            return Err(rings);
        }
        let (mut lots, mut rings) = (Vec::with_capacity(rings.len()), rings.into_iter());
        while let Some(lent) = rings.next() {
            let share = graph.threads.lend(lent.steps(), all);
            let part = share.as_ref().and_then(|share| {
                let threads: Vec<_> = share.threads().collect();
                sink.lend(&threads)
            });
            match (share, part) {
                (Some(share), Some(part)) => lots.push(Self { lent, share, part }),
                (share, _) => {
                    if let Some(share) = share {
                        graph.threads.take_back(lent.vcpu, share);
                    }
                    let back = lots.into_iter().map(|lot: Self| lot.take_back(graph, sink));
                    let back: Vec<_> = back.chain([lent]).collect();
                    return Err(back.into_iter().chain(rings).collect());
                }
            }
        }
        Ok(lots)
    }

    fn work(&mut self) {
        self.share.steps(self.lent.steps(), &mut self.part);
    }

    fn take_back<S: KeepsApart<Part = P>>(self, graph: &mut Graph, sink: &mut S) -> LentSteps {
        graph.threads.take_back(self.lent.vcpu, self.share);
        sink.take_back(self.part);
        self.lent
    }
}
