//! `spin`: a small tree on every vCPU until a `q` is typed. What was called is counted as it happens.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use workloads::calls::spin_root;

use crate::catalogue;
use crate::kernel_call;
use crate::options::Options;
use crate::workload::{MAX_THREADS, first_value, print_calls, spawn_all};

static STOP: AtomicBool = AtomicBool::new(false);
/// Iterations that each thread has finished.
static DONE: [AtomicU64; MAX_THREADS] = [const { AtomicU64::new(0) }; MAX_THREADS];

/// One thread stays on each vCPU, or `threads=` of them wander.
pub fn run(options: &Options) {
    STOP.store(false, Ordering::Relaxed);
    DONE.iter()
        .for_each(|done| done.store(0, Ordering::Relaxed));
    match options.threads {
        Some(threads) => spawn_all(threads, false, thread),
        None => spawn_all(options.vcpus, true, thread),
    }
    // Once per turn in the run queue: the spinning threads have the vCPUs in between.
    while kernel_call::read_byte() != Some(b'q') {
        kernel_call::give_way();
    }
    STOP.store(true, Ordering::Relaxed);
    kernel_call::join();
    let iterations: u64 = DONE.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    for function in catalogue::SPIN {
        print_calls(function.name, function.per_iteration * iterations);
    }
}

extern "C" fn thread(number: u64) -> ! {
    let mut value = first_value(0, number);
    let mut done = 0;
    while !STOP.load(Ordering::Relaxed) {
        value = spin_root(value);
        done += 1;
    }
    if let Some(slot) = usize::try_from(number)
        .ok()
        .and_then(|number| DONE.get(number))
    {
        slot.store(done, Ordering::Relaxed);
    }
    kernel_call::exit()
}
