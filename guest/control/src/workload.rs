//! What a workload is, and how one is run.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use locked::Locked;

use crate::catalogue::CATALOGUE;
use crate::console::print;
use crate::kernel_call;
use crate::options::Options;

/// A traced function and how often one iteration calls it.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    /// Its ELF symbol.
    pub name: &'static str,
    /// Calls per iteration of one thread.
    pub per_iteration: u64,
}

/// Which threads run a workload.
#[derive(Debug, Clone, Copy)]
pub enum Threads {
    /// `threads=` of the command line, or this many; they run on any vCPU.
    Given(u64),
    /// One on each vCPU, which it does not leave.
    OnePerVcpu,
}

/// What a workload does.
#[derive(Debug, Clone, Copy)]
pub enum Body {
    /// Each thread calls this `iterations` times, each time with the last result.
    Iterations(Threads, fn(u64) -> u64),
    /// The same, and at the end the main thread prints what this prints.
    Counting(Threads, fn(u64) -> u64, fn()),
    /// Everything is its own business.
    Own(fn(&Options)),
}

/// A workload.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// Every traced function that it calls, directly or not, in one table or several.
    pub functions: &'static [&'static [Function]],
    /// What it does.
    pub body: Body,
}

/// More threads than the kernel has room for, the main thread included.
pub const MAX_THREADS: usize = 64;

/// The job that threads of [`run`] take: one workload runs at a time.
static WORKLOAD: AtomicUsize = AtomicUsize::new(0);
static ITERATIONS: AtomicU64 = AtomicU64::new(0);
static SEED: AtomicU64 = AtomicU64::new(0);
/// Whether all threads have begun: until then none ends, so that each has a number that no other one has had.
static ALL_BEGUN: AtomicBool = AtomicBool::new(false);
/// The sum of the threads' results: the same in whatever order they end.
static SUM: Locked = Locked::new(0);

/// Runs the workload with this place in the catalogue, and prints what it did.
pub fn run(place: usize, workload: &Workload, options: &Options) {
    let (threads, at_end) = match workload.body {
        Body::Own(body) => return body(options),
        Body::Iterations(threads, _) => (threads, None),
        Body::Counting(threads, _, at_end) => (threads, Some(at_end)),
    };
    let (threads, pinned) = match threads {
        Threads::Given(default) => (options.threads.unwrap_or(default), false),
        Threads::OnePerVcpu => (options.vcpus, true),
    };
    WORKLOAD.store(place, Ordering::Relaxed);
    ITERATIONS.store(options.iterations, Ordering::Relaxed);
    SEED.store(options.seed, Ordering::Relaxed);
    SUM.store(0);
    ALL_BEGUN.store(false, Ordering::Relaxed);
    spawn_all(threads, pinned, thread);
    ALL_BEGUN.store(true, Ordering::Relaxed);
    kernel_call::join();
    for function in workload.functions.iter().copied().flatten() {
        print_calls(
            function.name,
            function.per_iteration * options.iterations * threads,
        );
    }
    if let Some(at_end) = at_end {
        at_end();
    }
    print_checksum(workload.name, SUM.load());
}

/// Starts `threads` threads with the arguments 0, 1, …; a pinned one stays on the vCPU of its number.
pub fn spawn_all(threads: u64, pinned: bool, entry: extern "C" fn(u64) -> !) {
    for number in 0..threads {
        if kernel_call::spawn(entry, number, pinned.then_some(number)).is_none() {
            crate::fail(format_args!(
                "guest: no room for {threads} threads: pass fewer"
            ));
        }
    }
}

/// Prints the line that traces are compared with.
pub fn print_calls(function: &str, calls: u64) {
    print(format_args!("calls {function} {calls}"));
}

/// Prints the line that shows that a workload computed what it should.
pub fn print_checksum(workload: &str, sum: u64) {
    print(format_args!("checksum {workload} {sum:016x}"));
}

/// A thread's first value: different for each thread and each seed.
pub fn first_value(seed: u64, thread: u64) -> u64 {
    let mut value = seed.wrapping_add(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The number of this vCPU (kernel/src/vcpu.rs).
pub fn vcpu() -> usize {
    let index: usize;
    // SAFETY: every vCPU's GS base leads to its block, in every ring.
    unsafe { asm!("mov {}, gs:[0]", out(reg) index, options(nostack, readonly)) }
    index
}

extern "C" fn thread(number: u64) -> ! {
    let workload = CATALOGUE.get(WORKLOAD.load(Ordering::Relaxed));
    if let Some(Workload {
        body: Body::Iterations(_, iteration) | Body::Counting(_, iteration, _),
        ..
    }) = workload
    {
        let mut value = first_value(SEED.load(Ordering::Relaxed), number);
        for _ in 0..ITERATIONS.load(Ordering::Relaxed) {
            value = iteration(value);
        }
        SUM.fetch_add(value);
    }
    while !ALL_BEGUN.load(Ordering::Relaxed) {
        kernel_call::give_way();
    }
    kernel_call::exit()
}
