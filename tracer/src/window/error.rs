//! Why memory could not be shown to the guest.

use terms::addr::{Gpa, Gva};

use super::title::TitleError;
use crate::paging::TranslateError;
use crate::target::{MemoryError, NotProvided};

/// Why memory could not be shown to the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// No vCPU runs yet.
    #[error("no vCPU has been started: there are no page tables to open a window in")]
    NoVcpu,
    /// The page tables could not be walked.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// The guest's tables could not be changed.
    #[error("the guest's page table entry at {entry} cannot be written: {source}")]
    Entry {
        /// The entry.
        entry: Gpa,
        /// Why not.
        source: MemoryError,
    },
    /// There is no run of free entries near the text.
    #[error(
        "the guest's page tables have no {pages} free 2 MiB slots in a row near its text at {text}, where nothing of its own can come later ({free} are free): a kernel that is still starting frees them, so attach later; else use smaller rings or fewer sessions"
    )]
    NoSlots {
        /// Pages asked for.
        pages: u64,
        /// Start of the text.
        text: Gva,
        /// Free slots found.
        free: usize,
    },
    /// There is no place for the alias.
    #[error(
        "memory cannot be captured: the {pieces} pieces of the guest's RAM need {gigabytes} free entries of 1 GiB in a row in the page tables of its text at {text} ({free} are free); registers can be captured"
    )]
    NoAlias {
        /// Entries that are needed.
        gigabytes: u64,
        /// Pieces of RAM; few are possible.
        pieces: usize,
        /// Start of the text.
        text: Gva,
        /// Free entries found.
        free: usize,
    },
    /// The region is used up.
    #[error(
        "{bytes} bytes of tracing memory were asked for, {left} are left: use smaller rings or fewer sessions"
    )]
    RegionFull {
        /// Bytes asked for.
        bytes: u64,
        /// Bytes left.
        left: u64,
    },
    /// What is ours cannot be noted where somebody else would find it.
    #[error(transparent)]
    Title(#[from] TitleError),
    /// The host does not give the guest more memory.
    #[error(transparent)]
    NotProvided(#[from] NotProvided),
    /// The guest uses an entry that held a page of the window.
    #[error("the guest has taken the window at {at} (its entry at {entry} now holds {found:#x})")]
    Taken {
        /// The page's address.
        at: Gva,
        /// The entry.
        entry: Gpa,
        /// What it holds.
        found: u64,
    },
    /// An entry is not as it was written, and the guest is not stopped, so that more could be said.
    #[error("an entry of the window in the guest's page tables is not as it was written")]
    Touched,
    /// A vCPU does not see the window.
    #[error(
        "vCPU {vcpu} has page tables of its own, as one has for a moment in a call of its firmware or in a guest of the guest, and does not see the window at {at}"
    )]
    NotShared {
        /// Its number.
        vcpu: usize,
        /// The page's address.
        at: Gva,
    },
}
