//! Options of `vmm ctl`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use super::dynfunc::{DynfuncVerb, NoTarget};
use super::events::EventsVerb;
use super::probes::ProbeVerb;
use crate::control::protocol::{
    Call, CreateSession, Dump, FilterChange, FunctionsQuery, OfSession, SessionName, Start,
    SwitchLocks,
};
use crate::options::choice::choice;
use crate::options::quantities;
use crate::options::session::SessionOptions;
use tracer::patch::locks::LockPrefixes;
use tracer::tracing::options::{DEFAULT_SESSION, Tracer};

/// Talk to a running `vmm run --control PATH`
///
/// Example: vmm ctl --control vm.sock start --filter 'calls_*'
#[derive(Debug, Args)]
pub struct CtlOptions {
    /// The socket that was given to `vmm run`
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// The session that start, stop, filter, probe, tracing-on, tracing-off, dump, profile and top are
    /// about
    #[arg(long, global = true, value_name = "NAME", default_value = DEFAULT_SESSION)]
    pub session: String,
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
    /// Guest and vCPU state, tracing sessions, records written and lost per ring, pause times
    Status,
    /// Functions with address, name and state: available, patched, or skipped and why
    Functions {
        /// Only those whose name matches
        glob: Option<String>,
    },
    /// Make, delete and list sessions: up to 16, each with filters and rings of its own
    #[command(subcommand)]
    Session(SessionVerb),
    /// Attach and trace
    Start {
        /// What to record (default: what the session was made for)
        #[arg(long, value_name = "TRACER", value_parser = choice::<Tracer>())]
        tracer: Option<Tracer>,
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
    /// List, enable and disable the events that the guest declares
    #[command(subcommand)]
    Events(EventsVerb),
    /// Set, list and remove probes: what a session captures at places that you name
    #[command(subcommand)]
    Probe(ProbeVerb),
    /// List and retarget the guest's dynamic functions
    #[command(subcommand)]
    Dynfunc(DynfuncVerb),
    /// Pause the guest; tracing can be changed meanwhile
    Pause,
    /// Let the guest run again
    Resume,
    /// Write what the rings hold now to a directory, while the guest runs; nothing is recorded meanwhile
    Dump {
        /// The directory; must not exist
        dir: PathBuf,
        /// Record meanwhile: a guest that is busy then writes over much of what is still to be copied
        #[arg(long)]
        live: bool,
    },
    /// What a profile session has counted: hits and times per function
    Profile,
    /// The same as a table that is refreshed, most self time first
    Top(TopOptions),
    /// Make the guest's lock prefixes effective, or not (with one vCPU only); one vCPU starts with
    /// them off
    SmpLocks {
        /// Which way
        #[arg(value_parser = choice::<LockPrefixes>())]
        state: LockPrefixes,
    },
    /// Patch again, after you have looked into what froze it
    Thaw,
    /// Digest (SHA-256) of the guest's text as it is in memory now
    Digest,
    /// End the run: the trace is finished, exit status 0
    Shutdown,
}

/// How a table is refreshed.
#[derive(Debug, Clone, Args)]
pub struct TopOptions {
    /// End after N tables (default: when interrupted; 1 where the output is no terminal)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Time between two tables, in ms or with a unit, as 2s
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = quantities::milliseconds)]
    pub interval: Duration,
}

/// What can be done with sessions.
#[derive(Debug, Clone, Subcommand)]
pub enum SessionVerb {
    /// Make a session; `ctl --session NAME start` then traces
    Create {
        /// Its name: letters, digits, '-', '_' and '.'
        name: String,
        /// What it records
        #[arg(long, value_name = "TRACER", value_parser = choice::<Tracer>(), default_value_t)]
        tracer: Tracer,
        #[command(flatten)]
        #[expect(
            missing_docs,
            reason = "a doc comment here would become the text of the whole command"
        )]
        options: Box<SessionOptions>,
    },
    /// Every session, with state, filter and rings
    List,
    /// Delete a session; one that runs is stopped first
    Delete {
        /// Its name
        name: String,
    },
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

impl Globs {
    fn change(&self, session: SessionName) -> FilterChange {
        FilterChange {
            session,
            filter: self.filter.clone(),
            notrace: self.notrace.clone(),
        }
    }
}

impl TryFrom<&CtlOptions> for Call {
    type Error = NoTarget;

    fn try_from(options: &CtlOptions) -> Result<Self, NoTarget> {
        let session = SessionName(options.session.clone());
        let of = |session| OfSession { session };
        Ok(match &options.verb {
            CtlVerb::Status => Self::Status,
            CtlVerb::Functions { glob } => Self::Functions(FunctionsQuery { glob: glob.clone() }),
            CtlVerb::Session(verb) => verb.into(),
            CtlVerb::Start {
                tracer,
                filter,
                notrace,
            } => Self::Start(Start {
                session,
                tracer: *tracer,
                filter: filter.clone(),
                notrace: notrace.clone(),
            }),
            CtlVerb::Stop => Self::Stop(of(session)),
            CtlVerb::Filter(FilterVerb::Add(globs)) => Self::FilterAdd(globs.change(session)),
            CtlVerb::Filter(FilterVerb::Remove(globs)) => Self::FilterRemove(globs.change(session)),
            CtlVerb::Filter(FilterVerb::Set(globs)) => Self::FilterSet(globs.change(session)),
            CtlVerb::Filter(FilterVerb::Clear) => Self::FilterClear(of(session)),
            CtlVerb::TracingOn => Self::TracingOn(of(session)),
            CtlVerb::TracingOff => Self::TracingOff(of(session)),
            CtlVerb::Pause => Self::Pause,
            CtlVerb::Resume => Self::Resume,
            CtlVerb::Dump { dir, live } => Self::Dump(Dump {
                session,
                dir: absolute(dir).to_string_lossy().into_owned(),
                live: *live,
            }),
            CtlVerb::Profile | CtlVerb::Top(_) => Self::Profile(of(session)),
            CtlVerb::SmpLocks { state } => Self::SwitchLocks(SwitchLocks { state: *state }),
            CtlVerb::Thaw => Self::Thaw,
            CtlVerb::Digest => Self::Digest,
            CtlVerb::Events(verb) => verb.call(session),
            CtlVerb::Probe(verb) => verb.call(session),
            CtlVerb::Dynfunc(verb) => verb.try_into()?,
            CtlVerb::Shutdown => Self::Shutdown,
        })
    }
}

impl From<&SessionVerb> for Call {
    fn from(verb: &SessionVerb) -> Self {
        match verb {
            SessionVerb::Create {
                name,
                tracer,
                options,
            } => {
                let mut options = (**options).clone();
                options.output = options.output.as_deref().map(absolute);
                Self::CreateSession(CreateSession {
                    name: name.clone(),
                    tracer: *tracer,
                    options,
                })
            }
            SessionVerb::List => Self::ListSessions,
            SessionVerb::Delete { name } => Self::DeleteSession(OfSession {
                session: SessionName(name.clone()),
            }),
        }
    }
}

/// The VMM may run in another directory than we do.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
