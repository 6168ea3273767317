//! `vmm` on a machine without devices.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::output::Ended;
use crate::place::{ALLOW_ROOT, guest, vmm};
use crate::users::as_root;

/// Runs a script as root, in a mount namespace of its own where `/dev` is empty. `$1` is `vmm`,
/// `$2` a kernel; both may be used by anyone. Root is allowed.
///
/// # Panics
/// When this is neither root nor may become it.
#[must_use]
pub fn with_empty_dev(script: &str) -> Ended {
    // Wherever this repository and its temporary files are, they are not below this `/dev`.
    let folder = tempfile::tempdir_in("/tmp").expect("room in /tmp");
    let copy = |from: &Path, name: &str| {
        let to = folder.path().join(name);
        fs::copy(from, &to).expect("room for a copy");
        to
    };
    let program = copy(vmm().get_program().as_ref(), "vmm");
    let kernel = copy(&guest(), "guest.elf");
    let open = "chmod 755 \"$(dirname \"$1\")\" \"$1\"; chmod 644 \"$2\"";
    let script =
        format!("set -e; export {ALLOW_ROOT}=1; {open}; cd /; mount -t tmpfs none /dev; {script}");
    let mut command = as_root("unshare");
    command
        .args(["-m", "sh", "-c", &script, "sh"])
        .args([program, kernel])
        .stdin(Stdio::null());
    Ended::from(
        command
            .output()
            .expect("this needs root, or sudo without password"),
    )
}
