//! The requests that the library for ptrace lacks (ptrace(2)): the signals that a held thread blocks, and its extended
//! registers.

use std::io;

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

fn done(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
