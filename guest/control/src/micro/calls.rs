//! The same C code in several builds: what a compiler's hook at each entry costs.

use workloads::c::{base, call, fentry, fentry_call, frame, mcount};

use super::{in_rounds, report};
use crate::bench::fenced_timestamp;
use crate::options::Options;
use crate::workload::first_value;

/// Calls of functions in one iteration of c/tree.c.
const CALLS: u64 = 21;

type Build = (&'static str, fn(u64) -> u64);

static BUILDS: [Build; 6] = [
    ("base", |value| base::base_root(value)),
    ("frame", |value| frame::frame_root(value)),
    ("mcount-nop", |value| mcount::mcount_root(value)),
    ("fentry-nop", |value| fentry::fentry_root(value)),
    ("mcount-call", |value| call::call_root(value)),
    ("fentry-call", |value| fentry_call::fentry_call_root(value)),
];

/// A loop around each.
pub fn run(options: &Options) {
    in_rounds(options, &BUILDS, |(name, root)| {
        let mut value = first_value(options.seed, 0);
        let start = fenced_timestamp();
        for _ in 0..options.iterations {
            value = root(value);
        }
        let cycles = fenced_timestamp() - start;
        report(
            format_args!("calls.{name}"),
            options.iterations * CALLS,
            cycles,
        );
    });
}
