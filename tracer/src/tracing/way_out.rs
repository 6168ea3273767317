//! Waiting for the vCPUs to leave the stubs.
//!
//! A stub compares its ring's head with the limit, and counts itself as lost an instruction or two later: by the
//! limit that it has seen. So when a limit was changed, what stubs count by the one before is complete only when each
//! vCPU has been outside of the stubs once. The guest is stopped for a moment to look, as often as it takes, up to a
//! bound. Between two looks is a rest: a vCPU that is stopped again before it has entered the guest executes nothing. A
//! thread that the guest itself has interrupted in a stub is not seen: it can stay away for as long as the guest likes.

use std::time::Duration;

use terms::addr::Gva;

use crate::guest::{Guest, StopError};
use crate::target::StoppedTarget;

/// How often is looked. A guest that spends nine tenths of its time in stubs is met inside every time once in many
/// thousands.
const LOOKS_MAX: u32 = 100;
/// The first rest between two looks. Each is twice as long as the one before, up to the longest: 1.8 s in all.
const REST: Duration = Duration::from_micros(10);
const LONGEST_REST: Duration = Duration::from_millis(20);

/// Returns when each vCPU has been outside of what `is_stub` says, or how many of them were inside whenever they were
/// looked at.
pub(super) fn leave_stubs(
    guest: &impl Guest,
    is_stub: impl Fn(Gva) -> bool,
    rest: fn(Duration),
) -> usize {
    // Whoever has not run since the limit was changed has nothing to count by it.
    if guest.is_held() {
        return 0;
    }
    let look = || {
        let stopped = guest.stop()?;
        let vcpus = stopped.vcpus().iter();
        Ok(vcpus.map(|vcpu| Gva(vcpu.rip)).collect())
    };
    still_inside(guest.vcpus().into(), is_stub, look, rest)
}

fn still_inside(
    vcpus: usize,
    is_stub: impl Fn(Gva) -> bool,
    mut look: impl FnMut() -> Result<Vec<Gva>, StopError>,
    rest: impl Fn(Duration),
) -> usize {
    let mut is_inside = vec![true; vcpus];
    let mut next = REST;
    for _ in 0..LOOKS_MAX {
        match look() {
            Ok(at) => {
                let seen = is_inside.iter_mut().zip(at);
                seen.for_each(|(is_inside, at)| *is_inside &= is_stub(at));
            }
            Err(error) => {
                log::warn!("what a dump has missed may be short: {error}");
                break;
            }
        }
        if !is_inside.contains(&true) {
            break;
        }
        rest(next);
        next = (next * 2).min(LONGEST_REST);
    }
    is_inside.into_iter().filter(|inside| *inside).count()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const STUB: Gva = Gva(0x1000);
    const ELSEWHERE: Gva = Gva(0x2000);

    fn is_stub(at: Gva) -> bool {
        at == STUB
    }

    #[test]
    fn each_vcpu_is_waited_for_until_it_was_outside_once() {
        let looks = [
            [STUB, ELSEWHERE],
            [STUB, STUB],
            [ELSEWHERE, STUB],
            [STUB, STUB],
        ];
        let next = Cell::new(0);
        let look = || {
            let at = next.replace(next.get() + 1);
            Ok(looks[at].to_vec())
        };
        assert_eq!(still_inside(2, is_stub, look, |_| {}), 0);
        assert_eq!(next.get(), 3, "looks");
    }

    #[test]
    fn one_that_is_always_inside_is_given_up_and_said() {
        let next = Cell::new(0);
        let look = || {
            next.set(next.get() + 1);
            Ok(vec![STUB, ELSEWHERE, STUB])
        };
        let rested = Cell::new(Duration::ZERO);
        let rest = |rest| rested.set(rested.get() + rest);
        assert_eq!(still_inside(3, is_stub, look, rest), 2);
        assert_eq!(next.get(), LOOKS_MAX);
        assert!((1..3).contains(&rested.get().as_secs()), "{rested:?}");
    }

    #[test]
    fn where_nobody_could_be_looked_at_all_may_be_inside() {
        let look = || {
            Err(StopError::Missed {
                vcpu: 0,
                deadline: Duration::ZERO,
            })
        };
        assert_eq!(still_inside(2, is_stub, look, |_| {}), 2);
    }
}
