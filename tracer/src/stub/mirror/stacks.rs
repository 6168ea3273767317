//! From the low bits of a stack slot's address to the whole of it.
//!
//! Records without a time have [`SLOT_BITS`] bits of it. The rest is that of the page's number in the
//! directory of the [mirror](super), which has every page of stack on which a function's
//! return was hooked. Other pages, on which entries alone are recorded, and what the guest makes up,
//! get the high bits of the page that was found last. Two stacks at the same place in different 64 GiB are
//! taken for one: their calls then contradict each other, and the trace says so.

use std::collections::HashMap;

use super::{Mirror, PAGE};
use crate::record::SLOT_BITS;

/// Pages that are remembered; more than any mirror has.
const PAGES_MAX: usize = 1 << 16;
/// Times that the directory is asked for in a round: it has some thousand words, and a guest that makes pages up
/// could have it read for every record. What is asked for once finds all that was hooked before the round.
const ASKED_MAX: u32 = 64;

/// The pages of stack that are known.
#[derive(Debug)]
pub struct Stacks {
    /// Whole page numbers, by their low bits.
    pages: HashMap<u64, u64>,
    /// The high bits of the page found last, in place.
    high: u64,
    /// How often the directory may still be asked for.
    asks: u32,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            pages: HashMap::new(),
            // Where kernels are.
            high: u64::MAX << SLOT_BITS,
            asks: ASKED_MAX,
        }
    }
}

impl Stacks {
    /// A new round of reading begins.
    pub fn begin_round(&mut self) {
        self.asks = ASKED_MAX;
    }

    /// The address whose low [`SLOT_BITS`] bits are `low`. `directory` gives the words of the mirror's
    /// directory, and is asked for when the page is new.
    pub fn whole(&mut self, low: u64, directory: impl FnOnce() -> Vec<u64>) -> u64 {
        let page = low / PAGE;
        if !self.pages.contains_key(&page) && self.asks > 0 {
            self.asks -= 1;
            self.learn(page, &directory());
        }
        let known = self.pages.get(&page).copied();
        let whole = known.unwrap_or_else(|| self.guess(page));
        whole.wrapping_mul(PAGE) | (low % PAGE)
    }

    fn learn(&mut self, page: u64, directory: &[u64]) {
        if self.pages.len() + directory.len() > PAGES_MAX {
            self.pages.clear();
        }
        let tags = directory.iter().filter(|tag| !is_free(**tag));
        for tag in tags {
            let address = tag.wrapping_mul(PAGE);
            let low = address & ((1 << SLOT_BITS) - 1);
            self.high = address & (u64::MAX << SLOT_BITS);
            self.pages.insert(low / PAGE, address / PAGE);
        }
        let guess = self.guess(page);
        self.pages.entry(page).or_insert(guess);
    }

    fn guess(&self, page: u64) -> u64 {
        (self.high | page.wrapping_mul(PAGE)) / PAGE
    }
}

/// Whether a word of the directory is the number of no page.
pub(super) const fn is_free(tag: u64) -> bool {
    tag == 0 || tag == Mirror::NOBODY
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: u64 = (1 << SLOT_BITS) - 1;

    #[test]
    fn slots_of_hooked_pages_are_found_whatever_their_high_bits() {
        let slots = [
            0xffff_c900_0123_4f58,
            0xffff_8880_1f80_1008,
            0x7000_0000_2ff8,
        ];
        let directory = || {
            let tags = slots.map(|slot: u64| slot / PAGE);
            [&[Mirror::NOBODY, 0], &tags[..]].concat()
        };
        let mut stacks = Stacks::default();
        for slot in slots {
            assert_eq!(stacks.whole(slot & LOW, directory), slot);
            // The directory is not read again.
            assert_eq!(stacks.whole(slot & LOW, || unreachable!()), slot);
        }
    }

    #[test]
    fn other_slots_get_high_bits_too_and_keep_them() {
        let mut stacks = Stacks::default();
        let kernel = stacks.whole(0x8_1234_5678, Vec::new);
        assert_eq!(kernel, 0xffff_fff8_1234_5678);
        let tag = vec![0xffff_c900_0000_0000 / PAGE];
        assert_eq!(stacks.whole(0x1008, || tag), 0xffff_c900_0000_1008);
        assert_eq!(stacks.whole(0x8_1234_5678, || unreachable!()), kernel);
    }

    /// What stands in the directory where no page is says nothing about pages.
    #[test]
    fn free_places_of_the_directory_leave_the_high_bits_as_they_are() {
        let page = 0xffff_c900_0123_4000;
        for free in [0, Mirror::NOBODY] {
            let mut stacks = Stacks::default();
            let directory = vec![page / PAGE, free];
            let slot = stacks.whole(0x1008, || directory);
            assert_eq!(slot, (page & !LOW) + 0x1008, "{free:#x}");
        }
    }

    #[test]
    fn a_guest_that_makes_pages_up_has_the_directory_read_some_times_a_round() {
        let mut stacks = Stacks::default();
        let mut asked = 0;
        for _ in 0..3 {
            stacks.begin_round();
            for page in 0..100_000u64 {
                let address = stacks.whole(page * PAGE, || {
                    asked += 1;
                    Vec::new()
                });
                assert_eq!(address & LOW, page * PAGE);
            }
        }
        assert_eq!(asked, 3 * ASKED_MAX);
    }

    #[test]
    fn a_guest_that_makes_pages_up_uses_no_more_memory() {
        let mut stacks = Stacks::default();
        for page in 0..300_000u64 {
            stacks.begin_round();
            stacks.whole(page * PAGE, || {
                vec![page.wrapping_mul(0x9e37_79b9_7f4a_7c15); 64]
            });
            assert!(stacks.pages.len() <= PAGES_MAX + 64);
        }
    }
}
