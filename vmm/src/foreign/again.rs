//! A pause that is tried again: at a moment in which a vCPU executes a guest of the guest, or its firmware, its registers are not its
//! kernel's. Between two attempts the guest runs as long as it has stood still.

use std::time::{Duration, Instant};

use tracer::guest::StopError;

use super::error::ForeignError;
use super::held;

/// One vCPU was elsewhere than in its kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nested {
    /// Which of them.
    pub vcpu: usize,
    /// For how long the guest stood still for that.
    pub stood: Duration,
}

impl Nested {
    fn for_all(self, patience: Duration) -> StopError {
        StopError::Nested {
            vcpu: u16::try_from(self.vcpu).unwrap_or(u16::MAX),
            deadline: patience,
        }
    }
}

/// An attempt with less time than this left may be late for want of it.
const LITTLE: Duration = Duration::from_millis(10);

/// Tries until there is what is wanted, for so long.
///
/// # Errors
/// [`StopError::Nested`], or what `missed` says of what an attempt came to.
pub(super) fn until_outside<T>(
    patience: Duration,
    mut attempt: impl FnMut(Instant) -> Result<Result<T, Nested>, ForeignError>,
    missed: impl Fn(&ForeignError) -> StopError,
) -> Result<T, StopError> {
    let deadline = Instant::now() + patience;
    let mut met: Option<Nested> = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let had_time = |nested: &Nested| left > nested.stood.max(LITTLE);
        let nested = match (attempt(deadline), met) {
            (Ok(Ok(outside)), _) => return Ok(outside),
            (Ok(Err(nested)), _) => nested,
            // It was begun too late: those before it say why.
            (Err(ForeignError::Late { .. }), Some(nested)) if !had_time(&nested) => {
                return Err(nested.for_all(patience));
            }
            (Err(error), _) => return Err(missed(&error)),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let rest = nested.stood.min(left);
        held::rest(rest);
        if Instant::now() >= deadline {
            return Err(nested.for_all(patience));
        }
        met = Some(nested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::stuck::Stuck;

    const NEVER: Duration = Duration::from_secs(300);

    fn nested<T>(stood: Duration) -> Result<Result<T, Nested>, ForeignError> {
        Ok(Err(Nested { vcpu: 3, stood }))
    }

    fn late<T>() -> Result<T, ForeignError> {
        let what = "";
        Err(ForeignError::Late { thread: 1, what })
    }

    fn missed(error: &ForeignError) -> StopError {
        let why = error.to_string();
        StopError::Refused { why }
    }

    fn is_nested(tried: &Result<(), StopError>, patience: Duration) -> bool {
        *tried
            == Err(StopError::Nested {
                vcpu: 3,
                deadline: patience,
            })
    }

    /// It was said after twice the time, and then that a thread was late.
    #[test]
    fn after_its_time_a_guest_that_stood_for_long_is_not_let_run_for_as_long() {
        const LONG: Duration = Duration::from_secs(20);
        let begun = Instant::now();
        let patience = Duration::from_millis(10);
        let mut attempts = 0;
        let tried = until_outside(
            patience,
            |_| {
                attempts += 1;
                nested(LONG)
            },
            missed,
        );
        assert!(is_nested(&tried, patience), "{tried:?}");
        assert_eq!(attempts, 1);
        assert!(begun.elapsed() >= patience && begun.elapsed() < LONG);
    }

    #[test]
    fn an_attempt_that_was_begun_too_late_is_not_what_is_told() {
        let after_nested = |patience| {
            let mut attempts = 0;
            let attempt = |_| {
                attempts += 1;
                match attempts {
                    1 => nested(Duration::ZERO),
                    _ => late(),
                }
            };
            until_outside(patience, attempt, missed)
        };
        let patience = LITTLE / 2;
        let tried = after_nested(patience);
        assert!(is_nested(&tried, patience), "{tried:?}");
        // One that had all the time there is was late by itself.
        let alone = until_outside(NEVER, |_| late::<Result<(), _>>(), missed);
        for tried in [after_nested(NEVER), alone] {
            assert!(matches!(tried, Err(StopError::Refused { .. })), "{tried:?}");
        }
    }

    /// It stood until the guest did not have to be stopped any more.
    #[test]
    fn who_was_late_goes_on_between_two_attempts() {
        let stuck = Stuck::late();
        stuck.is_to_go_on();
        let status = format!("/proc/{}/status", stuck.number());
        let attempt = |_| {
            let status = std::fs::read_to_string(&status).unwrap();
            match status.contains("TracerPid:\t0\n") {
                true => Ok(Ok(())),
                false => nested(Duration::from_millis(1)),
            }
        };
        until_outside(NEVER, attempt, missed).unwrap();
        stuck.goes_on();
    }
}
