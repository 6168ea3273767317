//! The memory of another process, read and written without stopping it.

use std::io::{self, IoSlice, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use super::error::ForeignError;

/// Copies memory of process `pid` at `at` into `into`.
///
/// # Errors
/// [`ForeignError::Access`] when not all of it is there.
pub fn read(pid: i32, at: u64, into: &mut [u8]) -> Result<(), ForeignError> {
    let bytes = into.len();
    let there = [remote(at, bytes)];
    let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(into)], &there);
    whole(pid, at, bytes, read)
}

/// Copies `from` into the memory of process `pid` at `at`.
///
/// # Errors
/// [`ForeignError::Access`] when not all of it can be written.
pub fn write(pid: i32, at: u64, from: &[u8]) -> Result<(), ForeignError> {
    let there = [remote(at, from.len())];
    let written = process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(from)], &there);
    whole(pid, at, from.len(), written)
}

fn remote(at: u64, bytes: usize) -> RemoteIoVec {
    RemoteIoVec {
        base: usize::try_from(at).unwrap_or(usize::MAX),
        len: bytes,
    }
}

fn whole(pid: i32, at: u64, bytes: usize, done: nix::Result<usize>) -> Result<(), ForeignError> {
    let source = match done {
        Ok(done) if done == bytes => return Ok(()),
        Ok(_) => io::Error::from_raw_os_error(libc::EFAULT),
        Err(errno) => errno.into(),
    };
    Err(ForeignError::Access {
        pid,
        at,
        bytes,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_copied_whole_or_not_at_all() {
        let own = std::process::id().cast_signed();
        let mut there = vec![7u8; 4096];
        let at = there.as_mut_ptr() as u64;
        write(own, at + 1, &[1, 2, 3]).unwrap();
        let mut back = [0; 5];
        read(own, at, &mut back).unwrap();
        assert_eq!(back, [7, 1, 2, 3, 7]);
        let nowhere = read(own, 16, &mut back);
        assert!(matches!(nowhere, Err(ForeignError::Access { at: 16, .. })));
        read(own, u64::MAX - 2, &mut back).unwrap_err();
    }
}
