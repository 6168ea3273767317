//! Whether somebody's guest stands still because of us. Nobody stops this process meanwhile (Ctrl-Z): the guest would stand until
//! somebody has it go on.

use std::marker::PhantomData;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many guests do.
static STANDING: Mutex<usize> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();

/// Few pauses of ours are longer: those of who attaches or leaves, and one that a user has asked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether there is something else to do.
const LOOK: Duration = Duration::from_millis(100);

/// A guest stands still until this is dropped.
#[derive(Debug)]
pub(super) struct Standing {
    /// As long as the thread holds it that has stopped it.
    _here: PhantomData<*const ()>,
}

impl Standing {
    /// From now on.
    pub fn now() -> Self {
        *standing() += 1;
        Self { _here: PhantomData }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut standing = standing();
        *standing -= 1;
        // Each thread that is held counts: who waits waits for the last.
        if *standing == 0 {
            FEWER.notify_all();
        }
    }
}

/// Does `what` at a moment at which no guest stands still because of us, and none is stopped until it is done. Five seconds
/// after it was `begun` it is done all the same; not at all once there `is_else` to do. Whether it was done.
pub fn while_nobody_stands(
    what: impl FnOnce(),
    begun: Instant,
    is_else: impl Fn() -> bool,
) -> bool {
    let mut held = standing();
    while *held > 0 && begun.elapsed() < PATIENCE {
        if is_else() {
            return false;
        }
        let waited = FEWER.wait_timeout_while(held, LOOK, |standing| *standing > 0);
        held = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    if *held > 0 {
        log::warn!("a guest is paused, and stays so until this continues");
    }
    what();
    drop(held);
    true
}

/// What is there is whole whoever has panicked.
fn standing() -> MutexGuard<'static, usize> {
    STANDING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_waits_until_nobody_stands_is_done_after_that() {
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let (begins, has_begun) = channel();
        let held = Standing::now();
        let waits = std::thread::spawn(move || {
            begins.send(()).unwrap();
            let mut seen = None;
            let never = || false;
            let sees = || seen = Some(IS_OVER.load(Ordering::SeqCst));
            assert!(while_nobody_stands(sees, Instant::now(), never));
            seen
        });
        has_begun.recv().unwrap();
        IS_OVER.store(true, Ordering::SeqCst);
        drop(held);
        assert_eq!(waits.join().unwrap(), Some(true));
    }

    /// Ctrl-C was not heard meanwhile.
    #[test]
    fn who_waits_until_nobody_stands_gives_up_for_something_else() {
        let _held = Standing::now();
        let never = || unreachable!("a guest stands");
        assert!(!while_nobody_stands(never, Instant::now(), || true));
    }

    /// Who pressed Ctrl-Z again and again began to wait anew each time.
    #[test]
    fn who_was_asked_long_ago_waits_no_longer() {
        let _held = Standing::now();
        let begun = Instant::now().checked_sub(PATIENCE).unwrap();
        let mut is_done = false;
        assert!(while_nobody_stands(|| is_done = true, begun, || true));
        assert!(is_done);
    }
}
