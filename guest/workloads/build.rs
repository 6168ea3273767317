//! Compiles the C workloads three times, once per way in which C compilers mark function entries, and
//! writes the 10,000 functions of the workload `many`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

/// Prefix of the functions, and the flags that mark their entries.
const WAYS: [(&str, &[&str]); 3] = [
    ("fentry", &["-pg", "-mfentry", "-mrecord-mcount"]),
    ("mcount", &["-pg"]),
    ("patchable", &["-fpatchable-function-entry=5"]),
];

const SOURCES: [&str; 3] = ["c/tree.c", "c/floats.c", "c/marks.c"];

/// The tree without patch sites, to compare with: the calls of the last two are left alone, because they
/// call something that is no profiling function.
const UNTRACED: [(&str, &[&str]); 4] = [
    ("base", &["-fomit-frame-pointer"]),
    (
        "frame",
        &["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"],
    ),
    ("call", &["-pg"]),
    (
        "fentry_call",
        &["-pg", "-mfentry", "-mfentry-name=returns_at_once"],
    ),
];

/// Whatever a distribution's gcc does by default, the result is the same.
const FLAGS: [&str; 11] = [
    "-O2",
    "-Wall",
    "-ffreestanding",
    "-fno-pic",
    "-fno-pie",
    "-mcmodel=kernel",
    "-fcf-protection=none",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-Wextra",
    "-Werror",
];

/// The values that probes find, as two compilers would leave them: the debug information of both versions.
const VALUES: [(&str, &[&str]); 2] = [
    (
        "unoptimised",
        &["-O0", "-gdwarf-4", "-pg", "-mfentry", "-mrecord-mcount"],
    ),
    ("optimised", &["-gdwarf-5", "-fpatchable-function-entry=5"]),
];

const MANY: usize = 10_000;

/// Calls through pointers as they are, and with retpolines.
const DISPATCH: [(&str, &[&str]); 2] = [
    ("plain", &["-mindirect-branch=keep"]),
    ("retpoline", &["-mindirect-branch=thunk"]),
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var_os("OUT_DIR").ok_or(io::Error::other("cargo sets OUT_DIR"))?;
    let out = Path::new(&out);
    for (prefix, way) in WAYS {
        compile(prefix, way, &SOURCES);
    }
    for (prefix, way) in UNTRACED {
        compile(prefix, way, &SOURCES[..1]);
    }
    for (prefix, way) in VALUES {
        compile(prefix, way, &["c/values.c"]);
    }
    for (prefix, way) in DISPATCH {
        compile(prefix, way, &["c/dispatch.c"]);
    }
    rename(&out.join("libguest_call.a"), "mcount", "returns_at_once")?;
    fs::write(out.join("many.rs"), many())
}

fn compile(prefix: &str, way: &[&str], sources: &[&str]) {
    let mut build = cc::Build::new();
    build
        .no_default_flags(true)
        .inherit_rustflags(false)
        .flag("-m64");
    for flag in FLAGS.iter().chain(way) {
        build.flag(flag);
    }
    build.define("PREFIX", prefix).files(sources);
    build.compile(&format!("guest_{prefix}"));
}

/// Has the objects of a library refer to another symbol: gcc has no option for the name of `mcount`.
fn rename(library: &Path, from: &str, to: &str) -> io::Result<()> {
    let names = format!("{from}={to}");
    let status = Command::new("objcopy")
        .args(["--redefine-sym", &names])
        .arg(library)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "objcopy {}: {status}",
            library.display()
        )))
    }
}

/// Each function has a constant of its own, so that no two are the same.
fn many() -> String {
    let mut text = String::new();
    for number in 0..MANY {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "#[unsafe(no_mangle)]\n#[inline(never)]\nextern \"C\" fn many_{number:04}(value: u64) -> u64 {{\n    \
             opaque(value) ^ {}\n}}",
            number * 2 + 1
        );
    }
    let _ = writeln!(
        text,
        "/// All of them, by number.\npub static MANY: [extern \"C\" fn(u64) -> u64; {MANY}] = ["
    );
    for number in 0..MANY {
        let _ = writeln!(text, "    many_{number:04},");
    }
    text.push_str("];\n");
    text
}
