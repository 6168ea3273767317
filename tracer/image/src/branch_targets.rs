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
    marks: Vec<Marks>,
    /// Stretches of text that are not certain to be all code, by address.
    doubtful: Vec<TextRange>,
}

impl BranchTargets {
    pub(super) fn of(image: &Image) -> Self {
        let mut branch_targets = Self {
            marks: image.text.iter().copied().map(Marks::of).collect(),
            doubtful: Vec::new(),
        };
        for range in &image.text {
            branch_targets.read_text(image, *range);
        }
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

    /// Marks what the code in `range` refers to, and whole addresses among it.
    fn read_text(&mut self, image: &Image, range: TextRange) {
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
            self.read_gap(image, from, function.address);
            let Some(id) = u32::try_from(id).ok().map(FunctionId) else {
                break;
            };
            let code = image.code(id);
            self.read_code(image, code, function.address);
            from = function.address.wrapping_add(code.len() as u64).max(from);
        }
        self.read_gap(image, from, range.end);
    }

    /// Marks what code without a name refers to.
    fn read_gap(&mut self, image: &Image, from: Gva, to: Gva) {
        if from >= to {
            return;
        }
        let code = image.loaded.bytes_at(from, to.0 - from.0);
        let is_empty = code.iter().all(|byte| *byte == 0);
        if !is_empty && !is_padding(code) {
            self.read_code(image, code, from);
        }
    }

    fn read_code(&mut self, image: &Image, code: &[u8], start: Gva) {
        let flow = follow(code, start);
        flow.refers.iter().for_each(|to| self.mark(*to));
        for table in &flow.tables {
            self.read_table(image, *table);
        }
        if !flow.is_whole || !flow.is_provable {
            let end = start.wrapping_add(code.len() as u64);
            self.doubtful.push(TextRange { start, end });
        }
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
        for marks in &mut self.marks {
            if let Some((index, bit)) = marks.word(at)
                && let Some(word) = marks.bits.get_mut(index)
            {
                *word |= bit;
            }
        }
    }

    /// Whether something may land at `at`.
    #[must_use]
    pub fn may_land(&self, at: Gva) -> bool {
        let is_marked = |marks: &Marks| {
            let (index, bit) = marks.word(at.0)?;
            Some(marks.bits.get(index)? & bit != 0)
        };
        self.marks
            .iter()
            .any(|marks| is_marked(marks) == Some(true))
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
        let near = |range: &&TextRange| {
            at.0 < range.end.0.saturating_add(SHORT) && at.0.saturating_add(SHORT) >= range.start.0
        };
        self.doubtful.iter().find(near).copied()
    }
}
