//! How the counter of a vCPU relates to the host's, and how sure that is.
//!
//! The guest's counter can only be read between two readings of the host's, and whoever reads can lose its
//! CPU in between. What is certain is that the guest's counter was read at some moment between the two: so the
//! difference lies within an interval, and the tightest of many is the best that is known.

/// One reading of a vCPU's counter, with the host's before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The host's counter before.
    pub before: u64,
    /// The vCPU's counter.
    pub guest: u64,
    /// The host's counter after.
    pub after: u64,
}

impl Sample {
    /// The tightest of `count` samples.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn tightest<E>(count: u32, mut take: impl FnMut() -> Result<Self, E>) -> Result<Self, E> {
        let mut best = take()?;
        for _ in 1..count {
            let next = take()?;
            if next.width() < best.width() {
                best = next;
            }
        }
        Ok(best)
    }

    const fn width(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }
}

/// What is known of a vCPU's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation {
    /// What it is ahead of the host's counter.
    pub offset: u64,
    /// How far that may be from the truth, either way.
    pub bound: u64,
    /// When it was so for certain, by the host's counter.
    pub measured: u64,
}

impl From<Sample> for Relation {
    fn from(sample: Sample) -> Self {
        let middle = sample.before.wrapping_add(sample.width() / 2);
        Self {
            offset: sample.guest.wrapping_sub(middle),
            bound: sample.width().div_ceil(2),
            measured: sample.before,
        }
    }
}

impl Relation {
    /// What both say together; none when they contradict each other: then the counter was set in between, or does
    /// not run as the host's does.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        let distance = i128::from(self.ahead_of(other)).wrapping_neg();
        let low = (-i128::from(self.bound)).max(distance - i128::from(other.bound));
        let high = i128::from(self.bound).min(distance + i128::from(other.bound));
        if low > high {
            return None;
        }
        let middle = i64::try_from((low + high) / 2).ok()?;
        let bound = u64::try_from((high - low + 1) / 2).ok()?;
        Some(Self {
            offset: self.offset.wrapping_add_signed(middle),
            // An odd interval has no middle.
            bound: bound.saturating_add(u64::from((low + high) % 2 != 0)),
            measured: self.measured.max(other.measured),
        })
    }

    /// Ticks from the other's offset to this one's.
    #[must_use]
    pub const fn ahead_of(&self, other: &Self) -> i64 {
        self.offset.wrapping_sub(other.offset).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// 2 GHz.
    const MILLISECOND: u64 = 2_000_000;

    /// A host and a guest whose counter is `offset` ahead, and what each reading takes: before the guest's counter is
    /// read, and after it.
    struct Host {
        now: u64,
        offset: u64,
        delays: Vec<(u64, u64)>,
    }

    impl Host {
        fn sample(&mut self) -> Result<Sample, Infallible> {
            let (early, late) = self.delays.pop().unwrap_or((900, 1100));
            let before = self.now;
            self.now += early;
            let guest = self.now.wrapping_add(self.offset);
            self.now += late;
            let after = self.now;
            Ok(Sample {
                before,
                guest,
                after,
            })
        }

        fn relation(&mut self, count: u32) -> Relation {
            let Ok(sample) = Sample::tightest(count, || self.sample());
            sample.into()
        }
    }

    fn host(offset: u64, delays: &[(u64, u64)]) -> Host {
        Host {
            now: 1 << 40,
            offset,
            delays: delays.to_vec(),
        }
    }

    fn error(relation: &Relation, truth: u64) -> u64 {
        relation
            .offset
            .wrapping_sub(truth)
            .cast_signed()
            .unsigned_abs()
    }

    const OFFSETS: [u64; 4] = [0, 1 << 52, u64::MAX - 5, 0u64.wrapping_sub(1 << 40)];

    /// It was once one sample: a host that lost its CPU for 200 ms in it was 100 ms off.
    #[test]
    fn a_delay_in_all_samples_but_one_does_no_harm() {
        for offset in OFFSETS {
            let slow = 200 * MILLISECOND;
            let delays = [(slow, 1), (1, slow), (slow, slow), (400, 300), (1, slow)];
            let found = host(offset, &delays).relation(5);
            assert_eq!(found.bound, 350);
            assert!(error(&found, offset) <= found.bound);
        }
    }

    #[test]
    fn a_delay_in_all_samples_is_in_the_bound() {
        for offset in OFFSETS {
            for slow in [20 * MILLISECOND, 200 * MILLISECOND] {
                for delays in [(slow, 1), (1, slow)] {
                    let found = host(offset, &[delays; 16]).relation(16);
                    assert!(error(&found, offset) <= found.bound);
                    assert!(found.bound <= slow / 2 + 1, "{found:?}");
                }
            }
        }
    }

    #[test]
    fn samples_of_one_counter_agree_and_tell_more_together() {
        for offset in OFFSETS {
            let mut host = host(offset, &[(1, 5000), (70_000, 3), (6, 200)]);
            let mut known = host.relation(1);
            for _ in 0..10 {
                let next = host.relation(1);
                let both = known.and(&next).expect("they are of one counter");
                assert!(both.bound <= known.bound.min(next.bound) + 1);
                assert!(error(&both, offset) <= both.bound);
                assert_eq!(both.measured, next.measured);
                known = both;
            }
            assert!(known.bound < 1000, "{known:?}");
        }
    }

    #[test]
    fn a_counter_that_was_set_contradicts_what_was_known() {
        let mut host = host(77, &[]);
        let known = host.relation(4);
        for step in [3000, u64::MAX - 3000, 1 << 40, 1 << 63] {
            host.offset = 77u64.wrapping_add(step);
            let next = host.relation(4);
            assert_eq!(known.and(&next), None, "{step}");
            assert_eq!(next.ahead_of(&known), step.cast_signed());
        }
        // Less than what a reading takes is not seen, and is within the bound.
        host.offset = 78;
        assert!(known.and(&host.relation(4)).is_some());
    }

    /// A counter that runs faster than the host's by one in a million is noticed after some milliseconds.
    #[test]
    fn a_drift_is_noticed_when_it_exceeds_the_bound() {
        let mut host = host(5, &[]);
        let known = host.relation(4);
        let mut noticed = None;
        for second in 1..100 {
            host.now += 1000 * MILLISECOND;
            host.offset += 1000;
            if noticed.is_none() && known.and(&host.relation(4)).is_none() {
                noticed = Some(second);
            }
        }
        assert_eq!(noticed, Some(3), "the two bounds are 2000 ticks");
    }
}
