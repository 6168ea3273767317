//! Is there a KVM at all, and may we use it?

use kvm_ioctls::Kvm;

use super::check::{Check, NEWER_KVM, Need, Subject};
use crate::remedy;

/// The only API version that there has been since 2007.
const API_VERSION: i32 = 12;

const PRESENT: Subject = Subject {
    name: "/dev/kvm is there",
    need: Need::Required,
    means: "this machine offers no virtualisation",
    mend: "turn on VT-x or AMD-V in the firmware (in a cloud: nested virtualisation), then \
           `sudo modprobe kvm-intel` or `sudo modprobe kvm-amd`; or use the box: \
           images/box/run target/release/vmm ...",
};

const PERMITTED: Subject = Subject {
    name: "/dev/kvm may be opened",
    need: Need::Required,
    means: "this user may not use KVM",
    mend: "`sudo usermod -aG kvm $USER` and log in again; root may, but `vmm run` refuses root without --allow-root",
};

const VERSION: Subject = Subject {
    name: "KVM's API version is 12",
    need: Need::Required,
    means: "this KVM speaks another language",
    mend: NEWER_KVM,
};

/// Looks at the device; gives KVM when there is one to continue with.
pub(super) fn look(checks: &mut Vec<Check>) -> Option<Kvm> {
    let opened = Kvm::new();
    match &opened {
        Ok(_) => {
            checks.push(PRESENT.check(true, "yes"));
            checks.push(PERMITTED.check(true, "yes"));
        }
        Err(error) if matches!(error.errno(), libc::EACCES | libc::EPERM) => {
            checks.push(PRESENT.check(true, "yes"));
            let check = PERMITTED.check(false, error.to_string());
            checks.push(Check {
                mend: remedy::no_group().unwrap_or(check.mend),
                ..check
            });
        }
        Err(error) => checks.push(PRESENT.check(false, error.to_string())),
    }
    let kvm = opened.ok()?;
    let version = kvm.get_api_version();
    let found = match version {
        ..0 => "none: this is not KVM's device".to_owned(),
        version => version.to_string(),
    };
    checks.push(VERSION.check(version == API_VERSION, found));
    (version == API_VERSION).then_some(kvm)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root was advised, and then refused.
    #[test]
    fn who_thinks_of_root_is_told_what_that_takes() {
        assert!(PERMITTED.mend.contains("without --allow-root"));
    }
}
