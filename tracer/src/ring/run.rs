//! Many records at once: what a ring has nearly always, consecutive slots that are all written, in one lap, and timed by
//! one look. What is anything else is taken record by record ([`reader`](super::reader)), so nothing is decided here.

use terms::function::FunctionId;

use super::geometry::Position;
use super::moment::{Moment, ROUND};
use crate::record::{Beside, Detail, Format, MARK_MASK, Record, STEPS};
use trace::event::SlotStep;

/// Slots taken at a time.
pub(crate) const BATCH: usize = 512;

/// Records of consecutive slots, none of them late or in doubt: a column for each thing that they say.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// The position of the first.
    pub first: Position,
    /// Times, as [`Delivered`](super::reader::Delivered) has them.
    pub ticks: &'a [u64],
    /// Functions.
    pub functions: &'a [FunctionId],
    /// What the session says beside.
    pub beside: BesideAll<'a>,
}

/// What records say beside time and function: a column, if they say anything.
#[derive(Debug, Clone, Copy)]
pub enum BesideAll<'a> {
    /// Nothing.
    Nothing,
    /// Steps and stack slots of a graph.
    Steps(&'a [SlotStep]),
    /// Return addresses.
    Callers(&'a [u64]),
}

impl BesideAll<'_> {
    /// What the record of this number says.
    #[must_use]
    pub fn of(self, index: usize) -> Beside {
        match self {
            Self::Nothing => Beside::Nothing,
            Self::Steps(steps) => steps
                .get(index)
                .map_or(Beside::Nothing, |at| Beside::Step(at.step(), at.slot())),
            Self::Callers(callers) => callers
                .get(index)
                .map_or(Beside::Nothing, |caller| Beside::Caller(*caller)),
        }
    }
}

/// What every record of a run has to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub format: Format,
    /// The lap mark.
    pub mark: u64,
    pub spill: u64,
    /// Functions with this number or more do not exist.
    pub functions: u32,
    /// Of the look that times all of them.
    pub moment: Moment,
    /// The time of the record before.
    pub last: u64,
    pub is_timed: bool,
}

/// Room for a run.
#[derive(Debug)]
pub(super) struct Columns {
    ticks: [u64; BATCH],
    functions: [FunctionId; BATCH],
    graph: [SlotStep; BATCH],
    callers: [u64; BATCH],
}

impl Columns {
    pub const fn new() -> Self {
        Self {
            ticks: [0; BATCH],
            functions: [FunctionId(0); BATCH],
            graph: [SlotStep::new(0, 0); BATCH],
            callers: [0; BATCH],
        }
    }

    /// The records in these words, if all of them are as expected. Loops without a way out, each over one thing.
    pub fn decode(
        &mut self,
        first: Position,
        words: &[u64],
        details: &[u64],
        expected: &Expected,
    ) -> Option<Run<'_>> {
        let count = words.len();
        let is_whole = self.functions(words, expected)
            & self.beside(words, details, expected)
            & self.times(words, expected);
        is_whole.then_some(Run {
            first,
            ticks: self.ticks.get(..count)?,
            functions: self.functions.get(..count)?,
            beside: match expected.format {
                Format::Calls => BesideAll::Nothing,
                Format::Callers => BesideAll::Callers(self.callers.get(..count)?),
                Format::Graph | Format::GraphUntimed => BesideAll::Steps(self.graph.get(..count)?),
            },
        })
    }

    fn functions(&mut self, words: &[u64], expected: &Expected) -> bool {
        let (mut other, mut highest) = (0, 0);
        for (word, function) in words.iter().zip(&mut self.functions) {
            other |= word ^ expected.mark;
            *function = Record(*word).without(expected.spill).function();
            highest = highest.max(function.0);
        }
        other & MARK_MASK == 0 && highest < expected.functions
    }

    fn beside(&mut self, words: &[u64], details: &[u64], expected: &Expected) -> bool {
        let columns = words.iter().zip(details).zip(&mut self.graph);
        let (mut other, mut steps) = (0, 0);
        match expected.format {
            Format::Calls => {}
            Format::Callers => {
                for (detail, caller) in details.iter().zip(&mut self.callers) {
                    other |= detail ^ expected.mark;
                    *caller = Detail(*detail).without(expected.spill).caller();
                }
            }
            Format::Graph => {
                for ((_, detail), graph) in columns {
                    other |= detail ^ expected.mark;
                    let detail = Detail(*detail).without(expected.spill);
                    steps |= detail.step_bits();
                    *graph = SlotStep::new(detail.slot(), detail.step_bits());
                }
            }
            Format::GraphUntimed => {
                for ((word, _), graph) in columns {
                    let (step, slot) = Record(*word).without(expected.spill).untimed_bits();
                    steps |= step;
                    *graph = SlotStep::new(slot, step);
                }
            }
        }
        other & MARK_MASK == 0 && steps < STEPS
    }

    /// As [`Times::next`](super::timeline::Times::next) has them.
    fn times(&mut self, words: &[u64], expected: &Expected) -> bool {
        let latest = expected.moment.latest();
        let ahead = latest.wrapping_add(expected.moment.offset);
        for (word, ticks) in words.iter().zip(&mut self.ticks) {
            let low = match expected.format {
                Format::GraphUntimed => 0,
                Format::Calls | Format::Callers | Format::Graph => {
                    Record(*word).without(expected.spill).time()
                }
            };
            *ticks = latest.wrapping_sub(ahead.wrapping_sub(low) & (ROUND - 1));
        }
        // Before that, a time could be one before the clock began.
        let is_known = (ROUND..u64::MAX - ROUND).contains(&latest);
        let ticks = self.ticks.get_mut(..words.len()).unwrap_or_default();
        if is_known && expected.last <= latest && is_ascending(expected.last, ticks) {
            return true;
        }
        let (mut last, mut is_possible) = (expected.last, true);
        for ticks in ticks {
            is_possible &= ticks.wrapping_add(ROUND / 2) > last;
            last = last.max(*ticks);
            *ticks = last;
        }
        is_known && (is_possible || !expected.is_timed)
    }
}

