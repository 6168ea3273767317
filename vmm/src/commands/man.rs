//! `vmm man`: the manual, made of what the command line says of itself; so it names every option that there is.

use std::fs;
use std::path::Path;

use clap::Command;

use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Writes a page for `command` and one for each of its verbs into `directory`.
///
/// # Errors
/// When they cannot be written there.
pub fn man(command: Command, directory: &Path) -> Result<ExitStatus, Failure> {
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    written.map_err(|error| {
        Failure::output(format!(
            "cannot write man pages to {}: {error}",
            directory.display()
        ))
    })?;
    Ok(ExitStatus::Success)
}
