//! Micro measurements for the experiments (`make experiments`): each prints `bench NAME CALLS CYCLES`.

pub mod calls;
mod code;
pub mod depth;
pub mod dispatch;
pub mod locks;
pub mod nops;
pub mod probes;

use core::arch::asm;
use core::fmt;

use crate::bench::fenced_timestamp;
use crate::console::print;
use crate::options::Options;

/// Rounds of `measurements` in turn; every other round backwards, so that drift hits all alike.
fn in_rounds<T>(options: &Options, measurements: &[T], mut measure: impl FnMut(&T)) {
    for round in 0..options.rounds {
        if round % 2 == 0 {
            measurements.iter().for_each(&mut measure);
        } else {
            measurements.iter().rev().for_each(&mut measure);
        }
    }
}

fn report(name: fmt::Arguments<'_>, calls: u64, cycles: u64) {
    print(format_args!("bench {name} {calls} {cycles}"));
}

/// Cycles that `calls` calls of the function at `leaf` take, each with `word` in rsi.
///
/// # Safety
/// Code of a C function of two words must lie there.
unsafe fn time_calls(leaf: u64, calls: u64, word: *const u64) -> u64 {
    if calls == 0 {
        return 0;
    }
    let start = fenced_timestamp();
    // SAFETY: the caller's promise; `clobber_abi` says what a C function may change. The stack is
    // aligned for the call because the block may push.
    unsafe {
        asm!(
            ".p2align 6",
            "2:",
            "mov rdi, r12",
            "mov rsi, r14",
            "call r13",
            "dec r12",
            "jnz 2b",
            inout("r12") calls => _,
            in("r13") leaf,
            in("r14") word,
            clobber_abi("C"),
        );
    }
    fenced_timestamp() - start
}
