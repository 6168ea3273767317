//! What the clock of a trace can tell of a duration.

/// The period of the clock, when `nanoseconds` is shorter: then that much is known of a duration, and no
/// more. `period` is `None` for a clock that tells every nanosecond.
#[must_use]
pub fn shorter(nanoseconds: u64, period: Option<u64>) -> Option<u64> {
    period.filter(|period| nanoseconds < *period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_shorter_than_the_period_is_said_to_be() {
        assert_eq!(shorter(0, Some(100)), Some(100));
        assert_eq!(shorter(99, Some(100)), Some(100));
        assert_eq!(shorter(100, Some(100)), None);
        assert_eq!(shorter(0, None), None);
    }
}
