//! Why a trace directory cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use terms::nearest::did_you_mean;

use crate::export::compact::CompactError;
use crate::export::events::EventFileError;
use crate::export::uftrace::VERSION;
use crate::export::uftrace::layout::SIDE_FILE;

/// Why a trace could not be printed. What was good before that is printed.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file operation failed.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{}: {problem}: not a trace of ours, or a damaged one", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        problem: String,
    },
    /// It is of another version.
    #[error(
        "{} is of version {found}, this program reads version {VERSION}: read the trace with the one that wrote it",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A data file holds something that is no record.
    #[error(
        "{}: no record at offset {offset:#x}: {:#034x} has not the mark of one: the file is damaged",
        .path.display(), u128::from_be_bytes(*.bytes)
    )]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is there.
        bytes: [u8; 16],
    },
    /// A compact trace cannot be put together.
    #[error(transparent)]
    Compact(#[from] CompactError),
    /// The events beside the calls.
    #[error(transparent)]
    Events(#[from] EventFileError),
    /// Who watches has said that it is to end.
    #[error("interrupted")]
    Interrupted,
    /// What was asked for needs entries and exits.
    #[error("{0} needs a trace of a graph, this one has entries only")]
    NotAGraph(&'static str),
    /// What was asked for needs entries and exits, and nothing says whether it has them.
    #[error("{what} needs a trace of a graph, and nothing says that this is one: there is no {}", .path.display())]
    NotSaid {
        /// What was asked for.
        what: &'static str,
        /// What would say so.
        path: PathBuf,
    },
    /// What was asked for needs to know who made a call.
    #[error(
        "telling who called whom needs a trace of a graph or of calls with their callers, this one has neither"
    )]
    NoCallers,
    /// What was asked for needs times, and the clock of the trace was none.
    #[error(
        "{0} needs times, and this trace was recorded without a clock: it has the order of calls only"
    )]
    NoTimes(&'static str),
    /// Rows were chosen of what has none.
    #[error("only tables have rows to choose: counts, callers, callees, slowest, timeline, values")]
    NotATable,
    /// The first screen was to be one table.
    #[error(
        "the first screen is several tables, which JSON has: choose one of them for comma-separated values"
    )]
    SeveralTables,
    /// Rows were to be sorted by a column that there is not.
    #[error("there is no column '{key}' to sort by: {columns}")]
    NoColumn {
        /// What was asked for.
        key: String,
        /// Those that there are.
        columns: String,
    },
    /// Rows were to be chosen by a name that there is not.
    #[error("{what} matches '{glob}'{}", did_you_mean(.near_misses))]
    NoRow {
        /// What was asked for.
        glob: String,
        /// That there is none, of what.
        what: &'static str,
        /// Names that look like it.
        near_misses: Vec<String>,
    },
    /// No function of the trace is one of those that were asked for.
    #[error("no function of the trace is one of those that were asked for")]
    NoRoot,
    /// No function of the trace is one of those whose callers were asked for.
    #[error("no function of the trace is one of those whose callers were asked for")]
    NoGoal,
    /// No thread of the trace is one of those that were asked for.
    #[error("no thread of the trace is one of those that were asked for")]
    NoThread,
    /// A vCPU that the guest did not have was asked for.
    #[error("there is no vCPU {vcpu} in the trace: its guest had {of}")]
    NoVcpu {
        /// What was asked for.
        vcpu: u16,
        /// How many there were.
        of: u16,
    },
    /// There is nothing of what a picture shows.
    #[error("the trace has no call of known duration to draw")]
    NothingToDraw,
    /// What has to wait until the output can be written could not be kept.
    #[error("cannot write temporary files in {}: {source}", .path.display())]
    Scratch {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file of what the host did could not be written.
    #[error("cannot write what the host did: {0}")]
    HostOutput(#[source] io::Error),
    /// The output could not be written.
    #[error("cannot write the report: {0}")]
    Output(#[source] io::Error),
}

impl ReportError {
    /// The trace in this directory is no graph, if it is one that says what it is.
    pub(super) fn no_graph(what: &'static str, directory: &Path, is_described: bool) -> Self {
        match is_described {
            true => Self::NotAGraph(what),
            false => Self::NotSaid {
                what,
                path: directory.join(SIDE_FILE),
            },
        }
    }

    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    }

    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}
