//! How times are written for people.

use terms::quantity::in_seconds;

/// How exact they are, and how exact they are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Of the clock that they are from, if it does not tell every nanosecond.
    pub period_ns: Option<u64>,
    /// With nine digits after the point, and not six.
    pub has_nanoseconds: bool,
}

impl Times {
    /// When something happened, in seconds since the guest's time began.
    pub fn moment(self, time_ns: u64) -> String {
        let mut text = in_seconds(time_ns);
        if !self.has_nanoseconds {
            text.truncate(text.len() - 3);
        }
        text
    }

    /// The same, or what stands where nobody knows it.
    pub fn moment_if_known(self, time_ns: Option<u64>) -> String {
        time_ns.map_or_else(|| "-".to_owned(), |time_ns| self.moment(time_ns))
    }

    /// Columns that such a time needs, for some days.
    pub const fn width(self) -> usize {
        if self.has_nanoseconds { 17 } else { 14 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_six_digits_or_nine() {
        let mut times = Times::default();
        assert_eq!(times.moment(12_345_678_901u64), "12.345678");
        times.has_nanoseconds = true;
        assert_eq!(times.moment(12_345_678_901u64), "12.345678901");
        assert_eq!(times.moment(7u64), "0.000000007");
    }
}
