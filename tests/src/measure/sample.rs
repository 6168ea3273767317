//! Repeated measurements of one thing.

/// Measurements, in ascending order.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl FromIterator<f64> for Samples {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

impl Samples {
    /// Each of them in another unit; `change` keeps their order.
    pub fn scaled(&self, change: impl FnMut(f64) -> f64) -> Self {
        self.0.iter().copied().map(change).collect()
    }

    /// All of them, in ascending order.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The value that the share `parts` in a hundred of them does not exceed; not a number when
    /// there is none.
    pub fn percentile(&self, parts: usize) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let index = (last * parts).div_ceil(100);
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.percentile(0)
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.percentile(100)
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    #[expect(clippy::float_cmp, reason = "nothing is computed")]
    fn percentiles_are_values_that_were_measured() {
        let samples: Samples = [3.0, 1.0, 2.0].into_iter().collect();
        assert_eq!(samples.min(), 1.0);
        assert_eq!(samples.median(), 2.0);
        assert_eq!(samples.percentile(99), 3.0);
        assert_eq!(samples.max(), 3.0);
        assert!(Samples::default().median().is_nan());
    }
}
