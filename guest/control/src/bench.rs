//! `bench` and `bench_smp`: what a call costs, in cycles of the TSC.
//!
//! All leaves have the same body and the same alignment, and are called in the same loop. `vmm` traces
//! `bench_leaf_traced` and leaves `bench_leaf_nop` alone.

use core::arch::asm;
use core::arch::x86_64::{_mm_lfence, _rdtsc};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, Ordering};

use locked::Locked;
use workloads::bench::{bench_leaf_nop, bench_leaf_traced, leaf_body};
use workloads::calls::{self, calls_root};

use crate::console::print;
use crate::kernel_call;
use crate::options::Options;
use crate::workload::{MAX_THREADS, print_calls, spawn_all};

/// The leaf without instrumentation.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_plain(value: u64) -> u64 {
    leaf_body(value)
}

/// The leaf without instrumentation, and one time stamp: the least that a record with a time can cost.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_rdtsc(value: u64) -> u64 {
    leaf_body(value) ^ timestamp()
}

/// The same with two time stamps, as an entry and an exit take them.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_rdtsc_twice(value: u64) -> u64 {
    let before = timestamp();
    leaf_body(value) ^ timestamp().wrapping_sub(before)
}

/// The tree of the workload `calls` without instrumentation.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn bench_plain_leaf(value: u64) -> u64 {
    calls::leaf_body(value)
}

workloads::twice! {
    /// Depth 5.
    bench_plain_twig => bench_plain_leaf;
    /// Depth 4.
    bench_plain_branch => bench_plain_twig;
    /// Depth 3.
    bench_plain_bough => bench_plain_branch;
    /// Depth 2.
    bench_plain_trunk => bench_plain_bough;
    /// Depth 1.
    bench_plain_root => bench_plain_trunk;
}

/// How many calls are one of the root.
const TREE: u64 = 63;

/// A cache line of its own.
#[repr(align(64))]
struct Line(AtomicU64);
/// What the leaves below write to.
static WRITTEN: Line = Line(AtomicU64::new(0));

/// The leaf without instrumentation, and one store.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_store(value: u64) -> u64 {
    let result = leaf_body(value);
    WRITTEN.0.store(result, Ordering::Relaxed);
    result
}

/// The leaf without instrumentation, and one `xadd`: the least that reserves a record where a thread can be interrupted.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_xadd(value: u64) -> u64 {
    leaf_body(value) ^ exchange_and_add()
}

/// The same with two of the same word, as an entry and an exit do: the second waits for the first.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_xadd_twice(value: u64) -> u64 {
    let before = exchange_and_add();
    leaf_body(value) ^ exchange_and_add().wrapping_sub(before)
}

/// Without a lock prefix, which Rust's own atomic operations would have.
#[inline(always)]
fn exchange_and_add() -> u64 {
    let mut old = 8;
    // SAFETY: the word is this module's own, and what other threads add to it may get lost.
    unsafe {
        asm!("xadd [{word}], {old}", word = in(reg) WRITTEN.0.as_ptr(), old = inout(reg) old);
    }
    old
}

fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has it, and the kernel leaves it open to ring 3.
    unsafe { _rdtsc() }
}

/// A time stamp that waits for everything before it, and that everything after waits for.
pub fn fenced_timestamp() -> u64 {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_lfence() };
    let now = timestamp();
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    now
}

/// A loop of its own for each leaf, the same instructions at the same alignment.
macro_rules! timed_loops {
    ($($name:ident => $leaf:ident;)*) => {$(
        /// Cycles that this many calls take.
        fn $name(calls: u64) -> u64 {
            if calls == 0 {
                return 0;
            }
            let start = fenced_timestamp();
            // SAFETY: the leaf is a C function of one word; `clobber_abi` says what it may change.
            // The stack is aligned for the call because the block may push.
            unsafe {
                asm!(
                    ".p2align 6",
                    "2:",
                    "mov rdi, r12",
                    "call {leaf}",
                    "dec r12",
                    "jnz 2b",
                    leaf = sym $leaf,
                    inout("r12") calls => _,
                    clobber_abi("C"),
                );
            }
            fenced_timestamp() - start
        }
    )*};
}

