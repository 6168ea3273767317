//! What this process gives up before a guest can run: it reads what the guest writes, so it may do no more than it must.
//! Each thread inherits what the one that makes it has given up, so this comes before all others are made.

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs,
};

/// Something could not be given up.
#[derive(Debug, thiserror::Error)]
#[error("cannot give up {what} before the guest runs: {source}")]
pub struct GiveUpError {
    what: &'static str,
    #[source]
    source: rustix::io::Errno,
}

/// No program that is started from here has more rights than this one, and no core dump is written: it would hold the
/// guest's memory. (A core that is piped to a program has no limit: the guest's memory is left out of it as well, see
/// [`crate::memory`].)
///
/// # Errors
/// [`GiveUpError`].
pub fn give_up_gains() -> Result<(), GiveUpError> {
    let failed = |what| move |source| GiveUpError { what, source };
    set_no_new_privs(true).map_err(failed("new privileges (no_new_privs)"))?;
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).map_err(failed("core dumps (RLIMIT_CORE)"))
}

/// Root keeps its files, and none of its capabilities.
///
/// # Errors
/// [`GiveUpError`].
pub fn give_up_capabilities() -> Result<(), GiveUpError> {
    let failed = |source| GiveUpError {
        what: "capabilities",
        source,
    };
    clear_ambient_capability_set().map_err(failed)?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(failed)
}
