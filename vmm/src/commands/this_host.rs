//! Who works for tracing here.

use crate::clock::HOST;
use crate::foreign::{rest, wait_and_let_go};
use crate::host::pollers::Threads;
use tracer::clock::HostClock;
use tracer::tracing::Host;

/// Its clock. Who rests by it may have threads of a VMM to let go.
pub const CLOCK: HostClock = HostClock { rest, ..HOST };

/// This host, and the command that was given.
pub fn this_host() -> Host {
    Host {
        clock: CLOCK,
        pollers: Box::new(Threads::of_this_host().waited_for(wait_and_let_go)),
        command_line: command_line(),
    }
}

/// Of this process; arguments need not be text.
fn command_line() -> String {
    let arguments = std::env::args_os().map(|one| one.to_string_lossy().into_owned());
    arguments.collect::<Vec<_>>().join(" ")
}
