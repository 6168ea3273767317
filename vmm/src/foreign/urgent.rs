//! A thread that holds the vCPUs of a guest comes before everybody else on its CPU while it does.
//!
//! The guest stands still until that thread is done. Without this, the first vCPU that is let go takes its CPU away from it
//! and the others stand still for as long as that one may stay there: milliseconds (half of the pauses on a host with as many busy vCPUs as CPUs). Who may not ask for it does without.

use std::marker::PhantomData;

/// The calling thread is real-time (sched(7)), at the lowest priority of those, until this is dropped. Threads that it makes
/// meanwhile are not.
#[derive(Debug)]
pub(super) struct Urgent {
    /// What it was; none when it stays that.
    before: Option<libc::c_int>,
    /// It is about the thread that has made it.
    _here: PhantomData<*const ()>,
}

impl Urgent {
    /// From now on. A thread that is real-time already stays what it is.
    pub fn now() -> Self {
        // SAFETY: the call reads what this thread is, and changes nothing.
        let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        let is_usual = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy);
        let before = (is_usual && set(libc::SCHED_FIFO, 1)).then_some(policy);
        Self {
            before,
            _here: PhantomData,
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(policy) = self.before {
            // Nobody is refused to become less.
            set(policy, 0);
        }
    }
}

/// Makes this thread so. False when it is not allowed to.
fn set(policy: libc::c_int, priority: libc::c_int) -> bool {
    let priority = libc::sched_param {
        sched_priority: priority,
    };
    // Only who has a right that we may not have can take this flag off again: it stays, and does nothing to a usual thread.
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call reads `priority`, which outlives it, and changes when this thread is executed, not what.
    unsafe { libc::sched_setscheduler(0, policy, &raw const priority) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: the call reads what this thread is.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn a_thread_is_urgent_as_long_as_it_is_asked_for_and_alone() {
        let before = policy();
        let urgent = Urgent::now();
        // Who may not is told by the same call.
        let is_allowed = urgent.before.is_some();
        assert_eq!(policy() == libc::SCHED_FIFO, is_allowed);
        assert_eq!(std::thread::spawn(policy).join().unwrap(), before);
        let twice = Urgent::now();
        drop(twice);
        assert_eq!(policy() == libc::SCHED_FIFO, is_allowed);
        drop(urgent);
        assert_eq!(policy(), before);
    }
}
