//! How long a guest stood still for being traced, and when.

use serde::{Deserialize, Serialize};
use std::fmt;

use terms::quantity::plain;

/// How long pauses of a guest took, in nanoseconds; quantiles as exact as who measured keeps them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseSpread {
    /// How many.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_ns: u64,
    /// All but one in a hundred took at most this long.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl PauseSpread {
    /// Whether there were none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for PauseSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| format!("{}.{}", ns / 1000, ns % 1000 / 100);
        let count = plain(self.count, "pause");
        let (p50, p99, max) = (us(self.p50_ns), us(self.p99_ns), us(self.max_ns));
        match self.count {
            0 => f.write_str("none"),
            1 => write!(f, "{count} of {max} us"),
            _ => write!(f, "{count}: p50 {p50} us, p99 {p99} us, longest {max} us"),
        }
    }
}

/// One pause of a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it was asked for, in nanoseconds since the guest's time began.
    pub begin_ns: u64,
    /// How long it took until the last vCPU continued.
    pub length_ns: u64,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (us, tenth) = (self.length_ns / 1000, self.length_ns % 1000 / 100);
        write!(f, "the guest was held for {us}.{tenth} us from here on")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_shown_in_microseconds() {
        let spread = PauseSpread {
            count: 3,
            p50_ns: 46_080,
            p99_ns: 120_000,
            max_ns: 120_999,
        };
        let shown = "3 pauses: p50 46.0 us, p99 120.0 us, longest 120.9 us";
        assert_eq!(spread.to_string(), shown);
        let one = PauseSpread { count: 1, ..spread };
        assert_eq!(one.to_string(), "1 pause of 120.9 us");
        assert_eq!(PauseSpread::default().to_string(), "none");
        let (begin_ns, length_ns) = (7, 55_290);
        let pause = Pause {
            begin_ns,
            length_ns,
        };
        let shown = "the guest was held for 55.2 us from here on";
        assert_eq!(pause.to_string(), shown);
    }
}
