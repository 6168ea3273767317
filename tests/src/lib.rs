//! The harness of the integration tests: where the programs under test are.
//!
//! `tests/run` builds them and decides where the suites run. `tests/law.rs` needs no KVM, the suite
//! `kvm` needs one, the suite `ring0` needs one that executes ring 0.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command that runs the release build of `vmm`.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn vmm() -> Command {
    // The test program is target/debug/deps/NAME.
    let program = env::current_exe().unwrap_or_default();
    let target = program.ancestors().nth(3).unwrap_or(Path::new("target"));
    Command::new(built(target.join("release/vmm"), "make build"))
}

/// The bundled guest.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn guest() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    built(root.join("images/out/guest.elf"), "make guest")
}

/// Whether the tests run in the box, where everything takes some ten times longer.
#[must_use]
pub fn in_the_box() -> bool {
    env::var_os("EXOTRACE_PLACE").is_some_and(|place| place == "box")
}

fn built(path: PathBuf, how: &str) -> PathBuf {
    assert!(path.exists(), "{} is not there: {how}", path.display());
    path
}
