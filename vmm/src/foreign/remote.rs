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

/// Pieces that the kernel takes in one call (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// Copies memory of process `pid` from many places, as few calls as there can be.
///
/// # Errors
/// As [`read`]; some may have been copied.
pub fn read_all(pid: i32, pieces: &mut [(u64, &mut [u8])]) -> Result<(), ForeignError> {
    for pieces in pieces.chunks_mut(PIECES_MAX) {
        let there = pieces.iter().map(|(at, bytes)| remote(*at, bytes.len()));
        let there: Vec<RemoteIoVec> = there.collect();
        let at = pieces.first().map_or(0, |(at, _)| *at);
        let here = pieces.iter_mut().map(|(_, bytes)| IoSliceMut::new(bytes));
        let mut here: Vec<IoSliceMut<'_>> = here.collect();
        let bytes = there.iter().map(|piece| piece.len).sum();
        let read = process_vm_readv(Pid::from_raw(pid), &mut here, &there);
        whole(pid, at, bytes, read)?;
    }
    Ok(())
}

/// Copies to many places in the memory of process `pid`.
///
/// # Errors
/// As [`write`]; some may have been copied.
pub fn write_all(pid: i32, pieces: &[(u64, &[u8])]) -> Result<(), ForeignError> {
    for pieces in pieces.chunks(PIECES_MAX) {
        let there = pieces.iter().map(|(at, bytes)| remote(*at, bytes.len()));
        let there: Vec<RemoteIoVec> = there.collect();
        let here = pieces.iter().map(|(_, bytes)| IoSlice::new(bytes));
        let here: Vec<IoSlice<'_>> = here.collect();
        let at = pieces.first().map_or(0, |(at, _)| *at);
        let bytes = there.iter().map(|piece| piece.len).sum();
        let written = process_vm_writev(Pid::from_raw(pid), &here, &there);
        whole(pid, at, bytes, written)?;
    }
    Ok(())
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

    #[test]
    fn more_pieces_than_one_call_takes_are_copied_each_to_its_place() {
        let own = std::process::id().cast_signed();
        let mut there = vec![0u8; 3 * PIECES_MAX];
        let at = there.as_mut_ptr() as u64;
        let new: Vec<[u8; 2]> = (0..=PIECES_MAX).map(|n| [n.to_le_bytes()[0], 9]).collect();
        let place = |number: usize| at + 2 * number as u64;
        let pieces = new.iter().enumerate();
        let pieces: Vec<(u64, &[u8])> = pieces
            .map(|(number, bytes)| (place(number), &bytes[..]))
            .collect();
        write_all(own, &pieces).unwrap();
        let mut back = vec![[0u8; 2]; new.len()];
        let pieces = back.iter_mut().enumerate();
        let mut pieces: Vec<(u64, &mut [u8])> = pieces
            .map(|(number, bytes)| (place(number), &mut bytes[..]))
            .collect();
        read_all(own, &mut pieces).unwrap();
        assert_eq!(back, new);
        assert_eq!(there[2 * new.len()..], vec![0; there.len() - 2 * new.len()]);
        let nowhere: [(u64, &[u8]); 2] = [(at, &[1]), (16, &[1])];
        write_all(own, &nowhere).unwrap_err();
    }
}
