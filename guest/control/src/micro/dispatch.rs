//! From a place that may be watched to who watches it: not at all, by a retargeted jump, by a pointer, by the
//! iterator over one callback and over two; without and with retpolines.

use workloads::c::{plain, retpoline};

use super::{in_rounds, report};
use crate::bench::fenced_timestamp;
use crate::options::Options;

type Way = (&'static str, extern "C" fn(u64));

static WAYS: [Way; 10] = [
    ("plain.off", plain::plain_off),
    ("plain.direct", plain::plain_direct),
    ("plain.pointer", plain::plain_pointer),
    ("plain.iterator1", plain::plain_iterator1),
    ("plain.iterator2", plain::plain_iterator2),
    ("retpoline.off", retpoline::retpoline_off),
    ("retpoline.direct", retpoline::retpoline_direct),
    ("retpoline.pointer", retpoline::retpoline_pointer),
    ("retpoline.iterator1", retpoline::retpoline_iterator1),
    ("retpoline.iterator2", retpoline::retpoline_iterator2),
];

/// A loop around each.
pub fn run(options: &Options) {
    in_rounds(options, &WAYS, |(name, pass)| {
        let start = fenced_timestamp();
        pass(options.iterations);
        let cycles = fenced_timestamp() - start;
        report(format_args!("dispatch.{name}"), options.iterations, cycles);
    });
}
