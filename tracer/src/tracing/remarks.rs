//! What the guest can make us say as often as it likes is said a few times. A log without end would fill
//! a disk, and one that nobody reads would stop the thread that writes it, which serves everybody.

use std::fmt::Display;
use std::time::Duration;

use log::Level;

use crate::clock::HostClock;

/// Remarks that can follow each other at once.
const BURST: u32 = 20;
/// Then there is one more in this time.
const PERIOD: Duration = Duration::from_secs(60);

/// How many functions are traced, as a sentence.
pub(super) fn functions_traced(count: u64) -> String {
    match count {
        1 => "1 function is traced".to_owned(),
        count => format!("{count} functions are traced"),
    }
}

/// Remarks about what the guest does.
#[derive(Debug)]
pub(super) struct Remarks {
    left: u32,
    /// From when on time counts towards the next one.
    since: Duration,
    now: fn() -> Duration,
    unsaid: u64,
}

impl Remarks {
    /// Nothing has been said yet.
    pub fn new(host: HostClock) -> Self {
        Self {
            left: BURST,
            since: (host.now)(),
            now: host.now,
            unsaid: 0,
        }
    }

    /// Says `what`, unless too much was said.
    pub fn say(&mut self, level: Level, what: impl Display) {
        match self.turn((self.now)()) {
            None => log::debug!("{what}"),
            Some(0) => log::log!(level, "{what}"),
            Some(unsaid) => log::log!(level, "{what} ({unsaid} more remarks were left out)"),
        }
    }

    /// Whether something may be said now; then, how much was not said before it.
    fn turn(&mut self, now: Duration) -> Option<u64> {
        let earned = now.saturating_sub(self.since).as_secs() / PERIOD.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(BURST);
            self.since = now;
        }
        if self.left == 0 {
            self.unsaid += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_remarks_and_then_one_a_minute_that_tells_the_rest() {
        let host = HostClock {
            counter: || 0,
            now: || Duration::from_secs(5),
            rest: |_| {},
        };
        let mut remarks = Remarks::new(host);
        let start = remarks.since;
        let said = |remarks: &mut Remarks, at: Duration, times: u32| {
            (0..times)
                .filter_map(|_| remarks.turn(start + at))
                .collect::<Vec<_>>()
        };
        assert_eq!(said(&mut remarks, Duration::ZERO, 10_000).len(), 20);
        assert_eq!(said(&mut remarks, PERIOD, 10_000), [10_000 - 20]);
        // Silence is no licence for more than the burst.
        let all = said(&mut remarks, PERIOD * 1000, 10_000);
        assert_eq!((all.len(), all[0], all[1]), (20, 9_999, 0));
    }
}
