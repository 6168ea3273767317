//! What a user can do about a refusal of the system. A limit of this process is not mended by what
//! `vmm doctor` looks for.

/// What mends this error of the system, as the end of a sentence.
#[must_use]
pub fn of_errno(errno: i32) -> &'static str {
    match errno {
        libc::EMFILE => "this process may not open more files: raise `ulimit -n`",
        libc::ENFILE => "this host has no more room for open files: raise fs.file-max",
        libc::ENOMEM => "there is no more memory for it: ask for less, or raise `ulimit -v`",
        libc::EAGAIN => "this user may have no more threads: raise `ulimit -u`",
        _ => "`vmm doctor` says what this host lacks",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_the_process_is_not_blamed_on_kvm() {
        assert!(of_errno(libc::EMFILE).contains("ulimit -n"));
        assert!(of_errno(libc::ENOMEM).contains("ulimit -v"));
        assert!(of_errno(libc::EINVAL).contains("vmm doctor"));
    }
}
