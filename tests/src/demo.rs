//! What `make demo` and its likes show: where the tests run, they run it as well.

use std::path::Path;
use std::process::Stdio;

use crate::output::Ended;
use crate::place::{patient, vmm};

/// Runs `tests/NAME --here` to its end.
///
/// # Panics
/// When there is no shell.
#[must_use]
pub fn shown(name: &str) -> Ended {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let vmm = vmm();
    let target = Path::new(vmm.get_program()).ancestors().nth(2);
    let mut demo = patient("sh");
    demo.args([&format!("tests/{name}"), "--here"]);
    demo.current_dir(root).stdin(Stdio::null());
    demo.env("CARGO_TARGET_DIR", target.expect("a folder"));
    Ended::from(demo.output().expect("sh"))
}