timed_loops! {
    time_plain => bench_leaf_plain;
    time_nop => bench_leaf_nop;
    time_traced => bench_leaf_traced;
    time_rdtsc => bench_leaf_rdtsc;
    time_rdtsc_twice => bench_leaf_rdtsc_twice;
    time_store => bench_leaf_store;
    time_xadd => bench_leaf_xadd;
    time_xadd_twice => bench_leaf_xadd_twice;
    time_tree_plain => bench_plain_root;
    time_tree_traced => calls_root;
}

type Timed = (&'static str, fn(u64) -> u64);

static LEAVES: [Timed; 8] = [
    ("bench_leaf_plain", time_plain),
    ("bench_leaf_nop", time_nop),
    ("bench_leaf_traced", time_traced),
    ("bench_leaf_rdtsc", time_rdtsc),
    ("bench_leaf_rdtsc_twice", time_rdtsc_twice),
    ("bench_leaf_store", time_store),
    ("bench_leaf_xadd", time_xadd),
    ("bench_leaf_xadd_twice", time_xadd_twice),
];

/// Rounds of all leaves; every other round backwards, so that drift hits all alike.
pub fn leaves(options: &Options) {
    for round in 0..options.rounds {
        if round % 2 == 0 {
            LEAVES
                .iter()
                .for_each(|leaf| measure(leaf, options.iterations));
        } else {
            LEAVES
                .iter()
                .rev()
                .for_each(|leaf| measure(leaf, options.iterations));
        }
    }
    print_calls("bench_leaf_nop", options.iterations * options.rounds);
    print_calls("bench_leaf_traced", options.iterations * options.rounds);
}

fn measure((name, timed): &Timed, calls: u64) {
    let cycles = timed(calls);
    print(format_args!("bench {name} {calls} {cycles}"));
}

/// Rounds of the tree of the workload `calls`, with instrumentation and without.
pub fn tree(options: &Options) {
    let roots = options.iterations / TREE;
    let measure = |name: &str, timed: fn(u64) -> u64| {
        let cycles = timed(roots);
        print(format_args!("bench {name} {} {cycles}", roots * TREE));
    };
    for _ in 0..options.rounds {
        measure("tree_plain", time_tree_plain);
        measure("tree_traced", time_tree_traced);
    }
    print_calls("calls_root", roots * options.rounds);
}

static CALLS: AtomicU64 = AtomicU64::new(0);
/// Threads that have yet to arrive at the start line.
static AWAITED: Locked = Locked::new(0);
static CYCLES: [AtomicU64; MAX_THREADS] = [const { AtomicU64::new(0) }; MAX_THREADS];

/// Rounds of the traced leaf: on one vCPU alone, then on all at the same time.
pub fn smp(options: &Options) {
    let vcpus = options.threads.unwrap_or(options.vcpus).min(options.vcpus);
    CALLS.store(options.iterations, Ordering::Relaxed);
    for _ in 0..options.rounds {
        together("solo", 1, options.iterations);
        together("smp", vcpus, options.iterations);
    }
    print_calls(
        "bench_leaf_traced",
        options.iterations * options.rounds * (vcpus + 1),
    );
}

fn together(name: &str, vcpus: u64, calls: u64) {
    AWAITED.store(vcpus);
    spawn_all(vcpus, true, racer);
    kernel_call::join();
    for (vcpu, cycles) in (0..vcpus).zip(&CYCLES) {
        print(format_args!(
            "bench {name} {vcpu} {calls} {}",
            cycles.load(Ordering::Relaxed)
        ));
    }
}

extern "C" fn racer(vcpu: u64) -> ! {
    AWAITED.fetch_add(u64::MAX);
    while AWAITED.load() != 0 {
        spin_loop();
    }
    let cycles = time_traced(CALLS.load(Ordering::Relaxed));
    if let Some(slot) = usize::try_from(vcpu).ok().and_then(|vcpu| CYCLES.get(vcpu)) {
        slot.store(cycles, Ordering::Relaxed);
    }
    kernel_call::exit()
}
