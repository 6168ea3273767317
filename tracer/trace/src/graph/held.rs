//! Values of entries that wait until more is known of their calls: what they take in memory has an end.
//!
//! Calls that are open are counted, but each can have thousands of values in a file that comes from somebody. An entry for whose values
//! there is no room waits without, and that is counted.

use terms::quantity::counted;

use super::anomaly::{Anomalies, Anomaly};
use crate::event::{Event, weight};

/// Bytes that they take, at most.
const BYTES_MAX: usize = 64 << 20;

/// What waits.
#[derive(Debug)]
pub(super) struct Held {
    /// What it takes, and may.
    bytes: usize,
    bytes_max: usize,
    /// Entries without theirs.
    anomalies: Anomalies,
}

impl Default for Held {
    fn default() -> Self {
        Self::within(BYTES_MAX)
    }
}

impl Held {
    /// In so many bytes.
    pub fn within(bytes_max: usize) -> Self {
        Self {
            bytes: 0,
            bytes_max,
            anomalies: Anomalies::default(),
        }
    }

    /// What waits.
    #[cfg(test)]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Entries whose values could not wait.
    pub const fn anomalies(&self) -> &Anomalies {
        &self.anomalies
    }

    /// The same for who tells people, once.
    pub fn take_remark(&mut self) -> Option<String> {
        let count = std::mem::take(&mut self.anomalies).count(Anomaly::NoValues);
        let calls = counted(count, "call");
        let said = "not shown with their values: too many of these waited for the ends of calls";
        (count > 0).then(|| format!("{calls} {said}"))
    }

    /// An entry waits from now on; without its values where there is no room for them. Returns what they take.
    pub fn hold(&mut self, entry: &mut Event) -> usize {
        let bytes = entry.values.as_ref().map_or(0, weight);
        let all = self.bytes.saturating_add(bytes);
        if all <= self.bytes_max {
            self.bytes = all;
            return bytes;
        }
        entry.values = None;
        if let Some(function) = entry.function() {
            let (time_ns, thread) = (entry.time_ns, entry.thread);
            self.anomalies
                .note(Anomaly::NoValues, time_ns, function, thread);
        }
        0
    }

    /// So many bytes wait no longer.
    pub const fn let_go(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use terms::field::FieldValue;

    use super::*;
    use crate::testing::{entry, event};

    /// A million of open calls with thousands of values each would take all memory there is.
    #[test]
    fn entries_for_whose_values_there_is_no_room_wait_without_and_are_counted() {
        let with_values = || Event {
            values: Some([const { FieldValue::Fault }; 4].into()),
            ..event(5, 0, 3, 0, entry(1))
        };
        let one = weight(&with_values().values.unwrap());
        let mut held = Held::within(2 * one);
        let hold = |held: &mut Held| {
            let mut entry = with_values();
            let bytes = held.hold(&mut entry);
            assert_eq!(entry.values.is_some(), bytes == one);
            bytes
        };
        assert_eq!([(); 4].map(|()| hold(&mut held)), [one, one, 0, 0]);
        held.let_go(one);
        assert_eq!([(); 2].map(|()| hold(&mut held)), [one, 0]);
        assert_eq!(held.hold(&mut event(6, 0, 3, 0, entry(1))), 0);
        let seen = held.anomalies().iter().collect::<Vec<_>>();
        assert_eq!(seen.len(), 1);
        let (what, seen) = seen[0];
        assert_eq!((what, seen.count, seen.thread), (Anomaly::NoValues, 3, 3));
        let said = held.take_remark().unwrap();
        assert!(said.starts_with("3 calls not shown"), "{said}");
        assert_eq!(held.take_remark(), None);
    }
}
