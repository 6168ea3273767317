//! `events`: threads that pass tracepoints. What was passed is known beforehand, what callbacks have seen is
//! counted as it happens.

use locked::Locked;
use workloads::events::{RECEIVED, SENT, SUM, SUMMED, events_pass};

use crate::catalogue;
use crate::console::print;
use crate::kernel_call;
use crate::options::Options;
use crate::workload::{first_value, print_calls, print_checksum, spawn_all};

static ITERATIONS: Locked = Locked::new(0);
static SEED: Locked = Locked::new(0);
static CHECKSUM: Locked = Locked::new(0);
/// The sum of all sizes sent.
static SIZES: Locked = Locked::new(0);

/// The threads of the workload when `threads=` says nothing.
const THREADS: u64 = 4;

/// Each thread passes `iterations` messages.
pub fn run(options: &Options) {
    let threads = options.threads.unwrap_or(THREADS);
    ITERATIONS.store(options.iterations);
    SEED.store(options.seed);
    for sum in [&CHECKSUM, &SIZES, &SENT, &SUM, &SUMMED, &RECEIVED] {
        sum.store(0);
    }
    spawn_all(threads, false, thread);
    kernel_call::join();
    let passes = options.iterations * threads;
    for function in catalogue::EVENTS {
        print_calls(function.name, function.per_iteration * passes);
    }
    print_calls("sent_count", SENT.load());
    print_calls("sent_sum", SUMMED.load());
    print_calls("received_count", RECEIVED.load());
    for point in ["message_sent", "message_received", "message_parts"] {
        print(format_args!("passes {point} {passes}"));
    }
    print(format_args!("sizes {}", SIZES.load()));
    print(format_args!("summed {}", SUM.load()));
    print_checksum("events", CHECKSUM.load());
}

extern "C" fn thread(number: u64) -> ! {
    let mut value = first_value(SEED.load(), number);
    let mut sizes = 0u64;
    for _ in 0..ITERATIONS.load() {
        sizes = sizes.wrapping_add(value & 0xffff_ffff_ffff);
        value = events_pass(number, value);
    }
    SIZES.fetch_add(sizes);
    CHECKSUM.fetch_add(value);
    kernel_call::exit()
}
