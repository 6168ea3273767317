//! Waiting for a guest that changes its own text, which nobody may put anything into meanwhile.

use std::time::Duration;

use super::error::TracingError;
use crate::clock::HostClock;
use crate::engine::ApplyError;
use crate::text::poke::PokeError;

/// The first rest between two tries; each is as long as all before together, and this,
const FIRST_REST: Duration = Duration::from_millis(1);
/// but no longer than this.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// How long it is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    clock: HostClock,
    most: Duration,
}

impl Patience {
    /// Of who was asked for a change: a kernel that switches its own tracer on for all of its functions takes that long on a busy
    /// host.
    pub const fn of_who_asked(clock: HostClock) -> Self {
        Self {
            clock,
            most: Duration::from_secs(5),
        }
    }

    /// Of who looks at the guest now and then, and can come again: a vCPU may wait for him, and who changes the text for that vCPU.
    pub const fn of_a_look(clock: HostClock) -> Self {
        Self {
            clock,
            most: Duration::from_millis(20),
        }
    }

    /// Does `what`, and does it again while the guest is changing its own text, in an operation that has `rested` for so long
    /// before.
    ///
    /// # Errors
    /// Those of `what`.
    pub fn once_it_has_patched<T>(
        self,
        rested: &mut Duration,
        mut what: impl FnMut() -> Result<T, TracingError>,
    ) -> Result<T, TracingError> {
        loop {
            match what() {
                Err(error) if is_patching(&error) && *rested < self.most => {
                    let rest = (*rested + FIRST_REST).min(LONGEST_REST);
                    (self.clock.rest)(rest);
                    *rested += rest;
                }
                other => return other,
            }
        }
    }
}

/// Whether nothing was changed because the guest was changing its own text.
pub(super) fn is_patching(error: &TracingError) -> bool {
    match error {
        TracingError::Apply(ApplyError::Transaction(error)) => {
            error.stuck.is_empty() && matches!(error.cause, PokeError::GuestPatches { .. })
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terms::addr::Gva;

    use super::*;
    use crate::mock::HOST;
    use crate::text::poke::TransactionError;

    fn patching() -> TracingError {
        let cause = PokeError::GuestPatches {
            symbol: Arc::from("f"),
            at: Gva(0x1000),
        };
        TracingError::Apply(ApplyError::Transaction(TransactionError {
            cause,
            undone: 0,
            stuck: Vec::new(),
        }))
    }

    #[test]
    fn a_guest_that_patches_is_waited_for_and_not_for_ever() {
        let tries = |patience: Patience, rested: &mut Duration, until: u32| {
            let mut tries = 0;
            let done = patience.once_it_has_patched(rested, || {
                tries += 1;
                if tries < until {
                    Err(patching())
                } else {
                    Ok(())
                }
            });
            (tries, done.is_ok())
        };
        let (asked, look) = (Patience::of_who_asked(HOST), Patience::of_a_look(HOST));
        assert_eq!(tries(asked, &mut Duration::default(), 5), (5, true));
        // 127 ms in rests that grow, then 100 ms each; 31 ms.
        let rested = &mut Duration::default();
        assert_eq!(tries(asked, rested, 1000), (57, false));
        assert_eq!(tries(look, &mut Duration::default(), 1000), (6, false));
        // Not once more for each part of an operation.
        assert_eq!(tries(asked, rested, 1000), (1, false));
        let mut tries = 0;
        let refused = asked.once_it_has_patched(&mut Duration::default(), || {
            tries += 1;
            Err::<(), _>(TracingError::Apply(ApplyError::Stale))
        });
        assert_eq!((refused.is_err(), tries), (true, 1));
    }
}
