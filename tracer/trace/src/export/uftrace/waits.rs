//! The waits of vCPUs for the reader of their rings, as a trace says them.

use serde::{Deserialize, Serialize};
use std::fmt;

use terms::quantity::{counted, grouped, in_microseconds};

/// Waits that are listed one by one.
const LISTED_MAX: usize = 1 << 16;

/// A vCPU found its ring full and waited for the reader: what it executed stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Which one.
    pub vcpu: u16,
    /// When it was over, in nanoseconds since the guest's time began.
    pub end_ns: u64,
    /// How long it was.
    pub length_ns: u64,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (vcpu, length) = (self.vcpu, in_microseconds(self.length_ns));
        write!(
            f,
            "vCPU {vcpu} waited {length} us for the reader up to here"
        )
    }
}

/// All waits of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// All of them together, whichever vCPU it was.
    pub total_ns: u64,
    /// The longest.
    pub longest_ns: u64,
    /// Each, up to some ten thousand, in the order in which they became known.
    #[serde(default)]
    pub each: Vec<Wait>,
}

impl Waits {
    /// Whether there were none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether each is known by itself.
    #[must_use]
    pub const fn are_listed(&self) -> bool {
        self.each.len() as u64 == self.count
    }

    /// The same with a shorter list.
    #[must_use]
    pub fn listed(&self, most: usize) -> Self {
        Self {
            each: self.each.iter().take(most).copied().collect(),
            ..*self
        }
    }

    /// What is to be said of them in a trace that has, or has not, their time in its own; none where there were none.
    #[must_use]
    pub fn said(&self, are_hidden: bool) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let [total, longest] = [self.total_ns, self.longest_ns].map(in_microseconds);
        let count = counted(self.count, "wait");
        let meaning = match are_hidden {
            true => "hidden from the guest's clock, and so from the times of calls",
            false => "calls that were open meanwhile have it in their times",
        };
        let listed = self.each.len() as u64;
        let rest = match self.are_listed() {
            true => String::new(),
            false => format!("; the first {} are known one by one", grouped(listed)),
        };
        Some(format!(
            "{count} of vCPUs for the reader, {total} us in all, longest {longest} us: {meaning}{rest}"
        ))
    }

    /// One more.
    pub(super) fn add(&mut self, wait: Wait) {
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(wait.length_ns);
        self.longest_ns = self.longest_ns.max(wait.length_ns);
        if self.each.len() < LISTED_MAX {
            self.each.push(wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_added_up_beyond_the_list() {
        let mut waits = Waits::default();
        for end_ns in [900, 300, 500] {
            let (vcpu, length_ns) = (1, end_ns / 3);
            waits.add(Wait {
                vcpu,
                end_ns,
                length_ns,
            });
        }
        let shown = "vCPU 1 waited 0.300 us for the reader up to here";
        assert_eq!(waits.each[0].to_string(), shown);
        let Waits {
            count,
            total_ns,
            longest_ns,
            ..
        } = waits.clone();
        assert_eq!((count, total_ns, longest_ns), (3, 566, 300));
        let wait = Wait {
            vcpu: 0,
            end_ns: 1,
            length_ns: u64::MAX,
        };
        let visible = "3 waits of vCPUs for the reader, 0.566 us in all, longest 0.300 us: calls that were open meanwhile have it in their times";
        assert_eq!(waits.said(false).unwrap(), visible);
        assert!(waits.said(true).unwrap().contains("hidden"));
        assert_eq!(Waits::default().said(false), None);
        (0..LISTED_MAX).for_each(|_| waits.add(wait));
        let said = waits.said(false).unwrap();
        assert!(
            said.ends_with("; the first 65,536 are known one by one"),
            "{said}"
        );
        assert_eq!(waits.each.len(), LISTED_MAX);
        assert_eq!(waits.count, LISTED_MAX as u64 + 3);
        assert_eq!(waits.total_ns, u64::MAX);
    }
}
