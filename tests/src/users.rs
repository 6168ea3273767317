//! Users that are not whoever runs the tests: root, and one that has nothing.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::output::Ended;
use crate::place::vmm;

/// Before a command in a script that root runs: a user runs it that has nothing.
pub const AS_NOBODY: &str = "exec python3 -c 'import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execvp(sys.argv[1], sys.argv[1:])'";

/// A command that root runs: by sudo, which must not ask, where this is another user.
///
/// # Panics
/// When nobody says who this is.
#[must_use]
pub fn as_root(program: &str) -> Command {
    let id = Command::new("id").arg("-u").output().expect("id starts");
    if id.stdout == b"0\n" {
        return Command::new(program);
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", program]);
    sudo
}

/// Runs these words as a user that has nothing, to their end and without input. Where it begins is named by nobody, so it does not
/// matter who may come there.
///
/// # Panics
/// When this is neither root nor may become it.
#[must_use]
pub fn nobody_runs(folder: &Path, words: &[&str]) -> Ended {
    let mut command = as_root("sh");
    let script = format!("cd \"$1\"; shift; {AS_NOBODY} \"$@\"");
    command.args(["-c", &script, "sh"]).arg(folder);
    let output = command.args(words).stdin(Stdio::null()).output();
    Ended::from(output.expect("this needs root, or sudo without password"))
}

/// Runs `vmm` with these arguments in the same way: a copy, for not everyone may come to where it was built.
///
/// # Panics
/// When this is neither root nor may become it, or there is no room for the copy.
#[must_use]
pub fn nobody_says(arguments: &[&str]) -> Ended {
    let folder = tempfile::tempdir().expect("room for a copy");
    let program = folder.path().join("vmm");
    fs::copy(vmm().get_program(), &program).expect("room for a copy");
    for path in [folder.path(), &program] {
        open_to_all(path, 0o755);
    }
    nobody_runs(folder.path(), &[&["./vmm"], arguments].concat())
}

/// Gives a file of ours this mode.
///
/// # Panics
/// When it is not ours.
pub fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}
