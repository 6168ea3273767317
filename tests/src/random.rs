//! Random choices that can be made again: the seed is printed, and `EXOTRACE_SEED` sets it.

use std::hash::{BuildHasher, RandomState};

/// A splitmix64 generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A new seed, or that of `EXOTRACE_SEED`. Prints how to replay.
    ///
    /// # Panics
    /// When `EXOTRACE_SEED` is no number.
    #[must_use]
    pub fn new() -> Self {
        let seed = match std::env::var("EXOTRACE_SEED") {
            Ok(seed) => seed.parse().expect("EXOTRACE_SEED is a decimal number"),
            Err(_) => RandomState::new().hash_one(0),
        };
        println!("to replay: EXOTRACE_SEED={seed}");
        Self(seed)
    }

    /// The same choices each time.
    #[must_use]
    pub const fn of_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let number = self.next_u64() % choices.len() as u64;
        let index = usize::try_from(number).unwrap_or_default();
        choices.get(index).expect("something to choose from")
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
