//! The command line: every verb and option, and what happens with what the verb returns.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// Boots a guest on KVM and traces its functions from outside.
#[derive(Debug, Parser)]
#[command(name = "vmm", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(RunOptions),
    /// Say what this host can and cannot do for tracing, and how to mend it
    ///
    /// Tries KVM's parts one by one, and code in a tiny VM. Ends with 0 when tracing can work here,
    /// with 1 when a required part is missing.
    Doctor {
        /// Print the findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a completion script for a shell
    ///
    /// For example: vmm completions bash > ~/.local/share/bash-completion/completions/vmm
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Boot a guest and stay with it until it ends
///
/// The guest's console is stdin and stdout; messages of the VMM go to stderr. The exit status is
/// the one that the guest writes to its exit port; statuses from 100 on are the VMM's own.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// The kernel: a 64-bit ELF file (vmlinux, not bzImage)
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// The kernel's command line; ` vcpus=N` is added
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        hide_default_value = true
    )]
    pub cmdline: String,
    /// Number of virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub vcpus: u64,
    /// Guest RAM in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub memory: u64,
    /// End the run after this many seconds, with exit status 103
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: Option<u64>,
}

/// Parses the command line, runs the verb, prints what failed. Returns how the process is to end.
#[must_use]
pub fn main() -> ExitStatus {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let result = match cli.verb {
        Verb::Run(options) => commands::run::run(&options),
        Verb::Doctor { json } => commands::doctor::doctor(json),
        Verb::Completions { shell } => commands::completions::completions(shell),
    };
    result.unwrap_or_else(|failure| say(&failure))
}

/// Help and version are no errors; for the rest clap's text says what is wrong and how to go on.
fn usage(error: &clap::Error) -> ExitStatus {
    let printed = error.print();
    if error.use_stderr() {
        ExitStatus::BadInput
    } else if printed.is_err() {
        ExitStatus::OutputFailed
    } else {
        ExitStatus::Success
    }
}

fn say(failure: &Failure) -> ExitStatus {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "vmm: {}", failure.message);
    failure.status
}
