//! The signals that a held thread blocks (ptrace(2), `PTRACE_GETSIGMASK`): the one request that the library for ptrace lacks.

use std::io;

/// Bytes of a signal set, as the kernel has it.
const SET_BYTES: usize = size_of::<u64>();

/// Reads them.
///
/// # Errors
/// What the system said.
pub fn get(thread: i32, mask: &mut u64) -> io::Result<()> {
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

/// Sets them.
///
/// # Errors
/// What the system said.
pub fn set(thread: i32, mask: u64) -> io::Result<()> {
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

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
