//! What a command prints.

use std::io::{self, Write};

use crate::failure::Failure;

/// Prints `bytes` on stdout.
///
/// # Errors
/// [`Failure`] when stdout does not take them.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(bytes.as_ref()).and_then(|()| out.flush());
    printed.or_else(taken)
}

/// A reader that has seen enough (`| head`) is no failure.
///
/// # Errors
/// [`Failure`] that names stdout, of any other error in writing to it.
pub fn taken(error: io::Error) -> Result<(), Failure> {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Ok(())
    } else {
        Err(Failure::output(format!("cannot write to stdout: {error}")))
    }
}
