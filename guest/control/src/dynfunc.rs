//! `dynfunc`: dynamic functions of no to three parameters, called all the time until a `q` is typed. What
//! each of them led to is counted by its caller, and said whenever it changes.

use core::sync::atomic::{AtomicBool, Ordering};

use locked::Locked;
use workloads::dynamic::{TARGET_BITS, func0, func1, func2, func3};

use crate::catalogue;
use crate::console::print;
use crate::kernel_call;
use crate::options::Options;
use crate::workload::{first_value, print_calls, spawn_all};

/// Calls of the functions with these arguments: for each the target's number, below [`TARGETS`].
type Led = [u64; FUNCTIONS];

const FUNCTIONS: usize = 4;
const TARGETS: usize = 3;

static STOP: AtomicBool = AtomicBool::new(false);
/// Calls of each target, in the order of [`catalogue::DYNFUNC`].
static CALLS: [Locked; FUNCTIONS * TARGETS] = [const { Locked::new(0) }; FUNCTIONS * TARGETS];

/// One thread stays on each vCPU, or `threads=` of them wander; the main thread calls and prints.
pub fn run(options: &Options) {
    STOP.store(false, Ordering::Relaxed);
    CALLS.iter().for_each(|count| count.store(0));
    match options.threads {
        Some(threads) => spawn_all(threads, false, thread),
        None => spawn_all(options.vcpus, true, thread),
    }
    let mut counts = [0; FUNCTIONS * TARGETS];
    let mut shown = [None; FUNCTIONS];
    while kernel_call::read_byte() != Some(b'q') {
        let led = call_each(options.seed, &mut counts);
        for ((number, target), shown) in (0..).zip(led).zip(&mut shown) {
            if *shown != Some(target) {
                print(format_args!(
                    "dynfunc func{number} leads to {}",
                    name(number, target)
                ));
                *shown = Some(target);
            }
        }
        kernel_call::give_way();
    }
    STOP.store(true, Ordering::Relaxed);
    kernel_call::join();
    add(&counts);
    for (function, count) in catalogue::DYNFUNC.iter().zip(&CALLS) {
        print_calls(function.name, count.load());
    }
}

extern "C" fn thread(number: u64) -> ! {
    let mut counts = [0; FUNCTIONS * TARGETS];
    let mut value = first_value(0, number);
    while !STOP.load(Ordering::Relaxed) {
        call_each(value, &mut counts);
        value = value.rotate_left(7) ^ number;
    }
    add(&counts);
    kernel_call::exit()
}

/// Calls each function once, counts what it led to, and checks what was computed.
fn call_each(value: u64, counts: &mut [u64; FUNCTIONS * TARGETS]) -> Led {
    let (a, b, c) = (value, value ^ 1, !value);
    let (a3, b5, c7) = (a.wrapping_mul(3), b.wrapping_mul(5), c.wrapping_mul(7));
    let results = [
        (func0(), 0),
        (func1(a), a3),
        (func2(a, b), a3.wrapping_add(b5)),
        (func3(a, b, c), a3.wrapping_add(b5).wrapping_add(c7)),
    ];
    let mut led = [0; FUNCTIONS];
    for (((result, sum), led), number) in results.into_iter().zip(&mut led).zip(0..) {
        let target = result & ((1 << TARGET_BITS) - 1);
        let count = usize::try_from(target)
            .ok()
            .filter(|_| result == sum << TARGET_BITS | target)
            .and_then(|target| {
                counts
                    .get_mut(number * TARGETS..)?
                    .get_mut(..TARGETS)?
                    .get_mut(target)
            });
        let Some(count) = count else {
            crate::fail(format_args!(
                "guest: func{number} of {value:#x} gave {result:#x}"
            ));
        };
        *count += 1;
        *led = target;
    }
    led
}

fn add(counts: &[u64; FUNCTIONS * TARGETS]) {
    for (sum, count) in CALLS.iter().zip(counts) {
        sum.fetch_add(*count);
    }
}

fn name(function: usize, target: u64) -> &'static str {
    let place = usize::try_from(target).unwrap_or(TARGETS);
    catalogue::DYNFUNC
        .get(function * TARGETS + place)
        .map_or("?", |function| function.name)
}
