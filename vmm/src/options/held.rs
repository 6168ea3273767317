//! Whether threads are held to lists of system calls.

use clap::Args;

use crate::confine::{self, Guest, HoldError};
use crate::terminal;

/// `--no-seccomp`.
#[derive(Debug, Clone, Copy, Args)]
pub struct Held {
    /// Do not hold threads to lists of system calls, for a debugger or a report: a call that is not on the list of its
    /// thread ends the process otherwise (status 109; docs/security.md)
    #[arg(long)]
    pub no_seccomp: bool,
}

impl Held {
    /// Threads that are made from now on are held, for this guest, unless that is not wanted.
    ///
    /// # Errors
    /// [`HoldError`].
    pub fn hold(self, guest: Guest) -> Result<(), HoldError> {
        if self.no_seccomp {
            return Ok(());
        }
        confine::hold_threads(guest, terminal::put_back_at_once)
    }
}
