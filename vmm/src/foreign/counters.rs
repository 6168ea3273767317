//! The counters of the vCPUs of a guest of another VMM: KVM is asked what they are ahead of the host's, in the name of threads that stand
//! anyway.
//!
//! A guest can set them at any time, and so can its VMM (a snapshot that it goes back to, a migration). So in each pause in which the kernel
//! is looked at ([`kernel_watch`](super::kernel_watch)) one vCPU's is, in turn, which makes that pause longer by one call; the
//! others too where that one had been set. All of them are looked at in the end.

use tracer::clock::{Relation, Sample, VcpuClocks};

use super::error::ForeignError;
use crate::clock::{HostSpeed, host_tsc, until_checked};

/// What KVM says of a vCPU's counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counter {
    /// Ticks that it is ahead of the host's.
    pub offset: u64,
    /// Ticks that it makes in a millisecond.
    pub khz: u32,
}

/// Takes in the counters of all vCPUs, as `read`, beside the host's of this `speed`, if that is known. Of one that its VMM has closed nothing
/// is known, which is not that it is the host's.
///
/// # Errors
/// The first of another kind that reading brings.
pub(super) fn begin(
    clocks: &VcpuClocks,
    speed: Option<HostSpeed>,
    khz: u32,
    mut read: impl FnMut(u16) -> Result<Counter, ForeignError>,
) -> Result<(), ForeignError> {
    let mut relations = Vec::with_capacity(clocks.count());
    for vcpu in numbers(clocks) {
        let counter = match read(vcpu) {
            Err(ForeignError::Closed { .. }) => None,
            counter => Some(counter?),
        };
        if let Some((counter, host)) = counter.zip(speed)
            && !host.is_of(counter.khz)
        {
            clocks.runs_at(vcpu, counter.khz, host.khz);
        }
        relations.push(counter.map(|counter| Relation {
            offset: counter.offset,
            // KVM's own word: there is nothing to be unsure of.
            bound: 0,
            measured: host_tsc(),
        }));
    }
    clocks.begin(&relations, until_checked(khz));
    Ok(())
}

/// Looks at the one that was not looked at for the longest, if it is time for that, and at all where it had been set.
pub(super) fn look(clocks: &VcpuClocks, mut read: impl FnMut(u16) -> Result<u64, ForeignError>) {
    let Some(vcpu) = clocks.most_due() else {
        return;
    };
    if is_found_set(clocks, vcpu, &mut read) {
        let others = numbers(clocks).filter(|other| *other != vcpu);
        others.for_each(|other| {
            is_found_set(clocks, other, &mut read);
        });
    }
}

/// Looks at all of them, if they are known.
pub(super) fn look_at_all(
    clocks: &VcpuClocks,
    mut read: impl FnMut(u16) -> Result<u64, ForeignError>,
) {
    for vcpu in numbers(clocks).filter(|_| clocks.is_begun()) {
        is_found_set(clocks, vcpu, &mut read);
    }
}

/// Looks at one: whether it had been set.
fn is_found_set(
    clocks: &VcpuClocks,
    vcpu: u16,
    read: &mut impl FnMut(u16) -> Result<u64, ForeignError>,
) -> bool {
    match read(vcpu) {
        Ok(offset) => {
            let now = host_tsc();
            let sample = Sample {
                before: now,
                guest: now.wrapping_add(offset),
                after: now,
            };
            clocks.check(vcpu, sample)
        }
        Err(error) => {
            log::debug!("the clock of vCPU {vcpu} was not looked at: {error}");
            clocks.put_off(vcpu);
            false
        }
    }
}

fn numbers(clocks: &VcpuClocks) -> impl Iterator<Item = u16> + use<> {
    (0..).take(clocks.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HOST;

    /// Three, which are looked at again at once.
    fn begun(
        speed: Option<HostSpeed>,
        read: impl FnMut(u16) -> Result<Counter, ForeignError>,
    ) -> VcpuClocks {
        let clocks = VcpuClocks::new(3, HOST);
        begin(&clocks, speed, 0, read).unwrap();
        clocks
    }

    fn alike(_: u16) -> Result<Counter, ForeignError> {
        Ok(Counter {
            offset: 500,
            khz: 1000,
        })
    }

    const fn closed(vcpu: u16) -> ForeignError {
        ForeignError::Closed { pid: 1, vcpu }
    }

    /// Which were asked in a look.
    fn looked(clocks: &VcpuClocks, offset: impl Fn(u16) -> Result<u64, ForeignError>) -> Vec<u16> {
        let mut asked = Vec::new();
        look(clocks, |vcpu| {
            asked.push(vcpu);
            offset(vcpu)
        });
        asked
    }

    /// They were once looked at when they were let go, and never before.
    #[test]
    fn each_look_is_at_one_in_turn() {
        let clocks = begun(None, alike);
        let looks: Vec<_> = (0..5).map(|_| looked(&clocks, |_| Ok(500))).collect();
        assert_eq!(looks, [[0], [1], [2], [0], [1]]);
        // One that cannot be read is in nobody's way.
        let looks = (0..4).map(|_| {
            looked(&clocks, |vcpu| match vcpu {
                2 => Err(closed(2)),
                _ => Ok(500),
            })
        });
        assert_eq!(looks.collect::<Vec<_>>(), [[2], [0], [1], [2]]);
        let nobody = VcpuClocks::new(3, HOST);
        assert_eq!(looked(&nobody, |_| Ok(1)), [0u16; 0]);
        look_at_all(&nobody, |_| panic!("they are taken for the host's"));
    }

    #[test]
    fn where_one_was_set_all_are_looked_at() {
        let clocks = begun(None, alike);
        assert_eq!(looked(&clocks, |_| Ok(900)), [0, 1, 2]);
        assert_eq!(looked(&clocks, |_| Ok(900)), [0], "that is known now");
        let mut all = Vec::new();
        look_at_all(&clocks, |vcpu| {
            all.push(vcpu);
            Ok(900)
        });
        assert_eq!(all, [0, 1, 2]);
    }

    /// It was once the host's: then all were said to differ.
    #[test]
    fn of_one_that_is_closed_nothing_is_known() {
        let clocks = begun(None, |vcpu| match vcpu {
            1 => Err(closed(1)),
            _ => alike(vcpu),
        });
        assert!(!is_found_set(&clocks, 1, &mut |_| Ok(500)), "as the others");
        let others = VcpuClocks::new(3, HOST);
        let gone = || ForeignError::NoProcess { pid: 1 };
        assert!(begin(&others, None, 0, |_| Err(gone())).is_err());
        assert!(!others.is_begun());
    }

    #[test]
    fn one_that_runs_otherwise_is_told() {
        let of_host = |khz| HostSpeed::of(khz, 250);
        assert_eq!(begun(Some(of_host(1000)), alike).other_speed(), None);
        assert_eq!(begun(None, alike).other_speed(), None, "nobody knows");
        let clocks = begun(Some(of_host(2000)), |vcpu| match vcpu {
            0 => Err(closed(0)),
            _ => alike(vcpu),
        });
        assert_eq!(clocks.other_speed(), Some((1, [1000, 2000])));
    }
}
