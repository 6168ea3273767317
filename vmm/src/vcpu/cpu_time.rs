//! How much CPU time a vCPU's thread has used: a thread that is halted, parked or preempted uses none.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// The CPU time of one thread.
#[derive(Debug)]
pub struct CpuTime(Of);

#[derive(Debug)]
enum Of {
    /// A thread of ours: its clock.
    Clock(libc::clockid_t),
    /// A thread of another process, whose clocks are not for us: the file that says it. None when there is none.
    Process(Option<File>),
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
    pub fn of_process(pid: i32, thread: i32) -> Self {
        Self(Of::Process(
            File::open(format!("/proc/{pid}/task/{thread}/schedstat")).ok(),
        ))
    }

    /// Of the calling thread.
    #[cfg(test)]
    pub(crate) const fn own() -> Self {
        Self(Of::Clock(libc::CLOCK_THREAD_CPUTIME_ID))
    }

    /// Nanoseconds so far; 0 once the thread has ended.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        let clock = match &self.0 {
            Of::Clock(clock) => *clock,
            Of::Process(file) => return file.as_ref().and_then(said_in).unwrap_or_default(),
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
fn said_in(schedstat: &File) -> Option<u64> {
    // Three numbers.
    let mut bytes = [0; 64];
    let count = schedstat.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(bytes.get(..count)?).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_thread_says_more_as_it_works_and_nothing_once_it_has_ended() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (say, said) = std::sync::mpsc::channel();
        let working = std::thread::spawn(move || {
            // SAFETY: the call takes nothing and only returns a number.
            say.send(unsafe { libc::gettid() }).unwrap();
            while told.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        let pid = i32::try_from(std::process::id()).unwrap();
        let time = CpuTime::of_process(pid, said.recv().unwrap());
        let first = time.nanoseconds();
        while time.nanoseconds() <= first {
            std::thread::yield_now();
        }
        tell.send(()).unwrap();
        working.join().unwrap();
        // The system lets go of it after that.
        while time.nanoseconds() != 0 {
            std::thread::yield_now();
        }
    }

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
        // The system lets go of it after that.
        while time.nanoseconds() != 0 {
            std::thread::yield_now();
        }
    }
}
