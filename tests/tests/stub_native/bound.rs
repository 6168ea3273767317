//! A bound for code that is called: what does not come back fails the test, it does not hang it.
//!
//! Counted is the processor time of the thread, so that a busy machine does not matter. When it is used up the process
//! ends with SIGXCPU, "CPU time limit exceeded": there is nobody to return to in the middle of such code.

/// Far more than any call needs.
const SECONDS: i64 = 20;

/// While this lives.
pub struct Bound(libc::timer_t);

impl Bound {
    pub fn begin() -> Self {
        // SAFETY: all zeros are a `sigevent`.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGXCPU;
        let mut timer: libc::timer_t = std::ptr::null_mut();
        let clock = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: both are this function's own, and written to or read in the call only.
        let made = unsafe { libc::timer_create(clock, &raw mut event, &raw mut timer) };
        assert_eq!(made, 0, "timer_create");
        let none = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = libc::itimerspec {
            it_interval: none,
            it_value: libc::timespec {
                tv_sec: SECONDS,
                ..none
            },
        };
        // SAFETY: the timer was made above; the times are read in the call only.
        let set = unsafe { libc::timer_settime(timer, 0, &raw const once, std::ptr::null_mut()) };
        assert_eq!(set, 0, "timer_settime");
        Self(timer)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's own.
        unsafe { libc::timer_delete(self.0) };
    }
}
