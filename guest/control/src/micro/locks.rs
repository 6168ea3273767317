//! A read-modify-write instruction with a lock, with DS instead, with a nop instead, and with nothing.

use super::{code, in_rounds, report, time_calls};
use crate::options::Options;

static VARIANTS: [(&str, &[u8]); 4] = [
    ("lock", &[0xf0]),
    ("ds", &[0x3e]),
    ("nop", &[0x90]),
    ("none", &[]),
];
/// `mov eax, 1`
const ONE: [u8; 5] = [0xb8, 1, 0, 0, 0];
/// `xadd [rsi], rax; ret`
const XADD: [u8; 5] = [0x48, 0x0f, 0xc1, 0x06, 0xc3];

/// A loop around each.
pub fn run(options: &Options) {
    let word = 0;
    in_rounds(options, &VARIANTS, |(name, prefix)| {
        let leaf = code::put(0, &[&ONE, prefix, &XADD]);
        // SAFETY: a function that adds to the word was just put there.
        let cycles = unsafe { time_calls(leaf, options.iterations, &raw const word) };
        report(format_args!("locks.{name}"), options.iterations, cycles);
    });
}
