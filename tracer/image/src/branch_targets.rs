//! Where in the text execution may land otherwise than from the instruction before: one bit for each byte.
//!
//! Everything errs on the side of *may*: a word of data that happens to look like an address inside the text
//! costs a tactic, a place that is missed would cost the guest. What counts:
//!
//! * what instructions refer to (`insn/flow.rs`), of all functions and of the code between them;
//! * near branches and calls with 32 bits at *any* byte of the text, whether an instruction begins there or not;
//! * words of 64 bits, and in data those of 32 bits, as an address and relative to themselves (exception tables,
//!   Linux' relative pointers). Tables that say how to unwind are left out: they name nearly every
//!   instruction, and nobody jumps there;
//! * tables of distances that an indirect jump goes by, from each address that its function names on, up to
//!   the first that does not lead into text.

use insn::flow::{far_branches, follow, is_padding};
use terms::addr::Gva;
use terms::function::FunctionId;

use super::words::{long_words, words};
use super::{Image, TextRange};

/// A short branch reaches this far.
const SHORT: u64 = 129;
/// No table of distances has more entries.
const TABLE_MAX: u64 = 4096;

/// One bit for each byte of some text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Marks {
    text: TextRange,
    bits: Vec<u64>,
}

impl Marks {
    fn of(text: TextRange) -> Self {
        let bytes = usize::try_from(text.end.0 - text.start.0).unwrap_or_default();
        let bits = vec![0; bytes.div_ceil(64)];
        Self { text, bits }
    }

    fn word(&self, at: u64) -> Option<(usize, u64)> {
        let offset = at.checked_sub(self.text.start.0)?;
        let index = usize::try_from(offset / 64).ok()?;
        (at < self.text.end.0).then_some((index, 1 << (offset % 64)))
    }
}

/// Where execution may land, and where that is not certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchTargets {
    /// By address, without overlap.
    marks: Vec<Marks>,
    doubtful: Doubtful,
}

/// Stretches of text that are not certain to be all code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Doubtful {
    /// By where they begin.
    ranges: Vec<TextRange>,
    /// How far each of them and those before it reach.
    ends: Vec<Gva>,
}

impl Doubtful {
    fn of(mut ranges: Vec<TextRange>) -> Self {
        ranges.sort_by_key(|range| range.start);
        let mut furthest = Gva(0);
        let ends = ranges.iter().map(|range| {
            furthest = furthest.max(range.end);
            furthest
        });
        Self {
            ends: ends.collect(),
            ranges,
        }
    }

    /// The first from which a short branch reaches `at`.
    fn near(&self, at: Gva) -> Option<TextRange> {
        // The first of those that reach so far is one that does itself, and begins before all others that do.
        let first = self
            .ends
            .partition_point(|end| end.0.saturating_add(SHORT) <= at.0);
        let range = self.ranges.get(first).copied()?;
        (at.0.saturating_add(SHORT) >= range.start.0).then_some(range)
    }
}

impl BranchTargets {
    pub(super) fn of(image: &Image) -> Self {
        let mut branch_targets = Self {
            marks: image.text.iter().copied().map(Marks::of).collect(),
            doubtful: Doubtful::default(),
        };
        let mut doubtful = Vec::new();
        for range in &image.text {
            branch_targets.read_text(image, *range, &mut doubtful);
        }
        branch_targets.doubtful = Doubtful::of(doubtful);
        let mut apart: Vec<TextRange> = [&image.text, &image.loaded.unwinding]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        apart.sort_by_key(|range| range.start);
        for piece in &image.loaded.pieces {
            let end = piece.start.wrapping_add(piece.bytes.len() as u64);
            let mut from = piece.start;
            for range in &apart {
                branch_targets.read_data(image, from, range.start.min(end));
                from = from.max(range.end);
            }
            branch_targets.read_data(image, from, end);
        }
        branch_targets
    }

    /// Marks what the words of data point at.
    fn read_data(&mut self, image: &Image, from: Gva, to: Gva) {
        if from < to {
            let data = image.loaded.bytes_at(from, to.0 - from.0);
            words(data, from).for_each(|to| self.mark(to));
        }
    }

    /// Marks what the code in `range` refers to, and whole addresses among it; notes what of it is doubtful.
    fn read_text(&mut self, image: &Image, range: TextRange, doubtful: &mut Vec<TextRange>) {
        let code = image
            .loaded
            .bytes_at(range.start, range.end.0 - range.start.0);
        far_branches(code, range.start).for_each(|to| self.mark(to));
        long_words(code, range.start).for_each(|to| self.mark(to));
        let first = image
            .functions
            .partition_point(|function| function.address < range.start);
        let mut from = range.start;
        let functions = image.functions.get(first..).unwrap_or_default();
        for (id, function) in (first..).zip(functions) {
            if function.address >= range.end {
                break;
            }
            doubtful.extend(self.read_gap(image, from, function.address));
            let Some(id) = u32::try_from(id).ok().map(FunctionId) else {
                break;
            };
            let code = image.code(id);
            doubtful.extend(self.read_code(image, code, function.address));
            from = function.address.wrapping_add(code.len() as u64).max(from);
        }
        doubtful.extend(self.read_gap(image, from, range.end));
    }

