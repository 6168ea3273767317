//! Compiles the C workloads three times, once per way in which C compilers mark function entries, and
//! writes the 10,000 functions of the workload `many`.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

/// Prefix of the functions, and the flags that mark their entries.
const WAYS: [(&str, &[&str]); 3] = [
    ("fentry", &["-pg", "-mfentry", "-mrecord-mcount"]),
    ("mcount", &["-pg"]),
    ("patchable", &["-fpatchable-function-entry=5"]),
];

const SOURCES: [&str; 2] = ["c/tree.c", "c/floats.c"];

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

const MANY: usize = 10_000;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=build.rs");
    for (prefix, way) in WAYS {
        let mut build = cc::Build::new();
        build
            .no_default_flags(true)
            .inherit_rustflags(false)
            .flag("-m64");
        for flag in FLAGS.iter().chain(way) {
            build.flag(flag);
        }
        build.define("PREFIX", prefix).files(SOURCES);
        build.compile(&format!("guest_{prefix}"));
    }
    let out = env::var_os("OUT_DIR").ok_or(io::Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&out).join("many.rs"), many())
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
