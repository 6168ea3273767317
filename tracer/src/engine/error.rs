//! Why the engine refused.

use terms::addr::Gva;
use terms::quantity::counted;

use super::probes::error::ProbeError;
use crate::points::events::OutOfReach;
use crate::record::FUNCTIONS_MAX;
use crate::stub::cell::{GsMoved, SESSIONS_MAX};
use crate::stub::store::StoreError;
use crate::stub::template::StubError;
use crate::target::MemoryError;
use crate::text::frozen::Frozen;
use crate::text::journal::JournalError;
use crate::text::poke::TransactionError;
use crate::text::word::WordError;
use crate::window::WindowError;

/// Why tracing could not be set up in the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The window cannot be opened.
    #[error("cannot attach: {0}")]
    Window(#[from] WindowError),
    /// The image has no text.
    #[error("cannot attach: the image has no executable segment")]
    NoText,
    /// A record cannot number so many functions.
    #[error("cannot attach: the image has {0} functions, {FUNCTIONS_MAX} can be told apart")]
    TooManyFunctions(usize),
    /// Stubs would write to another vCPU's ring, or to no ring.
    #[error("cannot attach: {0}")]
    GsMoved(#[from] GsMoved),
    /// The counters of a profile are those of each vCPU.
    #[error(
        "cannot make session '{name}': a profile counts for each vCPU, and the kernel has not set up yet what tells them apart; begin it later"
    )]
    ProfileTooEarly {
        /// The name asked for.
        name: String,
    },
    /// No such session.
    #[error("there is no session number {0}")]
    NoSession(u8),
    /// A routine that stubs share could not be made.
    #[error("cannot attach: {0}")]
    Stub(#[from] StubError),
    /// A routine that stubs share could not be put into the window.
    #[error("cannot attach: {0}")]
    Store(#[from] StoreError),
    /// The journal of changed text cannot be begun.
    #[error("cannot attach: {0}")]
    Journal(#[from] JournalError),
    /// Tracing has not been attached.
    #[error("tracing is not attached to the guest yet")]
    NotAttached,
    /// The counters of a profile would take too much memory.
    #[error(
        "cannot make session '{name}': the counters of {functions} functions take too much memory with GS bases that lie as these do"
    )]
    ProfileTooLarge {
        /// The name asked for.
        name: String,
        /// How many functions.
        functions: usize,
    },
    /// The counters could not be set to 0.
    #[error("cannot make session '{name}': its counters cannot be written: {source}")]
    Counters {
        /// The name asked for.
        name: String,
        /// Why not.
        source: MemoryError,
    },
    /// Rings of a deleted session could not be cleared.
    #[error("cannot make session '{name}': its rings cannot be written: {source}")]
    Rings {
        /// The name asked for.
        name: String,
        /// Why not.
        source: MemoryError,
    },
    /// A processor may take what an indirect jump leads to for an attack.
    #[error(
        "cannot make session '{name}': vCPU {vcpu} has CET switched on (cr4 {cr4:#x}), and does not bear functions that are left by a jump: use return hook 'balanced'"
    )]
    BranchesTracked {
        /// The name asked for.
        name: String,
        /// Which one.
        vcpu: usize,
        /// Its control register 4.
        cr4: u64,
    },
    /// Sixteen sessions are there.
    #[error("cannot make session '{name}': there are {SESSIONS_MAX} already, delete one")]
    TooManySessions {
        /// The name asked for.
        name: String,
    },
    /// Another session has that name.
    #[error("cannot make session '{name}': there is one of that name")]
    NameTaken {
        /// The name asked for.
        name: String,
    },
}

/// Why a change of what is traced was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// No such session.
    #[error("there is no session number {0}")]
    NoSession(u8),
    /// A session that is to go still has its stubs at sites.
    #[error(
        "session '{name}' still traces {functions} functions and {events} events: stop it first"
    )]
    StillTracing {
        /// Its name.
        name: String,
        /// How many functions lead to it.
        functions: usize,
        /// At how many tracepoints it is called.
        events: usize,
    },
    /// The guest is to be left, and still leads to stubs or to what they are called by.
    #[error("{} of the guest's text and data still lead to the tracing memory, the first one at {first}: it has to stay", counted(*.sites as u64, "place"))]
    StillLeads {
        /// How many places.
        sites: usize,
        /// The first of them.
        first: Gva,
    },
    /// Nothing is attached yet.
    #[error("tracing is not attached to the guest yet")]
    NotAttached,
    /// A stub that the plan needs could not be put into the window.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A tracepoint cannot lead where it should.
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    /// A word of the guest that points at a list of ours could not be changed.
    #[error("nothing was changed: {0}")]
    Word(#[from] WordError),
    /// What is about to be changed cannot be written down.
    #[error("nothing was changed: {0}")]
    Journal(#[from] JournalError),
    /// The window is gone.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The plan is older than the last change.
    #[error("something else was changed since this was planned: plan again")]
    Stale,
    /// A poke failed; all were taken back.
    #[error("nothing was changed: {0}")]
    Transaction(#[from] TransactionError),
    /// It could not be found out whether threads are inside of what is to be changed.
    #[error("the guest's memory cannot be searched for threads: {0}")]
    Search(MemoryError),
    /// What was asked of a probe.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Patching is frozen.
    #[error("patching is frozen: {0}")]
    Frozen(#[from] Frozen),
}
