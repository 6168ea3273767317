//! The requests that the library for ptrace lacks (ptrace(2)): the signals that a held thread blocks, and its extended
//! registers. And to wait for the next stop of any, for a time.

use std::io;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// Bytes of a signal set, as the kernel has it.
const SET_BYTES: usize = size_of::<u64>();

/// More than any processor's extended registers take.
const EXTENDED_MAX: usize = 16 << 10;

/// Reads the signals that it blocks.
///
/// # Errors
/// What the system said.
pub fn signal_mask(thread: i32, mask: &mut u64) -> io::Result<()> {
    // SAFETY: the request writes `SET_BYTES` bytes to `mask`, which outlives the call, and nothing else of ours.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETSIGMASK,
            thread,
            SET_BYTES,
            std::ptr::from_mut(mask),
        )
    };
    done(result)
}

/// Sets the signals that it blocks.
///
/// # Errors
/// What the system said.
pub fn set_signal_mask(thread: i32, mask: u64) -> io::Result<()> {
    // SAFETY: the request reads `SET_BYTES` bytes from `mask`, which outlives the call.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_SETSIGMASK,
            thread,
            SET_BYTES,
            std::ptr::from_ref(&mask),
        )
    };
    done(result)
}

/// Its extended registers: all that XSAVE saves, each at its own place (`NT_X86_XSTATE`).
///
/// # Errors
/// What the system said.
pub fn extended_registers(thread: i32) -> io::Result<Vec<u8>> {
    const XSTATE: usize = 0x202;
    let mut bytes = vec![0u8; EXTENDED_MAX];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the request writes at most `iov_len` bytes to `bytes`, and to `part` how many; both outlive the call.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETREGSET,
            thread,
            XSTATE,
            std::ptr::from_mut(&mut part),
        )
    };
    done(result)?;
    bytes.truncate(part.iov_len);
    Ok(bytes)
}

/// What has become of a thread that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing since it was seen last.
    Nothing,
    /// It has stopped: for this signal, or with one of these bits beside it ([`SYSTEM_CALL`], an event above them).
    Stopped(i32),
    /// It has ended.
    Ended,
}

/// Beside SIGTRAP: at the beginning or the end of a system call (`PTRACE_O_TRACESYSGOOD`).
pub const SYSTEM_CALL: i32 = libc::SIGTRAP | 0x80;

/// Looks at a thread that is held. The library's own knows no signal above 31, and loses the stop with it; VMMs kick their vCPUs by
/// real-time ones.
///
/// # Errors
/// What the system said.
pub fn look(thread: i32) -> io::Result<Seen> {
    let mut status = 0;
    // SAFETY: the call writes `status`, which outlives it, and nothing else of ours.
    let found = unsafe { libc::waitpid(thread, &raw mut status, libc::WNOHANG | libc::__WALL) };
    match found {
        0 => Ok(Seen::Nothing),
        -1 => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => Ok(Seen::Nothing),
                _ => Err(error),
            }
        }
        _ if libc::WIFSTOPPED(status) => Ok(Seen::Stopped(status >> 8)),
        _ if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) => Ok(Seen::Ended),
        _ => Ok(Seen::Nothing),
    }
}

/// How a thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Until it stops where it is asked to.
    Freely,
    /// To the next beginning or end of a system call.
    ToSystemCall,
    /// For good: it is not held any more.
    Released,
}

/// Has a thread that stands go on, with this signal; 0 for none.
///
/// # Errors
/// What the system said.
pub fn go_on(thread: i32, how: On, signal: i32) -> io::Result<()> {
    let request = match how {
        On::Freely => libc::PTRACE_CONT,
        On::ToSystemCall => libc::PTRACE_SYSCALL,
        On::Released => libc::PTRACE_DETACH,
    };
    // SAFETY: the request takes a number, and neither reads nor writes memory of ours.
    let result = unsafe { libc::ptrace(request, thread, 0usize, signal as libc::c_long) };
    done(result)
}

/// Stops of what this thread holds are to be waited for by [`wait_for_stop`]: they come as signals, which are kept until then.
/// All threads of the process must keep them (`signals.rs`), or one may lose them.
pub fn keep_stops() {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    // Refused are only requests that there are not.
    let _ = set.thread_block();
}

/// Waits until something that this process holds has stopped since it was waited for, `at_most` so long.
pub fn wait_for_stop(at_most: Duration) {
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    let at_most = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // SAFETY: the call reads the set and the time, which outlive it, and is told to write nothing.
    unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &raw const at_most) };
}

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
