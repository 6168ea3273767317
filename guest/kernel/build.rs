//! Hands the linker script to the linker.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rerun-if-changed=link.ld");
    for arg in ["-nostdlib", "-nostartfiles", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={arg}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-z,max-page-size=0x1000,-z,norelro,--build-id=none");
    println!("cargo::rustc-link-arg-bins=-T{here}/link.ld");
}
