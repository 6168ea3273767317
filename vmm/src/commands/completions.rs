//! `vmm completions`: the shell's completion script.

use std::io;

use clap_complete::Shell;

use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Prints what `script` writes for `shell`.
///
/// # Errors
/// When the shell has none, or stdout does not take it.
pub fn completions(
    script: impl FnOnce(Shell, &mut dyn io::Write) -> io::Result<()>,
    shell: Shell,
) -> Result<ExitStatus, Failure> {
    let mut text = Vec::new();
    script(shell, &mut text).map_err(Failure::bad_input)?;
    stdout::print(text)?;
    Ok(ExitStatus::Success)
}
