//! SIGINT, SIGTERM and SIGHUP as a file that the event loop reads, so that they end a run cleanly; and a way out
//! that does not need the loop.
//!
//! A thread of its own takes the signals. The first is passed on to the loop. With the second one the user says that
//! this takes too long, whatever the main thread does: the terminal is put back and the process ends by that signal. What
//! it had begun to write stays as it is. Ctrl-Z stops the process after the terminal was put back.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::signal::{block_signal, create_sigset, unblock_signal};

use crate::confine::{self, Role};
use crate::terminal;

/// The signals that end a run.
const WANTED: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Those that stop and continue it.
const STOPPING: [libc::c_int; 2] = [libc::SIGTSTP, libc::SIGCONT];
/// `timeout` and others send a signal twice, to the process and to its group: what comes again from the same sender
/// within this time is the same word. A terminal is nobody's process, so Ctrl-C counts each time.
const ECHO: Duration = Duration::from_millis(300);

/// The signals, readable: once one has come, for ever.
#[derive(Debug, Clone)]
pub struct Signals(Arc<EventFd>);

impl Signals {
    /// Takes the signals from now on. They are blocked in this thread, and in all threads that it creates afterwards;
    /// so is SIGXFSZ: a trace that outgrows a limit is an error of its write, not the end of the VMM. SIGCHLD is kept, too, for
    /// who waits for the stops of threads that it holds.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn take_over() -> io::Result<Self> {
        let kept = [libc::SIGXFSZ, libc::SIGCHLD];
        for signal in WANTED.into_iter().chain(STOPPING).chain(kept) {
            block_signal(signal).map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
        let arrivals = arrivals()?;
        let told = Arc::new(EventFd::new(EFD_NONBLOCK)?);
        let tell = Arc::clone(&told);
        std::thread::Builder::new()
            .name(Role::Signals.name().to_owned())
            .spawn(move || {
                confine::enter(Role::Signals);
                attend(arrivals, &tell);
            })?;
        Ok(Self(told))
    }

    /// Whether there was one.
    pub fn take(&mut self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A file whose reads wait for the next signal.
fn arrivals() -> io::Result<File> {
    let wanted = [&WANTED[..], &STOPPING].concat();
    let set =
        create_sigset(&wanted).map_err(|error| io::Error::from_raw_os_error(error.errno()))?;
    // SAFETY: `set` is an initialised signal set; the call creates a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// A signal that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrival {
    signal: u32,
    /// 0 when it was the system itself.
    sender: u32,
}

/// The thread's work.
fn attend(mut arrivals: File, tell: &EventFd) {
    let mut first: Option<(Arrival, Instant)> = None;
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    while arrivals.read_exact(&mut record).is_ok() {
        let arrival = Arrival::of(&record);
        if stops_or_continues(arrival.signal) {
            continue;
        }
        match first {
            None => {
                // Fails only when it was told 2^64 times.
                let _ = tell.write(1);
                first = Some((arrival, Instant::now()));
            }
            Some((before, since)) if arrival.is_echo(before, since.elapsed()) => {}
            Some(_) => end_now(arrival.signal),
        }
    }
}

/// Whether the signal was one of [`STOPPING`], and has done that.
fn stops_or_continues(signal: u32) -> bool {
    match libc::c_int::try_from(signal) {
        Ok(libc::SIGTSTP) => {
            terminal::lend();
            // SAFETY: the call sends a signal to this process, which stops it until it is continued.
            unsafe { libc::raise(libc::SIGSTOP) };
            true
        }
        Ok(libc::SIGCONT) => {
            terminal::take_again();
            true
        }
        _ => false,
    }
}

impl Arrival {
    /// What a record of `signalfd` says.
    fn of(record: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = record.get(at..).and_then(|rest| rest.first_chunk());
            bytes.copied().map_or(0, u32::from_ne_bytes)
        };
        Self {
            signal: word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo)),
            sender: word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_pid)),
        }
    }

    fn is_echo(self, before: Self, after: Duration) -> bool {
        self.sender != 0 && self == before && after < ECHO
    }
}

/// Ends the process as the signal does to whoever does not handle it.
fn end_now(signal: u32) {
    terminal::put_back();
    let signal = libc::c_int::try_from(signal).unwrap_or(libc::SIGTERM);
    // It may be ignored: a shell's script starts what it puts into the background so.
    // SAFETY: the call installs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let _ = unblock_signal(signal);
    // SAFETY: the call sends a signal to this process, for which nothing is installed: it does not come back.
    unsafe { libc::raise(signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sender_says_it_twice_and_a_terminal_means_it() {
        let timeout = Arrival {
            signal: 15,
            sender: 77,
        };
        let at_once = Duration::from_micros(5);
        assert!(timeout.is_echo(timeout, at_once));
        assert!(!timeout.is_echo(timeout, ECHO));
        let other = Arrival {
            sender: 78,
            ..timeout
        };
        assert!(!other.is_echo(timeout, at_once));
        let key = Arrival {
            signal: 2,
            sender: 0,
        };
        assert!(!key.is_echo(key, at_once));
    }
}
