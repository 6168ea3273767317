//! What it takes to get out of a place in the code and back: into the guest's kernel, and to the VMM.

use super::{in_rounds, report};
use crate::bench::fenced_timestamp;
use crate::kernel_call;
use crate::options::Options;

type Way = (&'static str, fn());

static WAYS: [Way; 3] = [
    ("breakpoint", kernel_call::breakpoint),
    ("kernel", kernel_call::give_way),
    ("vmm", || {
        kernel_call::read_byte();
    }),
];
/// Each takes microseconds, not nanoseconds.
const SLOWER: u64 = 1000;

/// A loop around each.
pub fn run(options: &Options) {
    let calls = (options.iterations / SLOWER).max(1);
    in_rounds(options, &WAYS, |(name, there_and_back)| {
        let start = fenced_timestamp();
        for _ in 0..calls {
            there_and_back();
        }
        let cycles = fenced_timestamp() - start;
        report(format_args!("probes.{name}"), calls, cycles);
    });
}
