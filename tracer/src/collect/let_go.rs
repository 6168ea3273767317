//! For how long vCPUs that wait are waited for, when a session is stopped or ends. What they wait for is the reader: so that
//! is measured by the rounds that the reader makes, and by time only where it comes no further.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const REST: Duration = Duration::from_millis(1);
/// After so many rounds of the reader every vCPU that waited has had room again and again.
const ROUNDS: u64 = 50;
/// Nor are they over before so many rests: a thread that was woken may have to wait for a processor of the host.
const RESTS: u64 = 500;
/// A reader that has done nothing for so many rests, as one whose disk takes nothing, is not waited for any longer.
const STANDING_RESTS: u64 = 5000;

/// What a reader has done so far.
#[derive(Debug, Default)]
pub(super) struct Steps {
    rounds: AtomicU64,
    parts: AtomicU64,
}

impl Steps {
    /// A round is over.
    pub fn round(&self) {
        self.rounds.fetch_add(1, SeqCst);
    }

    /// A part of a round is: something was read, or written.
    pub fn part(&self) {
        self.parts.fetch_add(1, SeqCst);
    }
}

/// One who waits for vCPUs to have been let go.
#[derive(Debug)]
pub(super) struct LetGo<'a> {
    steps: &'a Steps,
    first_round: u64,
    parts: u64,
    rests: u64,
    /// Of them, those since the reader has done something last.
    standing: u64,
}

impl<'a> LetGo<'a> {
    /// From now on.
    pub fn new(steps: &'a Steps) -> Self {
        Self {
            steps,
            first_round: steps.rounds.load(SeqCst),
            parts: steps.parts.load(SeqCst),
            rests: 0,
            standing: 0,
        }
    }

    /// Rests once, by `rest`. Returns whether they are to be waited for any longer.
    pub fn rests(&mut self, rest: impl FnOnce(Duration)) -> bool {
        rest(REST);
        self.rests += 1;
        let parts = self.steps.parts.load(SeqCst);
        self.standing = match parts == self.parts {
            true => self.standing + 1,
            false => 0,
        };
        self.parts = parts;
        let rounds = self.steps.rounds.load(SeqCst) - self.first_round;
        self.standing < STANDING_RESTS && (rounds < ROUNDS || self.rests < RESTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many rests there are when the reader does `work` in each.
    fn rests(work: impl Fn(&Steps, u64)) -> u64 {
        let steps = Steps::default();
        // What was before is nothing to it.
        (0..3 * ROUNDS).for_each(|_| steps.round());
        let mut patience = LetGo::new(&steps);
        let mut rests = 0;
        loop {
            rests += 1;
            assert!(rests <= 3000 * ROUNDS, "it has no end");
            let mut rested = Duration::ZERO;
            let goes_on = patience.rests(|how_long| {
                rested = how_long;
                work(&steps, rests);
            });
            assert_eq!(rested, REST);
            if !goes_on {
                return rests;
            }
        }
    }

    #[test]
    fn a_quick_reader_is_waited_for_a_while_and_a_slow_one_for_its_rounds() {
        let quick = |steps: &Steps, _| {
            steps.part();
            steps.round();
        };
        assert_eq!(rests(quick), RESTS);
        let slow = |steps: &Steps, rest: u64| {
            steps.part();
            if rest.is_multiple_of(3000) {
                steps.round();
            }
        };
        assert_eq!(rests(slow), 3000 * ROUNDS);
    }

    #[test]
    fn a_reader_that_comes_no_further_is_not_waited_for_for_ever() {
        assert_eq!(rests(|_, _| ()), STANDING_RESTS);
        let once = |steps: &Steps, rest| {
            if rest == 4000 {
                steps.part();
            }
        };
        assert_eq!(rests(once), 4000 + STANDING_RESTS);
    }
}
