//! Calls of a thread that are open, of which each is of a row: whether one of a row is among them is known at once, however
//! many they are.

use std::collections::hash_map::Entry;

use super::step_map::StepMap;

/// As long as no more are open, they are looked through: that is quicker than to count them.
const FEW: usize = 64;

/// What is of a row.
pub(super) trait OfRow {
    /// Which one.
    fn row(&self) -> usize;
}

/// The calls that are open, the outermost first.
#[derive(Debug)]
pub(super) struct Nesting<C> {
    open: Vec<C>,
    /// How many of each row are open in the first [`FEW`].
    inner: StepMap<usize, usize>,
}

impl<C> Default for Nesting<C> {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            inner: StepMap::default(),
        }
    }
}

impl<C: OfRow> Nesting<C> {
    /// Whether one of this row is open.
    pub fn has(&self, row: usize) -> bool {
        let is_it = |call: &C| call.row() == row;
        match self.open.get(..FEW) {
            None => self.open.iter().any(is_it),
            Some(outer) => outer.iter().any(is_it) || self.has_inner(row),
        }
    }

    pub fn push(&mut self, call: C) {
        if self.open.len() >= FEW {
            self.count_inner(call.row());
        }
        self.open.push(call);
    }

    pub fn pop(&mut self) -> Option<C> {
        let call = self.open.pop()?;
        if self.open.len() >= FEW {
            self.forget_inner(call.row());
        }
        Some(call)
    }

    #[cold]
    fn has_inner(&self, row: usize) -> bool {
        self.inner.contains_key(&row)
    }

    #[cold]
    fn count_inner(&mut self, row: usize) {
        *self.inner.entry(row).or_default() += 1;
    }

    #[cold]
    fn forget_inner(&mut self, row: usize) {
        if let Entry::Occupied(mut count) = self.inner.entry(row) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// None is as deep as this.
    pub fn cut(&mut self, depth: usize) {
        while self.open.len() > depth {
            self.pop();
        }
    }

    pub fn last_mut(&mut self) -> Option<&mut C> {
        self.open.last_mut()
    }

    /// How many are open.
    #[cfg(test)]
    pub const fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    impl OfRow for usize {
        fn row(&self) -> usize {
            *self
        }
    }

    /// It tells how often somebody has asked of which row it is.
    struct Asked<'a>(usize, &'a Cell<usize>);

    impl OfRow for Asked<'_> {
        fn row(&self) -> usize {
            self.1.set(self.1.get() + 1);
            self.0
        }
    }

    #[test]
    fn of_many_calls_few_are_looked_at() {
        let (asked, mut nesting) = (Cell::new(0), Nesting::default());
        for row in 0..20_000 {
            assert!(!nesting.has(row));
            nesting.push(Asked(row, &asked));
        }
        assert!(nesting.has(19_999) && nesting.has(0) && !nesting.has(20_000));
        while nesting.pop().is_some() {}
        assert!(asked.get() < 100 * 20_003, "{}", asked.get());
        assert!(nesting.inner.is_empty());
    }

    proptest! {
        /// Whatever calls are made and end, it says what one sees who looks at them all; and it counts what is open, no more.
        #[test]
        fn a_row_is_open_if_a_call_of_it_is(
            steps in prop::collection::vec((0..5u8, 0..9usize, 0..2 * FEW), 0..600),
        ) {
            let (mut nesting, mut all): (Nesting<usize>, Vec<usize>) = Default::default();
            for (step, row, depth) in steps {
                match step {
                    0 => prop_assert_eq!(nesting.pop(), all.pop()),
                    1 if depth > FEW => {
                        nesting.cut(depth);
                        all.truncate(depth);
                    }
                    _ => {
                        nesting.push(row);
                        all.push(row);
                    }
                }
                prop_assert_eq!(nesting.last_mut().copied(), all.last().copied());
                for row in 0..9 {
                    prop_assert_eq!(nesting.has(row), all.contains(&row));
                }
                let inner = all.len().saturating_sub(FEW);
                prop_assert_eq!(nesting.inner.values().sum::<usize>(), inner);
                prop_assert!(nesting.inner.len() <= inner);
            }
        }
    }
}
