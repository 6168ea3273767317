//! Rounds that somebody waits for: of the readers of several sessions all together, so that one whose disk takes nothing keeps nobody from what the
//! others have read, and all of them take no longer than one.

use std::time::Duration;

use super::SharedDrain;

/// Between two looks.
const REST: Duration = Duration::from_millis(1);
/// So many looks are taken.
pub(super) const LOOKS: u32 = 5000;

/// A round of who polls.
struct Awaited<'a> {
    drain: &'a SharedDrain,
    /// The last one that had begun when this was asked for.
    begun: u64,
}

impl Awaited<'_> {
    fn was_made(&self) -> bool {
        self.drain.rounds.has_made_one_after(self.begun)
    }

    fn is_waited_for(&self) -> bool {
        !self.was_made() && !self.drain.stands()
    }
}

/// Waits for a whole round of each from now on, by who polls it: that begins the next as soon as one has ended. Whether there was one of each within
/// so many looks, and before what is being written was found to stand. Who asks writes nothing itself: it would be as long away as the disk.
pub(super) fn rounds_of_others(drains: &[&SharedDrain], looks: u32) -> Vec<bool> {
    let awaited = drains.iter().map(|drain| Awaited {
        drain,
        begun: drain.rounds.begun(),
    });
    let awaited: Vec<_> = awaited.collect();
    let rest = drains.first().map(|one| one.ask().time().rings.host().rest);
    for _ in 0..looks {
        if !awaited.iter().any(Awaited::is_waited_for) {
            break;
        }
        rest.iter().for_each(|rest| rest(REST));
    }
    awaited.iter().map(Awaited::was_made).collect()
}
