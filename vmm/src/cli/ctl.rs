//! Options of `vmm ctl`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::control::protocol::{Call, Dump, FilterChange, FunctionsQuery, Start};

/// Talk to a running `vmm run --control PATH`
///
/// Example: vmm ctl --control vm.sock start --filter 'calls_*'
#[derive(Debug, Args)]
pub struct CtlOptions {
    /// The socket that was given to `vmm run`
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Print the raw JSON result
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do
    #[command(subcommand)]
    pub verb: CtlVerb,
}

/// The verbs: each is one method of the protocol.
#[derive(Debug, Clone, Subcommand)]
pub enum CtlVerb {
    /// Guest and vCPU state, tracing session, records written and lost per ring, pause times
    Status,
    /// Functions with address, name and state: available, patched, or skipped and why
    Functions {
        /// Only those whose name matches
        glob: Option<String>,
    },
    /// Attach and trace
    Start {
        /// Trace only functions whose name matches; may be given several times
        #[arg(long, value_name = "GLOB")]
        filter: Vec<String>,
        /// Never trace functions whose name matches; may be given several times
        #[arg(long, value_name = "GLOB")]
        notrace: Vec<String>,
    },
    /// Detach: the guest's text gets its original bytes back
    Stop,
    /// Change which functions are traced
    #[command(subcommand)]
    Filter(FilterVerb),
    /// Let the stubs record again, without patching
    TracingOn,
    /// Keep the stubs from recording, without patching
    TracingOff,
    /// Pause the guest; tracing can be changed meanwhile
    Pause,
    /// Let the guest run again
    Resume,
    /// Write what the rings hold now to a directory, while the guest runs
    Dump {
        /// The directory; must not exist
        dir: PathBuf,
    },
    /// Digest (SHA-256) of the guest's text as it is in memory now
    Digest,
    /// End the run: the trace is finished, exit status 0
    Shutdown,
}

/// Ways to change the filter.
#[derive(Debug, Clone, Subcommand)]
pub enum FilterVerb {
    /// Add globs to those in force
    Add(Globs),
    /// Remove globs from those in force
    Remove(Globs),
    /// Replace the globs in force
    Set(Globs),
    /// Remove all globs: everything is traced
    Clear,
}

/// Globs for and against tracing.
#[derive(Debug, Clone, Args)]
pub struct Globs {
    /// Functions to trace
    #[arg(required_unless_present = "notrace")]
    pub filter: Vec<String>,
    /// Functions not to trace; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub notrace: Vec<String>,
}

impl From<&Globs> for FilterChange {
    fn from(globs: &Globs) -> Self {
        Self {
            filter: globs.filter.clone(),
            notrace: globs.notrace.clone(),
        }
    }
}

impl From<&CtlVerb> for Call {
    fn from(verb: &CtlVerb) -> Self {
        match verb {
            CtlVerb::Status => Self::Status,
            CtlVerb::Functions { glob } => Self::Functions(FunctionsQuery { glob: glob.clone() }),
            CtlVerb::Start { filter, notrace } => Self::Start(Start {
                filter: filter.clone(),
                notrace: notrace.clone(),
            }),
            CtlVerb::Stop => Self::Stop,
            CtlVerb::Filter(FilterVerb::Add(globs)) => Self::FilterAdd(globs.into()),
            CtlVerb::Filter(FilterVerb::Remove(globs)) => Self::FilterRemove(globs.into()),
            CtlVerb::Filter(FilterVerb::Set(globs)) => Self::FilterSet(globs.into()),
            CtlVerb::Filter(FilterVerb::Clear) => Self::FilterClear,
            CtlVerb::TracingOn => Self::TracingOn,
            CtlVerb::TracingOff => Self::TracingOff,
            CtlVerb::Pause => Self::Pause,
            CtlVerb::Resume => Self::Resume,
            CtlVerb::Dump { dir } => Self::Dump(Dump { dir: absolute(dir) }),
            CtlVerb::Digest => Self::Digest,
            CtlVerb::Shutdown => Self::Shutdown,
        }
    }
}

/// The VMM may run in another directory than we do.
fn absolute(dir: &std::path::Path) -> String {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    dir.to_string_lossy().into_owned()
}
