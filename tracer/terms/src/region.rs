//! Stretches of guest physical memory.

use crate::addr::Gpa;

/// A stretch of guest physical memory, for the window or of the guest's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Where it starts; a window's at a multiple of 2 MiB.
    pub start: Gpa,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Region {
    /// The first physical address after it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.start.0.saturating_add(self.bytes)
    }

    /// Whether all of `bytes` at `at` lie in it.
    #[must_use]
    pub fn holds(self, at: Gpa, bytes: u64) -> bool {
        let end = at.0.checked_add(bytes);
        at >= self.start && end.is_some_and(|end| end <= self.end())
    }
}

/// The same memory in ascending order, each piece of it once.
#[must_use]
pub fn joined(mut regions: Vec<Region>) -> Vec<Region> {
    regions.sort_unstable_by_key(|region| region.start);
    let mut all: Vec<Region> = Vec::with_capacity(regions.len());
    for region in regions {
        match all.last_mut() {
            Some(last) if region.start.0 <= last.end() => {
                last.bytes = last.bytes.max(region.end() - last.start.0);
            }
            _ => all.push(region),
        }
    }
    all
}

/// Whether all of `bytes` at `at` lie in one of these, which are in ascending order and without overlap.
#[must_use]
pub fn any_holds(regions: &[Region], at: Gpa, bytes: u64) -> bool {
    let after = regions.partition_point(|region| region.start <= at);
    let before = regions.get(..after).and_then(<[Region]>::last);
    before.is_some_and(|region| region.holds(at, bytes))
}

/// What is in both, of which each is in ascending order and without overlap.
#[must_use]
pub fn common(one: &[Region], other: &[Region]) -> Vec<Region> {
    let mut all = Vec::new();
    let (mut ones, mut others) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(one), Some(other)) = (ones.peek(), others.peek()) {
        let start = one.start.max(other.start);
        let end = one.end().min(other.end());
        if start.0 < end {
            let bytes = end - start.0;
            all.push(Region { start, bytes });
        }
        match one.end() <= other.end() {
            true => drop(ones.next()),
            false => drop(others.next()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(all: &[(u64, u64)]) -> Vec<Region> {
        let region = |(start, bytes): &(u64, u64)| Region {
            start: Gpa(*start),
            bytes: *bytes,
        };
        all.iter().map(region).collect()
    }

    #[test]
    fn regions_that_touch_or_overlap_are_one() {
        let all = regions(&[
            (30, 5),
            (0, 10),
            (10, 2),
            (11, 4),
            (32, 1),
            (20, 0),
            (16, 1),
        ]);
        let expected = regions(&[(0, 15), (16, 1), (20, 0), (30, 5)]);
        assert_eq!(joined(all), expected);
        let end = regions(&[(u64::MAX - 1, 9), (u64::MAX, 1)]);
        assert_eq!(joined(end), regions(&[(u64::MAX - 1, 9)]));
    }

    #[test]
    fn what_is_common_is_in_both() {
        let one = regions(&[(0, 10), (20, 10), (40, 1), (50, 10)]);
        let other = regions(&[(5, 20), (28, 4), (40, 1), (52, 2), (56, 100)]);
        let both = regions(&[(5, 5), (20, 5), (28, 2), (40, 1), (52, 2), (56, 4)]);
        assert_eq!(common(&one, &other), both);
        assert_eq!(common(&other, &one), both);
        assert_eq!(common(&one, &[]), []);
        assert_eq!(common(&one, &one), one);
    }
}
