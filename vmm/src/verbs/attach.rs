//! Options of `vmm attach`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::options::quantities;
use crate::options::traced::Traced;
use tracer::tracing::options::TracingOptions;

/// Trace a guest that another VMM runs, and let it go as it was
///
/// The VMM is any that uses KVM; it and its guest notice nothing but pauses of microseconds. Ctrl-C, --duration or `vmm ctl
/// shutdown` ends it: the trace is finished, and what was changed in the guest is given back.
///
/// Example: vmm attach 4711 --trace graph --graph-function do_sys_openat2 --duration 5s --output opens
#[derive(Debug, Args)]
pub struct AttachOptions {
    /// The guest: the process of its VMM, or the name that its VMM has for it (default: the only one of this host)
    #[arg(value_name = "GUEST")]
    pub guest: Option<String>,
    /// The file of the kernel that the guest runs: a 64-bit ELF file, or a bzImage (vmlinuz). A Linux may have been moved
    /// (KASLR) (default: a Linux is read out of the guest's memory)
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Take the kernel's symbols from its unstripped file
    #[arg(long, value_name = "FILE", requires = "kernel")]
    pub symbols: Option<PathBuf>,
    /// Listen for `vmm ctl` on this Unix socket (mode 0600; removed at the end)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Let the guest go after this many seconds, or after a time with a unit, as 2min
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = quantities::limit)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub traced: Traced,
}

impl AttachOptions {
    /// Whether there is an output directory and nothing can ever be recorded.
    #[must_use]
    pub fn output_is_useless(&self) -> bool {
        self.traced.records_nothing() && self.control.is_none()
    }

    /// The part that is about tracing, of a guest with so many vCPUs.
    #[must_use]
    pub fn tracing(&self, vcpus: u16) -> TracingOptions {
        TracingOptions {
            is_running: true,
            vcpus,
            ..self.traced.to_tracing()
        }
    }
}
