//! Calls inside calls, from 1 to 32 deep: what hooked returns do to the CPU's return predictor.

use core::hint::black_box;

use workloads::micro::micro_nested;

use super::{in_rounds, report};
use crate::bench::fenced_timestamp;
use crate::options::Options;
use crate::workload::print_calls;

static DEPTHS: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// The same function without instrumentation.
#[inline(never)]
extern "C" fn plain_nested(depth: u64, value: u64) -> u64 {
    let value = black_box(value);
    if depth <= 1 {
        return value.wrapping_mul(5) ^ 0x55;
    }
    black_box(plain_nested(depth - 1, value)).wrapping_add(depth)
}

/// About `iterations` calls at each depth.
pub fn run(options: &Options) {
    in_rounds(options, &DEPTHS, |&depth| {
        let times = options.iterations / depth;
        let measure = |name, nested: &dyn Fn(u64) -> u64| {
            let start = fenced_timestamp();
            let value = (0..times).fold(1, |value, _| nested(value));
            let cycles = fenced_timestamp() - start;
            black_box(value);
            report(format_args!("depth.{name}.{depth}"), times * depth, cycles);
        };
        measure("plain", &|value| plain_nested(depth, value));
        measure("traced", &|value| micro_nested(depth, value));
    });
    let calls_of = |depth: &u64| options.iterations / depth * depth;
    let calls: u64 = DEPTHS.iter().map(calls_of).sum();
    print_calls("micro_nested", calls * options.rounds);
}
