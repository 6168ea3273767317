//! How much is made of the debug information of one file, all in all. Sections, units and entries have bounds each, but
//! any number of them may mean the same bytes.

use std::sync::atomic::{AtomicU64, Ordering};

/// A limit that grows with the bytes that there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    /// So many of what is counted for each …
    times: u64,
    /// … of these bytes.
    bytes: u64,
    least: u64,
    most: u64,
}

/// Bytes that the sections of a file unpack to. Those of kernels are some 5 times as large as they are packed, and no
/// more than 4 GB; zlib can pack a thousand to one.
pub(super) const UNPACKED: Limit = Limit {
    times: 16,
    bytes: 1,
    least: 64 << 20,
    most: 16 << 30,
};
/// Ranges of code of units and functions. A program has hundreds of bytes of debug information for each function, which
/// has a range or two.
pub(super) const RANGES: Limit = Limit {
    times: 1,
    bytes: 8,
    least: 1 << 16,
    most: 1 << 24,
};
/// Bytes of the tables of abbreviations of all units, each table once. Those of compilers have no byte in common.
pub(super) const ABBREVIATIONS: Limit = Limit {
    times: 2,
    bytes: 1,
    least: 1 << 16,
    most: 1 << 30,
};
/// Bytes of the names that are looked at for one answer. All that are in a program in Rust, where names are long and every
/// unit has its own, are a third of what there is.
pub(super) const NAMES: Limit = Limit {
    times: 4,
    bytes: 1,
    least: 16 << 20,
    most: 8 << 30,
};

/// What is left of a limit.
#[derive(Debug)]
pub(super) struct Room {
    limit: u64,
    taken: AtomicU64,
}

impl Room {
    /// All of a limit, where there are so many bytes.
    pub const fn new(limit: Limit, bytes: u64) -> Self {
        let allowed = bytes / limit.bytes;
        let allowed = allowed.saturating_mul(limit.times);
        let allowed = if allowed < limit.least {
            limit.least
        } else if allowed > limit.most {
            limit.most
        } else {
            allowed
        };
        Self {
            limit: allowed,
            taken: AtomicU64::new(0),
        }
    }

    /// Takes so much of it. Says whether that was there.
    #[must_use]
    pub fn take(&self, amount: u64) -> bool {
        let before = self.taken.fetch_add(amount, Ordering::Relaxed);
        before.saturating_add(amount) <= self.limit
    }

    /// Whether more was taken than was there.
    pub fn is_exceeded(&self) -> bool {
        self.taken.load(Ordering::Relaxed) > self.limit
    }

    pub const fn limit(&self) -> u64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_grow_with_what_there_is_and_no_kernel_meets_them() {
        let unpacked = |file: u64| Room::new(UNPACKED, file).limit();
        assert_eq!(unpacked(0), 64 << 20);
        assert_eq!(unpacked(4 << 20), 64 << 20);
        assert_eq!(unpacked(300 << 20), 4800 << 20);
        assert_eq!(unpacked(1 << 30), 16 << 30);
        assert_eq!(unpacked(u64::MAX), 16 << 30);
        let ranges = |bytes: u64| Room::new(RANGES, bytes).limit();
        assert_eq!(ranges(5000), 1 << 16);
        assert_eq!(ranges(80 << 20), 10 << 20);
        assert_eq!(ranges(4 << 30), 1 << 24);
        assert_eq!(Room::new(NAMES, 300 << 20).limit(), 1200 << 20);
    }

    #[test]
    fn what_is_taken_is_counted_also_where_it_is_too_much() {
        let room = Room::new(RANGES, 0);
        assert!(room.take((1 << 16) - 1));
        assert!(room.take(1));
        assert!(!room.is_exceeded());
        assert!(!room.take(1));
        assert!(room.is_exceeded());
        assert!(!room.take(0));
    }
}