    /// Marks what code without a name refers to. Where it is, if it is doubtful.
    fn read_gap(&mut self, image: &Image, from: Gva, to: Gva) -> Option<TextRange> {
        if from >= to {
            return None;
        }
        let code = image.loaded.bytes_at(from, to.0 - from.0);
        let is_empty = code.iter().all(|byte| *byte == 0);
        if is_empty || is_padding(code) {
            return None;
        }
        self.read_code(image, code, from)
    }

    fn read_code(&mut self, image: &Image, code: &[u8], start: Gva) -> Option<TextRange> {
        let flow = follow(code, start);
        flow.refers.iter().for_each(|to| self.mark(*to));
        for table in &flow.tables {
            self.read_table(image, *table);
        }
        let end = start.wrapping_add(code.len() as u64);
        let is_certain = flow.is_whole && flow.is_provable;
        (!is_certain).then_some(TextRange { start, end })
    }

    /// Marks where the distances of a table lead that begins at `table`.
    fn read_table(&mut self, image: &Image, table: u64) {
        let data = image.loaded.bytes_at(Gva(table), TABLE_MAX * 4);
        for entry in data.chunks_exact(4) {
            let Some(distance) = entry.first_chunk().map(|one| i32::from_le_bytes(*one)) else {
                break;
            };
            let to = table.wrapping_add_signed(distance.into());
            if !image.is_text(Gva(to), 1) {
                break;
            }
            self.mark(to);
        }
    }

    fn mark(&mut self, at: u64) {
        let holder = self.holder(at);
        if let Some(marks) = holder.and_then(|index| self.marks.get_mut(index))
            && let Some((index, bit)) = marks.word(at)
            && let Some(word) = marks.bits.get_mut(index)
        {
            *word |= bit;
        }
    }

    /// Which marks are those of `at`, if any are.
    fn holder(&self, at: u64) -> Option<usize> {
        let after = self.marks.partition_point(|one| one.text.start.0 <= at);
        after.checked_sub(1)
    }

    /// Whether something may land at `at`.
    #[must_use]
    pub fn may_land(&self, at: Gva) -> bool {
        let is_marked = || {
            let marks = self.marks.get(self.holder(at.0)?)?;
            let (index, bit) = marks.word(at.0)?;
            Some(marks.bits.get(index)? & bit != 0)
        };
        is_marked() == Some(true)
    }

    /// The first place from `from` up to but not including `to` where something may land.
    #[must_use]
    pub fn first_in(&self, from: Gva, to: Gva) -> Option<Gva> {
        (from.0..to.0).map(Gva).find(|at| self.may_land(*at))
    }

    /// The stretch of text about which nothing is certain and from which a short branch reaches `at`, if
    /// there is one.
    #[must_use]
    pub fn doubt_near(&self, at: Gva) -> Option<TextRange> {
        self.doubtful.near(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{ElfFile, body};

    fn ranges() -> impl Strategy<Value = Vec<TextRange>> {
        let range = (0..3000_u64, 0..1500_u64).prop_map(|(start, length)| TextRange {
            start: Gva(start),
            end: Gva(start + length),
        });
        proptest::collection::vec(range, 0..12)
    }

    proptest! {
        /// As looking at each of them would.
        #[test]
        fn the_doubt_that_is_found_is_the_first_that_is_near(mut all in ranges(), at in 0..5000_u64) {
            all.sort_by_key(|range| range.start);
            let doubtful = Doubtful::of(all.clone());
            let near = |range: &&TextRange| {
                at < range.end.0 + SHORT && at + SHORT >= range.start.0
            };
            prop_assert_eq!(doubtful.near(Gva(at)), all.iter().find(near).copied());
        }
    }

    #[test]
    fn each_range_of_text_has_its_own_marks() {
        let at = |number: u64| 0xffff_ffff_8100_0000 + number * 0x1000;
        // A word that leads to the last byte of each range.
        let words: Vec<u64> = (0..5).map(|number| at(number) + 15).collect();
        let file = ElfFile::new().list(".rodata", at(8), &words);
        let file = (0..5).fold(file, |file, number| file.text(at(number), &body(&[0xc3])));
        let image = Image::parse(&file.build()).unwrap();
        assert_eq!(image.text.len(), 5);
        for number in 0..5 {
            let lands = (at(number) - 1..at(number) + 17)
                .filter(|at| image.branch_targets().may_land(Gva(*at)));
            assert_eq!(lands.collect::<Vec<_>>(), [at(number) + 15]);
        }
    }
}
