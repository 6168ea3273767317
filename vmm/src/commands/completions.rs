//! `vmm completions`: the shell's completion script.

use clap::CommandFactory;
use clap_complete::Shell;

use super::stdout;
use crate::cli::Cli;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Prints the script for `shell`.
///
/// # Errors
/// When stdout does not take it.
pub fn completions(shell: Shell) -> Result<ExitStatus, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "vmm", &mut script);
    stdout::print(script)?;
    Ok(ExitStatus::Success)
}
