//! `vmm`: boots a guest on KVM and traces its functions from outside.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    // One line per message, like those of any other tool; RUST_LOG shows more of them.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format(|out, record| writeln!(out, "vmm: {}", record.args()))
        .init();
    vmm::cli::main().into()
}
