//! Where this process may write (landlock(7)): in a few places, from the moment on when it has made and opened all that it
//! needs elsewhere. Whatever leads out of them, a link or `..`, leads nowhere: the kernel looks at where a file is, not at how
//! it was named. Reading is as free as before.
//!
//! A thread inherits what the one that makes it is held to, and nothing brings that back. Threads that write no file are
//! held to no place at all, as the first thing that they do.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, make_bitflags,
};

/// The newest rights that we know to be of writing. A kernel that knows fewer holds a process to those.
const KNOWN: ABI = ABI::V5;

/// Nowhere, if the kernel holds processes to places.
static NOWHERE: OnceLock<RulesetCreated> = OnceLock::new();

/// Something that is written after a guest has begun to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Files and directories at any depth below this directory.
    Below(PathBuf),
    /// A file that is there.
    File(PathBuf),
    /// Files are taken out of this directory.
    FilesGo(PathBuf),
    /// Empty directories are taken out of this directory.
    FoldersGo(PathBuf),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Below(path) | Self::File(path) | Self::FilesGo(path) | Self::FoldersGo(path) => {
                path
            }
        }
    }

    fn rights(&self) -> BitFlags<AccessFs> {
        match self {
            // No links and no devices: a trace has none. A pipe that somebody has put in the place of a file is renamed
            // like that file.
            Self::Below(_) => {
                make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeFifo | MakeDir | RemoveFile | RemoveDir})
            }
            Self::File(_) => make_bitflags!(AccessFs::{WriteFile | Truncate}),
            Self::FilesGo(_) => AccessFs::RemoveFile.into(),
            Self::FoldersGo(_) => AccessFs::RemoveDir.into(),
        }
    }
}

/// A process cannot be held to places.
#[derive(Debug, thiserror::Error)]
pub enum PlacesError {
    /// One of them is not there.
    #[error("{}: {source}; this is where the run is to write, and it must exist", path.display())]
    Missing {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: PathFdError,
    },
    /// The system refuses.
    #[error("this system does not hold the run to the places where it writes (landlock: {0})")]
    Refused(#[from] RulesetError),
    /// There is no descriptor for a thread.
    #[error("a thread cannot be kept from writing files: {0}")]
    Descriptor(std::io::Error),
}

/// Threads that [`super::enter`] a role in which they write no file can write none from now on, where the kernel has a way.
/// Says whether it has.
///
/// # Errors
/// [`PlacesError`], when it has one and refuses.
pub fn hold_files() -> Result<bool, PlacesError> {
    if !is_known() {
        log::debug!(
            "the kernel of this host has no landlock: the run can write wherever its user can"
        );
        return Ok(false);
    }
    // A second time it is the same.
    let _ = NOWHERE.set(nowhere()?);
    Ok(true)
}

/// Whether the kernel of this host holds processes to places.
#[must_use]
pub fn is_known() -> bool {
    let asked = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_write(ABI::V1));
    asked.and_then(Ruleset::create).is_ok()
}

fn nowhere() -> Result<RulesetCreated, RulesetError> {
    let rules = Ruleset::default().handle_access(AccessFs::from_write(KNOWN))?;
    // What it needs to be held was given up before (no_new_privs): this asks for nothing more.
    rules.create().map(|rules| rules.no_new_privs(false))
}

/// This thread, and each that it makes from now on, writes in these places alone, where [`hold_files`] has found a way.
///
/// # Errors
/// [`PlacesError`] names the place that is not there.
pub fn write_only_in(places: &[Place]) -> Result<(), PlacesError> {
    if NOWHERE.get().is_none() {
        return Ok(());
    }
    let mut rules = nowhere()?;
    for place in places {
        let path = place.path();
        let file = PathFd::new(path).map_err(|source| PlacesError::Missing {
            path: path.to_owned(),
            source,
        })?;
        rules = rules.add_rule(PathBeneath::new(file, place.rights()))?;
    }
    rules.restrict_self()?;
    Ok(())
}

/// This thread writes nowhere, where [`hold_files`] has found a way.
pub(super) fn write_nowhere() -> Result<(), PlacesError> {
    if let Some(rules) = NOWHERE.get() {
        let rules = rules.try_clone().map_err(PlacesError::Descriptor)?;
        rules.restrict_self()?;
    }
    Ok(())
}
