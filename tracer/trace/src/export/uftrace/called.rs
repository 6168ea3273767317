//! Which functions a trace has calls of.

use terms::function::FunctionId;

/// A bit for each.
#[derive(Debug, Default)]
pub(super) struct Called(Vec<u64>);

impl Called {
    /// Whether this is the first call of the function. Of all others nothing is stored: that would be what the next waits for.
    #[inline]
    pub fn note(&mut self, function: FunctionId) -> bool {
        let (index, bit) = (function.index() / 64, 1 << (function.index() % 64));
        if self.0.get(index).is_some_and(|bits| bits & bit != 0) {
            return false;
        }
        self.add(index, bit);
        true
    }

    /// Those of others are calls of this trace, too.
    pub fn join(&mut self, others: Self) {
        if self.0.len() < others.0.len() {
            self.0.resize(others.0.len(), 0);
        }
        for (bits, others) in self.0.iter_mut().zip(others.0) {
            *bits |= others;
        }
    }

    #[cold]
    fn add(&mut self, index: usize, bit: u64) {
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        if let Some(bits) = self.0.get_mut(index) {
            *bits |= bit;
        }
    }

    pub fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }
}
