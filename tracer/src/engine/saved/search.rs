//! Looking through all of a guest's memory for some addresses, in a time that the guest cannot stretch.
//!
//! The guest decides what its memory holds: every word can be one that is looked for, or one that nearly is. What is
//! kept is bounded by what is looked for: one place of each address. A word that is no address looked for costs
//! little more than its reading (a sieve with a factor of chance, which no guest can know, sends nearly all of them
//! away), and after [`HITS_MAX`] words that are, the search ends: so many threads cannot have been interrupted there.

use std::hash::{BuildHasher, Hasher, RandomState};

use terms::addr::{Gpa, Gva};

use crate::target::{MemoryError, StoppedTarget};

/// Bytes that are copied and looked at in one piece: they stay in a core's own cache.
const PIECE: usize = 256 << 10;
const WORD: usize = 8;
/// More words than threads leave: twice what a Linux has process numbers by default.
pub(super) const HITS_MAX: usize = 1 << 16;
/// Bits of the sieve for each address, and in all, at most: it stays in a core's own cache.
const BITS_EACH: usize = 16;
const BITS_MAX: usize = 1 << 22;
/// 2^64 over the golden ratio: its multiples are spread evenly.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SearchOutcome {
    /// Every address that is held somewhere, sorted, and the first place of each.
    At(Vec<(Gva, Gpa)>),
    /// So many words hold one that the search was not carried to its end.
    TooMany(usize),
}

/// Where in the memory of `target` words are that hold one of `wanted`, which is sorted.
///
/// # Errors
/// [`MemoryError`] when memory is not there that the target says it has.
pub(super) fn held(
    target: &(impl StoppedTarget + ?Sized),
    wanted: &[Gva],
) -> Result<SearchOutcome, MemoryError> {
    let Some(mut search) = Search::of(wanted) else {
        return Ok(SearchOutcome::At(Vec::new()));
    };
    let mut piece = vec![0; PIECE];
    for region in target.touched() {
        let mut at = region.start;
        let mut left = region.bytes;
        while left > 0 && search.hits < HITS_MAX {
            let length = left.min(PIECE as u64);
            let bytes = piece
                .get_mut(..usize::try_from(length).unwrap_or(PIECE))
                .unwrap_or_default();
            target.read_physical(at, bytes)?;
            search.look(at, bytes);
            at = at.wrapping_add(length);
            left -= length;
        }
    }
    Ok(search.outcome())
}

struct Search<'a> {
    wanted: &'a [Gva],
    /// The place of each, once it was found.
    places: Vec<Option<Gpa>>,
    first: u64,
    span: u64,
    sieve: Sieve,
    hits: usize,
}

impl<'a> Search<'a> {
    fn of(wanted: &'a [Gva]) -> Option<Self> {
        let (first, last) = (wanted.first()?.0, wanted.last()?.0);
        Some(Self {
            wanted,
            places: vec![None; wanted.len()],
            first,
            span: last.wrapping_sub(first),
            sieve: Sieve::of(wanted),
            hits: 0,
        })
    }

    /// Looks at the words of `bytes`, which lie at `at`, eight at a time: in nearly all of these none is near.
    fn look(&mut self, at: Gpa, bytes: &[u8]) {
        let (first, span) = (self.first, self.span);
        let is_near = |word: u64| word.wrapping_sub(first) <= span;
        for (index, line) in bytes.chunks(8 * WORD).enumerate() {
            let words = || {
                let words = line.chunks_exact(WORD);
                let words = words.filter_map(|word| word.try_into().ok());
                words.map(u64::from_le_bytes)
            };
            if words().filter(|word| is_near(*word)).count() == 0 {
                continue;
            }
            for (into, word) in words().enumerate() {
                if is_near(word) && self.sieve.may_hold(word) {
                    let offset = (index * 8 + into) * WORD;
                    self.compare(word, at.wrapping_add(offset as u64));
                    if self.hits >= HITS_MAX {
                        return;
                    }
                }
            }
        }
    }

    fn compare(&mut self, word: u64, place: Gpa) {
        let index = self.wanted.binary_search(&Gva(word)).ok();
        if let Some(known) = index.and_then(|index| self.places.get_mut(index)) {
            known.get_or_insert(place);
            self.hits += 1;
        }
    }

    fn outcome(self) -> SearchOutcome {
        if self.hits >= HITS_MAX {
            return SearchOutcome::TooMany(self.hits);
        }
        let all = self.wanted.iter().zip(self.places);
        SearchOutcome::At(
            all.filter_map(|(gva, place)| Some((*gva, place?)))
                .collect(),
        )
    }
}

