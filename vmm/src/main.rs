//! `vmm`: boots a guest on KVM and traces its functions from outside.

use std::io::Write;
use std::process::ExitCode;

use terms::printable::masked;

fn main() -> ExitCode {
    // One line per message, like those of any other tool; RUST_LOG shows more of them. What a guest or a file has put
    // into it does nothing to a terminal.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info"))
        .format(|out, record| writeln!(out, "vmm: {}", masked(&record.args().to_string())))
        .init();
    // Traces hold what was in a guest's memory: what this process makes is its user's alone.
    vmm::files::keep_private();
    vmm::files::open_many();
    vmm::cli::main().into()
}
