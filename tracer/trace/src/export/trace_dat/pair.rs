//! A guest's file and its host's: each knows the other by a number, and readers show them as one (trace-cmd.dat.v6(5)).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The option that says what a file is called by others.
const TRACE_ID: u16 = 11;
/// How the times of a guest's file become its host's.
const TIME_SHIFT: u16 = 12;
/// Whose host a file is of, and which threads run its vCPUs.
const GUEST: u16 = 13;

/// The numbers of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    host: u64,
    guest: u64,
}

impl Pair {
    /// The same numbers whenever the same trace is written, and others for others.
    #[must_use]
    pub fn of(trace: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        trace.hash(&mut hasher);
        // Never 0, and never each other.
        let number = hasher.finish();
        Self {
            host: number | 1,
            guest: (number | 1) ^ 1 | 2,
        }
    }

    /// What the guest's file says, which has so many CPUs: its times are the host's.
    pub(super) fn of_guest(self, cpus: u16) -> Vec<(u16, Vec<u8>)> {
        let mut shift = self.host.to_le_bytes().to_vec();
        shift.extend(0u32.to_le_bytes());
        shift.extend(u32::from(cpus).to_le_bytes());
        for _ in 0..cpus {
            // One sample: its time, what is to be added, by what is to be multiplied.
            shift.extend(1u32.to_le_bytes());
            for value in [0i64, 0, 1] {
                shift.extend(value.to_le_bytes());
            }
        }
        // The bits of fraction of each factor; the manual does not name them, readers want them.
        shift.resize(shift.len() + 8 * usize::from(cpus), 0);
        vec![
            (TRACE_ID, self.guest.to_le_bytes().to_vec()),
            (TIME_SHIFT, shift),
        ]
    }

    /// What the host's file says: the name of the guest, and the thread of each of its vCPUs.
    pub(super) fn of_host(self, guest: &str, tids: &BTreeMap<u16, u32>) -> Vec<(u16, Vec<u8>)> {
        let mut map = guest.as_bytes().to_vec();
        map.push(0);
        map.extend(self.guest.to_le_bytes());
        map.extend(u32::try_from(tids.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (vcpu, tid) in tids {
            map.extend(u32::from(*vcpu).to_le_bytes());
            map.extend(tid.to_le_bytes());
        }
        vec![(TRACE_ID, self.host.to_le_bytes().to_vec()), (GUEST, map)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_name_each_other() {
        let pair = Pair::of("trace");
        assert_eq!(pair, Pair::of("trace"));
        assert_ne!(pair, Pair::of("other"));
        assert!(pair.host != pair.guest && pair.host != 0 && pair.guest != 0);
        let guest = pair.of_guest(2);
        assert_eq!(guest[0], (11, pair.guest.to_le_bytes().to_vec()));
        assert_eq!(guest[1].1[..8], pair.host.to_le_bytes());
        assert_eq!(guest[1].1.len(), 8 + 4 + 4 + 2 * (4 + 24) + 2 * 8);
        let host = pair.of_host("a", &BTreeMap::from([(0, 7), (1, 9)]));
        assert_eq!(host[0], (11, pair.host.to_le_bytes().to_vec()));
        assert_eq!(host[1].1[..2], *b"a\0");
        assert_eq!(host[1].1[2..10], pair.guest.to_le_bytes());
        assert_eq!(
            host[1].1[10..],
            [2, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0]
        );
    }
}
