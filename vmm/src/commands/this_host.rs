//! Who works for tracing here.

use crate::clock::HOST;
use crate::host::pollers::Threads;
use tracer::tracing::Host;

/// This host, and the command that was given.
pub fn this_host() -> Host {
    Host {
        clock: HOST,
        pollers: Box::new(Threads::of_this_host()),
        command_line: command_line(),
    }
}

/// Of this process; arguments need not be text.
fn command_line() -> String {
    let arguments = std::env::args_os().map(|one| one.to_string_lossy().into_owned());
    arguments.collect::<Vec<_>>().join(" ")
}
