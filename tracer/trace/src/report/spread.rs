//! Times that were added up, with how much they differ.

/// How many, how much, and how different.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    pub count: u64,
    /// Nanoseconds.
    pub sum: u64,
    /// Nanoseconds squared.
    squares: u128,
}

/// Standard errors that are more than chance: of a thousand differences that are none three are said to be one.
const SURE: f64 = 3.0;

impl Spread {
    /// One more.
    pub fn add(&mut self, nanoseconds: u64) {
        self.count += 1;
        self.sum = self.sum.saturating_add(nanoseconds);
        let square = u128::from(nanoseconds).saturating_mul(nanoseconds.into());
        self.squares = self.squares.saturating_add(square);
    }

    /// Those of both.
    pub fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Of what there is.
    #[expect(
        clippy::cast_precision_loss,
        reason = "sixteen digits are more than any clock has"
    )]
    pub fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Of one of them, in nanoseconds squared; of less than two it is not known, nor of what has become too large.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    fn variance(self) -> Option<f64> {
        let others = self.count.checked_sub(1).filter(|others| *others > 0)?;
        // In whole numbers: the two are nearly the same where the times are.
        let whole = self.squares.checked_mul(self.count.into())?;
        let square = u128::from(self.sum).checked_mul(self.sum.into())?;
        let spread = whole.checked_sub(square)? as f64;
        Some(spread / self.count as f64 / others as f64)
    }

    /// How far apart two means may be by chance, in nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub fn mean_error(self, other: Self) -> Option<f64> {
        let of = |one: Self| Some(one.variance()? / one.count as f64);
        Some(SURE * (of(self)? + of(other)?).sqrt())
    }

    /// How far apart two sums of so many may be by chance, in nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
    pub fn sum_error(self, other: Self) -> Option<f64> {
        let of = |one: Self| Some(one.variance()? * one.count as f64);
        Some(SURE * (of(self)? + of(other)?).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Spread {
        let mut spread = Spread::default();
        times.iter().for_each(|time| spread.add(*time));
        spread
    }

    #[test]
    fn of_a_single_time_nothing_is_sure() {
        let (one, two) = (of(&[5]), of(&[5, 7]));
        assert_eq!(one.mean_error(two), None);
        assert_eq!(one.sum_error(two), None);
        assert_eq!(of(&[]).mean(), None);
    }

    #[test]
    fn errors_are_those_of_the_textbook() {
        // Variances 1 and 4, of three each.
        let (a, b) = (of(&[1, 2, 3]), of(&[10, 12, 14]));
        let mean = a.mean_error(b).unwrap();
        assert!((mean - 3.0 * (1.0f64 / 3.0 + 4.0 / 3.0).sqrt()).abs() < 1e-9);
        let sum = a.sum_error(b).unwrap();
        assert!((sum - 3.0 * (3.0f64 + 12.0).sqrt()).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn any_times_have_an_error_that_is_a_number_or_none(
            a in prop::collection::vec(any::<u64>(), 0..5),
            b in prop::collection::vec(0u64..1000, 0..5),
        ) {
            let error = of(&a).mean_error(of(&b));
            prop_assert!(error.is_none_or(|error| error.is_finite() && error >= 0.0));
        }
    }
}
