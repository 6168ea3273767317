//! Methods about the guest as a whole.

use clap::Args;
use serde::{Deserialize, Serialize};
use status::{Digest, Switched, SwitchedLocks};
use tracer::LockPrefixes;

use crate::control::method::{Nothing, methods};
use crate::control::status::Status;
use crate::options::choice::choice;

/// Whether lock prefixes are effective.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockState {
    /// Which way
    #[arg(value_parser = choice::<LockPrefixes>())]
    pub state: LockPrefixes,
}

methods! {
    /// Guest and vCPU state, memory, tracing sessions, records written and lost per ring, pause times
    ShowStatus(Nothing) "status" -> Status: |_, on| on.status();

    /// Pause the guest; tracing can be changed meanwhile
    Pause(Nothing) "pause" -> Switched: |_, on| Switched { changed: on.pause()? };

    /// Let the guest run again
    Resume(Nothing) "resume" -> Switched: |_, on| Switched { changed: on.resume() };

    /// Make the guest's lock prefixes effective, or not (with one vCPU only); one vCPU starts with
    /// them off
    SwitchLocks(LockState) "smp-locks" -> SwitchedLocks:
        |to, tracing, guest| tracing.switch_locks(guest, to.state)?;

    /// Digest (SHA-256) of the guest's text as it is in memory now
    TakeDigest(Nothing) "digest" -> Digest: |_, tracing, guest| tracing.digest(guest)?;

    /// End the run: the trace is finished, exit status 0
    ShutDown(Nothing) "shutdown" -> Switched: |_, on| {
        on.shut_down();
        Switched { changed: true }
    };
}
