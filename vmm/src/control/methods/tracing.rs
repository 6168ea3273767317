//! Methods about what a session traces, records and has recorded.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use status::Dumped;
use status::{Changed, Functions, Profile, Switched, Thawed};
use tracer::tracing::filters::Globs;
use tracer::tracing::options::Tracer;
use tracer::tracing::{Begin, WantedDump};

use super::sessions::{OfSession, SessionName};
use crate::control::method::{Nothing, methods};
use crate::options::choice::choice;
use crate::options::quantities;

/// Which functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FunctionsQuery {
    /// Only those whose name matches
    #[serde(skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
}

/// What to trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wanted {
    /// Which session
    #[arg(from_global)]
    #[serde(skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// What to record (default: what the session was made for)
    #[arg(long, value_name = "TRACER", value_parser = choice::<Tracer>())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracer: Option<Tracer>,
    /// Trace only functions whose name matches; may be given several times. `!GLOB` takes out what those before it match
    #[arg(long, value_name = "GLOB")]
    pub filter: Vec<String>,
    /// Never trace functions whose name matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub notrace: Vec<String>,
}

/// What to write, and where to.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DumpTo {
    /// Which session
    #[arg(from_global)]
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// The directory; must not exist
    #[arg(value_parser = PathBufValueParser::new().map(from_here))]
    pub dir: PathBuf,
    /// Record meanwhile: a guest that is busy then writes over much of what is still to be copied
    #[arg(long)]
    #[serde(default, skip_serializing_if = "is_false")]
    pub live: bool,
    /// Only what was recorded in this time up to now, in ns or with a unit, as 100ms
    #[arg(long, value_name = "NS", value_parser = quantities::ns)]
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "quantities::some_ns_in"
    )]
    pub last: Option<u64>,
}

/// Which vCPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuNumbers {
    /// Which session
    #[arg(from_global)]
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// Their numbers
    #[arg(required = true, value_name = "N", value_delimiter = ',')]
    pub vcpus: Vec<u16>,
}

methods! {
    /// Functions with address, name and state: available, patched, or skipped and why
    ListFunctions(FunctionsQuery) "functions" -> Functions:
        |of, tracing, _guest| tracing.functions(of.glob.as_deref())?;

    /// Attach and trace
    Start(Wanted) "start" -> Changed: |wanted, tracing, guest| {
        let globs = Globs { filter: wanted.filter, notrace: wanted.notrace };
        tracing.start(guest, &wanted.session.0, wanted.tracer, &globs)?
    };

    /// Detach: the guest's text gets its original bytes back
    Stop(OfSession) "stop" -> Changed: |of, tracing, guest| tracing.stop(guest, &of.session.0)?;

    /// Let the stubs record again, without patching
    TracingOn(OfSession) "tracing-on" -> Switched:
        |of, tracing, _guest| tracing.session(&of.session.0)?.switch(true)?;

    /// Keep the stubs from recording, without patching
    TracingOff(OfSession) "tracing-off" -> Switched:
        |of, tracing, _guest| tracing.session(&of.session.0)?.switch(false)?;

    /// Record only what these vCPUs execute, without patching
    ///
    /// Example: vmm ctl --control vm.sock vcpus set 0 2
    SetVcpus(VcpuNumbers) "vcpus.set" -> Switched: |only, tracing, _guest| {
        tracing.session(&only.session.0)?.record_only(&only.vcpus)?
    };

    /// Record what every vCPU executes
    ClearVcpus(OfSession) "vcpus.clear" -> Switched:
        |of, tracing, _guest| tracing.session(&of.session.0)?.record_only(&[])?;

    /// What a profile session has counted: hits and times per function
    ShowProfile(OfSession) "profile" -> Profile:
        |of, tracing, _guest| tracing.session(&of.session.0)?.profile()?;

    /// Write what the rings hold now to a directory, while the guest runs; nothing is recorded meanwhile
    Dump(DumpTo) "dump" -> Dumped:
        |to, on| {
            let directory = &on.outputs().admit(&to.dir)?;
            let begin = to.last.map_or(Begin::Oldest, Begin::Ago);
            let wanted = WantedDump { directory, is_live: to.live, begin };
            let (tracing, guest) = on.tracing();
            tracing.dump(guest, &to.session.0, &wanted)?
        };

    /// Patch again, after you have looked into what froze it
    Thaw(Nothing) "thaw" -> Thawed: |_, tracing, guest| tracing.thaw(guest)?;
}

/// A path for the VMM, which may run in another directory than we do.
#[must_use]
pub fn from_here(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_false(value: &bool) -> bool {
    !value
}
