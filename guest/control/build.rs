//! Compiles and links the module that the guest loads at run time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

/// As the traced C code of the guest, each function in a section of its own.
const FLAGS: [&str; 12] = [
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fno-pic",
    "-mcmodel=kernel",
    "-fcf-protection=none",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-ffunction-sections",
    "-fpatchable-function-entry=5",
];
const LINK: [&str; 6] = [
    "-Wl,--no-warn-rwx-segments",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
];

fn main() -> io::Result<()> {
    let here = env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?;
    let modules = Path::new(&here).join("../modules");
    println!("cargo::rerun-if-changed={}", modules.display());
    let out = env::var_os("OUT_DIR").ok_or(io::Error::other("cargo sets OUT_DIR"))?;
    let module = PathBuf::from(out).join("module.elf");
    let compiler = cc::Build::new().inherit_rustflags(false).get_compiler();
    let status = Command::new(compiler.path())
        .args(FLAGS)
        .args(LINK)
        .arg("-T")
        .arg(modules.join("module.ld"))
        .args(["module.c", "unused.c"].map(|file| modules.join(file)))
        .arg("-o")
        .arg(&module)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the module: {status}")))
    }
}
