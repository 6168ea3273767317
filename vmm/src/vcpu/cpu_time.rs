//! How much CPU time a vCPU's thread has used: a thread that is halted, parked or preempted uses none.

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// The CPU time of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime(Of);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// A thread of ours: its clock.
    Clock(libc::clockid_t),
    /// A thread of another process, whose clocks are not for us.
    Process { pid: i32, thread: i32 },
}

impl CpuTime {
    /// Of a thread that has not been joined. None when the system does not say.
    pub(super) fn of(thread: &JoinHandle<()>) -> Option<Self> {
        let mut clock = 0;
        // SAFETY: the handle has not been joined, so the thread's identifier is valid; `clock` is
        // written by the call only.
        let failed = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) };
        (failed == 0).then_some(Self(Of::Clock(clock)))
    }

    /// Of a thread of another process.
    #[must_use]
    pub const fn of_process(pid: i32, thread: i32) -> Self {
        Self(Of::Process { pid, thread })
    }

    /// Whether it is of a thread of another process.
    #[must_use]
    pub const fn is_of_process(self) -> bool {
        matches!(self.0, Of::Process { .. })
    }

    /// Of the calling thread.
    #[cfg(test)]
    pub(crate) const fn own() -> Self {
        Self(Of::Clock(libc::CLOCK_THREAD_CPUTIME_ID))
    }

    /// Nanoseconds so far; 0 once the thread has ended.
    #[must_use]
    pub fn nanoseconds(self) -> u64 {
        let clock = match self.0 {
            Of::Clock(clock) => clock,
            Of::Process { pid, thread } => {
                return of_other(pid, thread).unwrap_or_default();
            }
        };
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` outlives the call; an unknown clock is an error, nothing else.
        if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
            return 0;
        }
        let part = |part: i64| u64::try_from(part).unwrap_or_default();
        part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
    }
}

/// What the scheduler says of a thread of another process, in nanoseconds (Documentation/scheduler/sched-stats.rst).
fn of_other(pid: i32, thread: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_one_that_waits_uses_none() {
        let own = CpuTime::own();
        let before = own.nanoseconds();
        while own.nanoseconds() < before + 1_000_000 {
            std::hint::spin_loop();
        }
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || told.recv().unwrap_or_default());
        let time = CpuTime::of(&waiting).unwrap();
        // Until it has gone to sleep, it uses some.
        let mut last = time.nanoseconds();
        loop {
            let start = own.nanoseconds();
            while own.nanoseconds() < start + 5_000_000 {
                std::hint::spin_loop();
            }
            let now = time.nanoseconds();
            if now == last {
                break;
            }
            last = now;
        }
        tell.send(()).unwrap();
        waiting.join().unwrap();
        assert_eq!(time.nanoseconds(), 0, "it has ended");
    }
}
