//! Options of `vmm run`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::layout;
use crate::options::as_root::AsRoot;
use crate::options::choice::choice;
use crate::options::held::Held;
use crate::options::quantities;
use crate::options::traced::Traced;
use tracer::LockPrefixes;
use tracer::host_events::HostTeller;
use tracer::tracing::options::TracingOptions;

/// Boot a guest and stay with it until it ends
///
/// The guest's console is stdin and stdout; messages of the VMM go to stderr. The exit status is
/// the one that the guest writes to its exit port (0xf4). Ctrl-C ends the run cleanly: the trace is
/// finished, the control socket removed.
///
/// Example: vmm run --kernel images/out/guest.elf --cmdline 'workload=calls iterations=1000'
/// --vcpus 2 --trace function --filter 'calls_*' --output trace
#[derive(Debug, Args)]
pub struct RunOptions {
    /// The kernel: a 64-bit ELF file, or a bzImage (vmlinuz)
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// Take the kernel's symbols from its System.map or its unstripped vmlinux
    #[arg(long, value_name = "FILE")]
    pub symbols: Option<PathBuf>,
    /// An initial RAM disk for the kernel
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,
    /// The module that the kernel loads, instead of the one that is linked into it (bundled guest): an ELF
    /// executable of one segment, linked to the same address
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// The kernel's command line; ` vcpus=N` is added to it
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        hide_default_value = true
    )]
    pub cmdline: String,
    /// Number of virtual CPUs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub vcpus: u64,
    /// Guest RAM, in MiB or with a unit, as 1G
    #[arg(long, value_name = "MIB", default_value = "256", allow_negative_numbers = true, value_parser = quantities::mib)]
    pub memory: u64,
    /// Let the guest run virtual machines itself: it sees VMX or SVM. Tracing waits for moments in which no vCPU
    /// executes a guest of the guest
    #[arg(long)]
    pub nested: bool,
    /// Let the trace tell when each vCPU's thread enters the guest (host:kvm_entry), and when and why it is back
    /// (host:kvm_exit): as the host's kernel has it where that may be asked, else as the threads do
    #[arg(
        long,
        value_name = "TELLER",
        requires = "trace",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = HostTeller::Auto.name(),
        value_parser = choice::<HostTeller>()
    )]
    pub host_events: Option<HostTeller>,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub held: Held,
    /// Listen for `vmm ctl` on this Unix socket (mode 0600; removed at the end)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// End the run after this many seconds, or after a time with a unit, as 2min, with exit status 103
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = quantities::limit)]
    pub timeout: Option<Duration>,
    /// Attach when this function is first reached in ring 0 (default: what suits the kernel, for the bundled
    /// guest `workloads_ready`, for Linux `rcu_end_inkernel_boot`, right before its init; `start_kernel` traces all of a
    /// boot of Linux)
    #[arg(long, value_name = "SYMBOL", requires = "trace")]
    pub attach_at: Option<String>,
    /// Whether the lock prefixes that the image lists are effective (default: not with one vCPU)
    #[arg(long, value_name = "STATE", value_parser = choice::<LockPrefixes>())]
    pub smp_locks: Option<LockPrefixes>,
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
    pub traced: Traced,
}

impl RunOptions {
    /// The part that is about tracing.
    #[must_use]
    pub fn tracing(&self) -> TracingOptions {
        TracingOptions {
            attach_at: self.attach_at.clone(),
            smp_locks: self.smp_locks,
            vcpus: u16::try_from(self.vcpus).unwrap_or(u16::MAX),
            probe_port: Some(layout::PROBE_PORT),
            doorbell_port: Some(layout::DOORBELL_PORT),
            vcpus_can_wait: true,
            can_hide_waits: crate::clock::can_be_set_back,
            ..self.traced.to_tracing()
        }
    }
}
