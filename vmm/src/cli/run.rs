//! Options of `vmm run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use tracer::ring::reader::Mode;
use tracer::session::TracerKind;
use tracer::stub::graph::ReturnHook;
use tracer::stub::recorder::Clock;

use super::graph::GraphOptions;
use crate::failure::Failure;
use crate::tracing::TracingOptions;

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
    /// The kernel: a 64-bit ELF file (vmlinux, not bzImage)
    #[arg(long, value_name = "FILE")]
    pub kernel: PathBuf,
    /// The kernel's command line; ` vcpus=N` is added to it
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        hide_default_value = true
    )]
    pub cmdline: String,
    /// Number of virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub vcpus: u64,
    /// Guest RAM in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub memory: u64,
    /// Listen for `vmm ctl` on this Unix socket (mode 0600; removed at the end)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// End the run after this many seconds, with exit status 103
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub timeout: Option<u64>,
    /// Trace from the attach point on
    #[arg(long, value_name = "TRACER")]
    pub trace: Option<Tracer>,
    /// How the graph tracer leaves a function
    #[arg(long, value_name = "HOOK", value_enum, default_value_t = HookChoice::Balanced)]
    pub return_hook: HookChoice,
    /// Size of a stack of the guest in KiB, a power of two: how the graph tracer tells threads apart
    /// (default: what the kernel uses, as far as it is known; 16 for Linux)
    #[arg(long, value_name = "KIB")]
    pub stack_size: Option<u64>,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub graph: GraphOptions,
    /// Trace only functions whose name matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub filter: Vec<String>,
    /// Never trace functions whose name matches; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub notrace: Vec<String>,
    /// Attach when this function is first reached (default: what suits the kernel, for the bundled
    /// guest `workloads_ready`)
    #[arg(long, value_name = "SYMBOL")]
    pub attach_at: Option<String>,
    /// What gives way when a ring is full: its oldest records or the new one
    #[arg(long, value_name = "MODE", value_enum, default_value_t = RingMode::Overwrite)]
    pub mode: RingMode,
    /// Where the times of records come from
    #[arg(long, value_name = "CLOCK", value_enum, default_value_t = ClockChoice::Tsc)]
    pub clock: ClockChoice,
    /// Size of the ring of each vCPU in KiB, a power of two from 4 to 1048576
    #[arg(long, value_name = "KIB", default_value_t = 4096)]
    pub ring_size: u64,
    /// Write the trace to this directory, in uftrace's format
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace the output directory if it exists
    #[arg(long, requires = "output")]
    pub force: bool,
}

/// What to trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tracer {
    /// Entries of functions.
    Function,
    /// Entries and exits of functions: the call graph with durations.
    Graph,
}

/// How a function whose exit is recorded is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HookChoice {
    /// Entered by call, left by return: the CPU predicts every return.
    Balanced,
    /// Left by a jump to the real return address.
    Jmp,
    /// Left by a return to the real return address.
    Ret,
}

/// What happens when a ring is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RingMode {
    /// The oldest records are overwritten (flight recorder).
    Overwrite,
    /// New records are discarded, and counted.
    Discard,
}

/// Where times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClockChoice {
    /// The guest's time-stamp counter, read in each record.
    Tsc,
    /// Nowhere: records show order and counts only, at a tenth of the price.
    None,
}

impl RunOptions {
    /// The part that is about tracing.
    ///
    /// # Errors
    /// A glob that is none.
    pub fn tracing(&self) -> Result<TracingOptions, Failure> {
        Ok(TracingOptions {
            enabled: self.trace.is_some(),
            tracer: match self.trace {
                Some(Tracer::Graph) => TracerKind::Graph,
                Some(Tracer::Function) | None => TracerKind::Function,
            },
            return_hook: match self.return_hook {
                HookChoice::Balanced => ReturnHook::Balanced,
                HookChoice::Jmp => ReturnHook::Jmp,
                HookChoice::Ret => ReturnHook::Ret,
            },
            filter: self.filter.clone(),
            notrace: self.notrace.clone(),
            attach_at: self.attach_at.clone(),
            mode: match self.mode {
                RingMode::Overwrite => Mode::Overwrite,
                RingMode::Discard => Mode::Discard,
            },
            clock: match self.clock {
                ClockChoice::Tsc => Clock::Tsc,
                ClockChoice::None => Clock::None,
            },
            ring_kib: self.ring_size,
            stack_kib: self.stack_size,
            calls: self.graph.rules()?,
            output: self.output.clone(),
            force: self.force,
            vcpus: self.vcpus,
        })
    }
}
