//! `vmm completions`: the shell's completion script.

use clap::Command;
use clap_complete::Shell;

use super::stdout;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Prints the script by which `shell` completes `command`.
///
/// # Errors
/// When stdout does not take it.
pub fn completions(mut command: Command, shell: Shell) -> Result<ExitStatus, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "vmm", &mut script);
    stdout::print(script)?;
    Ok(ExitStatus::Success)
}
