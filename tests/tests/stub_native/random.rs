//! Random numbers that can be had again: the seed is printed, and taken from the environment.

/// Name of the environment variable with the seed.
const SEED: &str = "EXOTRACE_SEED";

/// xorshift64*.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From the environment, or else from the clock.
    pub fn new(test: &str) -> Self {
        let seed = match std::env::var(SEED) {
            Ok(text) => text.parse().expect("EXOTRACE_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |age| age.as_micros() as u64),
        };
        println!("{test}: {SEED}={seed}");
        Self(seed | 1)
    }

    /// From a number that another one has made.
    pub const fn of(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() >> 32) as u32 % end
    }
}
