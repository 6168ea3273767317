//! Whether two descriptors of another process are of one open file (kcmp(2)).

use std::io;

/// `KCMP_FILE` (linux/kcmp.h).
const FILE: libc::c_int = 0;

/// A descriptor of a process, by both numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Descriptor {
    /// The process.
    pub pid: i32,
    /// Its number there.
    pub fd: i32,
}

/// Whether these are of one open file, as duplicates are.
///
/// # Errors
/// What the system said.
pub(super) fn are_same(one: Descriptor, other: Descriptor) -> io::Result<bool> {
    let (pid, fd) = (one.pid, one.fd);
    // SAFETY: it takes numbers alone, and touches no memory of ours.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, other.pid, FILE, fd, other.fd) } {
        0 => Ok(true),
        order if order > 0 => Ok(false),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_duplicate_is_the_same_and_what_cannot_be_told_is_neither() {
        let open = || File::open("/dev/null").unwrap();
        let (one, other) = (open(), open());
        let duplicate = one.try_clone().unwrap();
        let pid = std::process::id().cast_signed();
        let own = |fd| Descriptor { pid, fd };
        let is_one = |with: &File| are_same(own(one.as_raw_fd()), own(with.as_raw_fd())).unwrap();
        assert!(is_one(&duplicate));
        assert!(!is_one(&other));
        are_same(own(one.as_raw_fd()), own(-1)).unwrap_err();
    }
}
