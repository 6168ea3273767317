//! `vmm completions`: the shell's completion script.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

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
    std::io::stdout()
        .write_all(&script)
        .map_err(Failure::output)?;
    Ok(ExitStatus::Success)
}
