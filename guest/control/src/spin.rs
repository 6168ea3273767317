//! `spin`: a small tree on every vCPU until a `q` is typed. What was called is counted as it happens.
//! At an `x` the guest writes a nop to the patch site of `spin_leaf`, whatever is there, and at the next
//! one it puts that back: a guest that has a tracer of its own. From a `p` on until the next one it patches the sites of all
//! three without end, as one that minds what others have put there (`own_patching.rs`). At a `t` it sets the time stamp counter of one vCPU
//! ahead. At a `d` the guest dies there and then, whatever the others do (`accidents.rs`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use workloads::calls::{spin_branch, spin_leaf, spin_root};

use crate::accidents;
use crate::catalogue;
use crate::console::print;
use crate::kernel_call;
use crate::options::Options;
use crate::own_patching::OwnPatching;
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
    let mut own_nop = OwnNop::default();
    let mut own_patching = OwnPatching::default();
    loop {
        own_patching.step();
        match kernel_call::read_byte() {
            Some(b'q') => break,
            Some(b'x') => own_nop.toggle(),
            Some(b'p') => own_patching.toggle([
                spin_root as *const () as u64,
                spin_branch as *const () as u64,
                spin_leaf as *const () as u64,
            ]),
            Some(b't') => set_clock(),
            Some(b'd') => accidents::fault(options),
            _ => kernel_call::give_way(),
        }
    }
    STOP.store(true, Ordering::Relaxed);
    kernel_call::join();
    let iterations: u64 = DONE.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    for function in catalogue::SPIN {
        print_calls(function.name, function.per_iteration * iterations);
    }
}

/// Ticks that a clock is set ahead: some seconds, and not a whole number of anything.
const AHEAD: u64 = (7 << 32) + 12_345;

fn set_clock() {
    let is_set = kernel_call::set_clock_ahead(AHEAD);
    print(format_args!(
        "clock {}",
        if is_set { "set" } else { "not set" }
    ));
}

/// The guest's own change of its text.
#[derive(Default)]
struct OwnNop {
    /// What was there.
    before: Option<u64>,
}

impl OwnNop {
    fn toggle(&mut self) {
        const NOP: u64 = 0x00_0044_1f0f;
        const SITE: u64 = (1 << 40) - 1;
        let at = spin_leaf as *const () as u64;
        let word = match self.before.take() {
            Some(before) => before,
            None => {
                // SAFETY: functions are aligned to more than a word, and their text is mapped.
                let now = unsafe { (at as *const u64).read_volatile() };
                self.before = Some(now);
                now & !SITE | NOP
            }
        };
        // SAFETY: the site is executed as a whole, and does as well without what was there.
        let _ = unsafe { kernel_call::exchange_text(at, word) };
        print(format_args!(
            "spin_leaf {}",
            if self.before.is_some() {
                "taken"
            } else {
                "given back"
            }
        ));
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
