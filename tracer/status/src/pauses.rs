//! How often and for how long a change has paused the guest.

use std::time::Duration;

/// A duration in microseconds, to the nanosecond: as a sum of decimal digits, not of rounding errors.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "pauses have far fewer than 53 bits of ns"
)]
pub fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1000.0
}

/// How often and for how many microseconds the guest was paused for a change of its text, as text.
#[must_use]
pub(crate) fn paused(pauses: u64, pause_us: f64) -> String {
    match pauses {
        0 if pause_us == 0.0 => "not paused".to_owned(),
        0 => format!("not paused, a vCPU lost {pause_us:.1} us at most"),
        1 => format!("paused for {pause_us:.1} us"),
        _ => format!("paused {pauses} times, for {pause_us:.1} us at most"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_have_three_digits_after_the_point() {
        for (ns, text) in [
            (3_423_656, "3423.656"),
            (40_100, "40.1"),
            (999, "0.999"),
            (0, "0.0"),
        ] {
            let us = microseconds(Duration::from_nanos(ns));
            assert_eq!(serde_json::to_string(&us).unwrap(), text);
        }
    }
}
