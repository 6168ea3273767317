//! What a command prints.

use std::io::{self, Write};

use crate::failure::Failure;

/// Prints `bytes` on stdout.
///
/// # Errors
/// [`Failure`] when stdout does not take them.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    offer(bytes).map(drop)
}

/// Prints `bytes` on stdout; says whether anybody wants more of them.
///
/// # Errors
/// [`Failure`] when stdout does not take them.
pub fn offer(bytes: impl AsRef<[u8]>) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) => taken(error).map(|()| false),
    }
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