/// Whether no time is before the one before it, of times that are less than 2^63 apart. No way out: that makes it fast.
fn is_ascending(last: u64, times: &[u64]) -> bool {
    let first = times.first().map_or(0, |first| first.wrapping_sub(last));
    let pairs = times.iter().zip(times.get(1..).unwrap_or_default());
    let signs = pairs.fold(first, |signs, (one, next)| signs | next.wrapping_sub(*one));
    signs >> 63 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::STEP_SHIFT;
    use trace::event::Step;

    const NOW: u64 = 1 << 50;
    const MARK: u64 = 5;
    const FUNCTIONS: u32 = 4;

    fn expected(format: Format, is_timed: bool) -> Expected {
        Expected {
            format,
            mark: MARK,
            spill: 0,
            functions: FUNCTIONS,
            moment: Moment::exact(NOW),
            last: NOW - 10,
            is_timed,
        }
    }

    fn call(time: u64) -> u64 {
        Record::new(time, FunctionId(3), MARK).0
    }

    /// The times of the run that these are.
    fn times(words: &[u64], details: &[u64], expected: &Expected) -> Option<Vec<u64>> {
        let mut columns = Columns::new();
        let run = columns.decode(Position(0), words, details, expected)?;
        Some(run.ticks.to_vec())
    }

    #[test]
    fn a_time_that_cannot_be_is_for_who_takes_one_by_one_unless_there_are_none() {
        let timed = expected(Format::Calls, true);
        let fine = [call(NOW - 5), call(NOW - 7), call(NOW)];
        let shown = Some(vec![NOW - 5, NOW - 5, NOW]);
        assert_eq!(times(&fine, &[], &timed), shown);
        // After the look that it came before: nearly a round before the one before.
        for at in 0..fine.len() {
            let mut words = fine;
            words[at] = call(NOW + 5);
            assert_eq!(times(&words, &[], &timed), None, "{at}");
            let untimed = expected(Format::Calls, false);
            assert!(times(&words, &[], &untimed).is_some());
        }
    }

    #[test]
    fn a_step_that_is_none_is_for_who_takes_one_by_one() {
        let words = [call(NOW - 2), call(NOW - 1)];
        let entry = Detail::new(9, Step::Entry, MARK).0;
        let graph = expected(Format::Graph, true);
        assert!(times(&words, &[entry; 2], &graph).is_some());
        let none = entry | ALL_BITS;
        assert_eq!(Detail(none).step(), None);
        assert_eq!(times(&words, &[entry, none], &graph), None);
        assert_eq!(times(&words, &[none, entry], &graph), None);
    }

    /// All bits of a step.
    const ALL_BITS: u64 = 7 << STEP_SHIFT;
}
