//! `clock`: after each call of the traced tree a vCPU reads its time stamp counter. A time before one that this vCPU or
//! another has seen until then is counted: `counter clock_back N`.

use core::sync::atomic::{AtomicU64, Ordering};

use locked::Locked;
use workloads::calls::smp_root;

use crate::bench::fenced_timestamp;
use crate::console::print;
use crate::workload::{MAX_THREADS, vcpu};

/// The last time that each vCPU has seen.
static SEEN: [AtomicU64; MAX_THREADS] = [const { AtomicU64::new(0) }; MAX_THREADS];
static BACK: Locked = Locked::new(0);

/// One iteration of a thread that does not leave its vCPU.
pub fn step(value: u64) -> u64 {
    let value = smp_root(value);
    let seen = SEEN.iter().map(|seen| seen.load(Ordering::Acquire));
    let latest = seen.max().unwrap_or_default();
    let now = fenced_timestamp();
    if now < latest {
        BACK.fetch_add(1);
    }
    if let Some(seen) = SEEN.get(vcpu()) {
        seen.store(now, Ordering::Release);
    }
    value
}

/// Prints how often a time was one before another.
pub fn print_back() {
    print(format_args!("counter clock_back {}", BACK.load()));
    BACK.store(0);
}
