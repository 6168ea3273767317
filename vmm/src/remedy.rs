//! What a user can do about a refusal of the system. A limit of this process is not mended by what
//! `vmm doctor` looks for.

use std::os::unix::fs::MetadataExt;

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

/// What gives a user `/dev/kvm`, as the end of a sentence.
#[must_use]
pub fn of_permission() -> &'static str {
    no_group().unwrap_or(JOIN)
}

/// The same where no group helps; where it cannot be looked at, it is as it mostly is.
#[must_use]
pub fn no_group() -> Option<&'static str> {
    let device = std::fs::metadata("/dev/kvm").ok()?;
    of_group(device.gid(), device.mode())
}

/// Its group is there for that.
const JOIN: &str = "join its group (`sudo usermod -aG kvm $USER`, then log in again)";

/// What helps where the device is of this group and mode, and joining that does not: it is root's, or may not open it.
fn of_group(gid: u32, mode: u32) -> Option<&'static str> {
    let helps = gid != 0 && mode & 0o060 == 0o060;
    (!helps).then_some(
            "no group but root's may use it: give it to one (`sudo groupadd -fr kvm; sudo chown root:kvm /dev/kvm; sudo chmod 660 /dev/kvm`, until the next boot; a rule of udev does it for good) and join that (`sudo usermod -aG kvm $USER`, then log in again)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_advised_that_helps() {
        assert_eq!(of_group(108, 0o020_660), None);
        assert_eq!(of_group(108, 0o020_666), None);
        for (gid, mode) in [(0, 0o020_660), (0, 0o020_600), (108, 0o020_600)] {
            let advice = of_group(gid, mode).unwrap();
            assert!(advice.contains("chmod 660"), "{gid} {mode:o}");
        }
    }

    #[test]
    fn a_limit_of_the_process_is_not_blamed_on_kvm() {
        assert!(of_errno(libc::EMFILE).contains("ulimit -n"));
        assert!(of_errno(libc::ENOMEM).contains("ulimit -v"));
        assert!(of_errno(libc::EINVAL).contains("vmm doctor"));
    }
}
