//! Pauses that a vCPU misses. `vmm` gives one two seconds to leave the guest, and on a machine with much else to do, or a virtual one
//! that stands still itself, it can need more. The guest is as it was then, and whoever asks again is served: so tests do.

use std::time::{Duration, Instant};

use tracer::guest::StopError;
use vmm::breakpoint::BreakpointError;

/// Whether this says that it came to nothing because a vCPU missed a pause.
pub(crate) fn is_told(message: &str) -> bool {
    message.contains("did not pause within")
}

/// Whether no breakpoint was set because a vCPU missed a pause.
pub(crate) fn is_one(done: &Result<(), BreakpointError>) -> bool {
    matches!(
        done,
        Err(BreakpointError::Quiesce(StopError::Missed { .. }))
    )
}

/// Does it again as long as a vCPU misses its pause, and for so long at most; says how often one has.
pub(crate) fn insist<T>(
    what: &str,
    within: Duration,
    mut does: impl FnMut() -> T,
    is_missed: impl Fn(&T) -> bool,
) -> T {
    let deadline = Instant::now() + within;
    let (mut done, mut missed) = (does(), 0);
    while is_missed(&done) && Instant::now() < deadline {
        missed += 1;
        println!("{what}: a vCPU has missed its pause, {missed}");
        done = does();
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it is done where so many pauses are missed, and what comes of it.
    fn insisting(within: Duration, missed: u32) -> (u32, Result<u32, u32>) {
        let mut done = 0;
        let does = || {
            done += 1;
            if done > missed { Ok(done) } else { Err(done) }
        };
        let told = insist("this", within, does, Result::is_err);
        (done, told)
    }

    #[test]
    fn who_is_refused_for_a_missed_pause_asks_again_until_he_has_no_time_left() {
        let long = Duration::from_secs(300);
        assert_eq!(insisting(long, 0), (1, Ok(1)));
        assert_eq!(insisting(long, 3), (4, Ok(4)));
        assert_eq!(insisting(Duration::ZERO, 3), (1, Err(1)));
    }

    #[test]
    fn what_the_library_says_of_a_missed_pause_is_known() {
        let missed = StopError::Missed {
            vcpu: 1,
            deadline: Duration::from_secs(2),
        };
        assert!(is_told(&missed.to_string()));
        assert!(!is_told(&StopError::NoRegisters { vcpu: 1 }.to_string()));
        assert!(is_one(&Err(missed.into())));
        assert!(!is_one(&Ok(())));
    }
}
