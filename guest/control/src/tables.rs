//! `tables` and `all_tables`: before each call of the traced tree a vCPU builds page tables anew: only the topmost one, as
//! a kernel has one for each process, or all that lead to the image. What was a table is data then, all zeros. Who
//! writes into it from outside has taken it for a table that it was once: `counter spoilt N`.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use locked::Locked;
use workloads::calls::smp_root;

use crate::console::print;
use crate::kernel_call;
use crate::workload::vcpu;

/// vCPUs that there are tables for; others keep theirs.
const VCPUS: usize = 4;
/// Tables are used again after so many others.
const SETS: usize = 4;
/// Down to the page directory.
pub const ALL_LEVELS: u64 = 3;

/// The tables of one vCPU for one call.
#[repr(C, align(4096))]
struct Set([AtomicU64; 3 * 512]);

static POOL: [[Set; SETS]; VCPUS] =
    [const { [const { Set([const { AtomicU64::new(0) }; 3 * 512]) }; SETS] }; VCPUS];
/// The set that each vCPU uses.
static TURNS: [AtomicUsize; VCPUS] = [const { AtomicUsize::new(0) }; VCPUS];
static SPOILT: Locked = Locked::new(0);

/// One iteration of a thread that does not leave its vCPU.
pub fn step(levels: u64, value: u64) -> u64 {
    let vcpu = vcpu();
    let (Some(sets), Some(turn)) = (POOL.get(vcpu), TURNS.get(vcpu)) else {
        return smp_root(value);
    };
    let before = turn.load(Ordering::Relaxed);
    let now = (before + 1) % SETS;
    turn.store(now, Ordering::Relaxed);
    if let Some(set) = sets.get(now) {
        // SAFETY: nobody uses this set, and what leads to it now leads to it for as long as this vCPU uses it.
        unsafe { kernel_call::renew_tables(&raw const *set as u64, levels) };
    }
    if let Some(set) = sets.get(before) {
        set.clear();
    }
    let value = smp_root(value);
    for (_, set) in sets.iter().enumerate().filter(|(number, _)| *number != now) {
        if set.is_spoilt() {
            SPOILT.fetch_add(1);
            set.clear();
        }
    }
    value
}

/// Prints how often data was spoilt.
pub fn print_spoilt() {
    print(format_args!("counter spoilt {}", SPOILT.load()));
    SPOILT.store(0);
}

impl Set {
    fn clear(&self) {
        self.0
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn is_spoilt(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}