/// Bits of which those are set that the addresses lead to.
struct Sieve {
    bits: Vec<u64>,
    factor: u64,
    shift: u32,
}

impl Sieve {
    fn of(wanted: &[Gva]) -> Self {
        Self::with(RandomState::new().build_hasher().finish(), wanted)
    }

    fn with(chance: u64, wanted: &[Gva]) -> Self {
        let bits = wanted.len().saturating_mul(BITS_EACH);
        let bits = bits.next_power_of_two().clamp(64, BITS_MAX);
        let mut sieve = Self {
            bits: vec![0; bits / 64],
            factor: chance | 1,
            shift: u64::BITS - bits.trailing_zeros(),
        };
        for gva in wanted {
            let (word, bit) = sieve.place(gva.0);
            if let Some(bits) = sieve.bits.get_mut(word) {
                *bits |= 1 << bit;
            }
        }
        sieve
    }

    fn may_hold(&self, word: u64) -> bool {
        let (word, bit) = self.place(word);
        self.bits.get(word).is_some_and(|bits| bits >> bit & 1 != 0)
    }

    fn place(&self, word: u64) -> (usize, u32) {
        // Of addresses at even distances a product alone has even distances again, and some factors lead many near
        // words to the bits of those.
        let mixed = word.wrapping_mul(self.factor);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(MIX);
        // At most 22 bits are left.
        let number = (mixed ^ mixed >> 32).wrapping_mul(MIX) >> self.shift;
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        (word, (number % 64) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::MockTarget;
    use crate::target::TextMemory;

    const FIRST: Gpa = Gpa(0x20_0000);

    fn fill(target: &mut MockTarget, words: impl Iterator<Item = u64>) {
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        target.write_physical(FIRST, &bytes).unwrap();
    }

    #[test]
    fn words_are_found_wherever_they_lie_and_nothing_else_is() {
        let mut target = MockTarget::new(1, 1 << 21);
        let wanted = [Gva(0xffff_ffff_8100_0001), Gva(0xffff_ffff_8100_0104)];
        assert_eq!(held(&target, &wanted), Ok(SearchOutcome::At(Vec::new())));
        // The first and the last word of a page, one that is near, and one that is not aligned.
        for (at, word) in [
            (0, wanted[0].0),
            (4088, wanted[1].0),
            (64, wanted[0].0 + 1),
            (132, wanted[0].0),
        ] {
            let place = FIRST.wrapping_add(at);
            target.write_physical(place, &word.to_le_bytes()).unwrap();
        }
        let last = FIRST.wrapping_add(4088);
        let both = vec![(wanted[0], FIRST), (wanted[1], last)];
        assert_eq!(held(&target, &wanted), Ok(SearchOutcome::At(both)));
        assert_eq!(held(&target, &[]), Ok(SearchOutcome::At(Vec::new())));
    }

    #[test]
    fn a_guest_full_of_such_words_is_kept_one_place_of_each() {
        let mut target = MockTarget::new(1, 1 << 21);
        let wanted = [Gva(0xffff_ffff_8100_0001), Gva(0xffff_ffff_8100_0104)];
        let many = HITS_MAX as u64 - 1;
        fill(&mut target, (0..many).map(|n| wanted[n.min(1) as usize].0));
        let both = vec![(wanted[0], FIRST), (wanted[1], FIRST.wrapping_add(8))];
        assert_eq!(held(&target, &wanted), Ok(SearchOutcome::At(both)));
        fill(&mut target, (0..=many).map(|_| wanted[1].0));
        assert_eq!(held(&target, &wanted), Ok(SearchOutcome::TooMany(HITS_MAX)));
    }

    #[test]
    fn the_sieve_lets_through_all_that_is_wanted_and_little_else() {
        let all: Vec<Gva> = (0..4_000)
            .map(|n| Gva(0xffff_ffff_8100_0000 + n * 16))
            .collect();
        // Also factors that keep the distances of addresses, or nearly: with 1/11 of 2^64, 11 leads nearly nowhere.
        let poor = [
            0,
            1,
            2,
            1 << 20,
            1 << 32,
            1 << 63,
            u64::MAX,
            u64::MAX / 11,
            u64::MAX / 5,
        ];
        let chance = |n: u64| n.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(29) ^ n;
        for factor in poor.into_iter().chain((1..500).map(chance)) {
            let sieve = Sieve::with(factor, &all);
            assert!(all.iter().all(|gva| sieve.may_hold(gva.0)));
            for distance in [1, 4, 5, 8, 11] {
                let near = all.iter().filter(|gva| sieve.may_hold(gva.0 + distance));
                let near = near.count();
                assert!(near < all.len() / 4, "{factor:#x}: {near} of {}", all.len());
            }
        }
    }
}
