//! Options of `vmm attach`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::options::as_root::AsRoot;
use crate::options::held::Held;
use crate::options::quantities;
use crate::options::traced::Traced;
use tracer::tracing::options::{SessionOptions, TracingOptions};

/// Trace a guest that another VMM runs, and let it go as it was
///
/// The VMM is any that uses KVM; it and its guest notice nothing but pauses of microseconds. Ctrl-C, --duration or `vmm ctl
/// shutdown` ends it: the trace is finished, and what was changed in the guest is given back. So does a reset of the guest,
/// and a kernel that it starts in place of its own (kexec).
///
/// Let a guest go before it migrates, or a snapshot of it is taken or loaded (savevm, loadvm): its memory goes to a place
/// where what the changed text leads to is not.
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
    /// Let the trace tell when each vCPU's thread enters the guest (host:kvm_entry), and when and why it is back
    /// (host:kvm_exit), as the host's kernel has it. Takes root
    #[arg(long, requires = "trace")]
    pub host_events: bool,
    /// Listen for `vmm ctl` on this Unix socket (mode 0600; removed at the end)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Let the guest go after this many seconds, or after a time with a unit, as 2min
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = quantities::limit)]
    pub duration: Option<Duration>,
    /// When the guest is reset, or runs another kernel, wait until it can be traced again, and go on; the second trace is
    /// written to DIR.2, and so on. `vmm ctl` connects anew. Without this a reset ends the trace
    #[arg(long)]
    pub follow: bool,
    /// Give the guest back what a tracer that was killed has left in it, and trace nothing. (Attaching does so, too)
    #[arg(long, conflicts_with_all = ["kernel", "symbols", "host_events", "control", "duration", "follow"])]
    pub restore: bool,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub as_root: AsRoot,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub held: Held,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub traced: Traced,
}

impl AttachOptions {
    /// The part that is about tracing, of a guest with so many vCPUs; the trace of its `kernel`th kernel has a directory of
    /// its own.
    #[must_use]
    pub fn tracing(&self, vcpus: u16, kernel: u32) -> TracingOptions {
        let options = self.traced.to_tracing();
        let output = options.session.output.map(|path| numbered(path, kernel));
        TracingOptions {
            is_running: true,
            vcpus,
            session: SessionOptions {
                output,
                ..options.session
            },
            ..options
        }
    }
}

/// The directory itself of the first, `DIR.2` of the second.
fn numbered(directory: PathBuf, number: u32) -> PathBuf {
    if number < 2 {
        return directory;
    }
    let mut name = directory.into_os_string();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_trace_has_the_name_that_was_given() {
        let of = |number| numbered("a/opens".into(), number).display().to_string();
        assert_eq!((of(1), of(2)), ("a/opens".into(), "a/opens.2".into()));
    }
}
