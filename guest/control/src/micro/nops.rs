//! What stands at a function's entry while nobody traces it: the candidates of 2008 and of today.

use core::arch::asm;

use super::code::{self, BODY};
use super::{in_rounds, report, time_calls};
use crate::bench::fenced_timestamp;
use crate::options::Options;

/// Name and bytes.
type Variant = (&'static str, &'static [u8]);

static VARIANTS: [Variant; 8] = [
    ("none", &[]),
    ("jmp2", &[0xeb, 0x03, 0x90, 0x90, 0x90]),
    ("jmp5", &[0xe9, 0, 0, 0, 0]),
    ("nop3+2", &[0x66, 0x66, 0x90, 0x66, 0x90]),
    ("nop66", &[0x66, 0x66, 0x66, 0x66, 0x90]),
    ("p6", &[0x0f, 0x1f, 0x44, 0x00, 0x00]),
    ("llvm", &[0x0f, 0x1f, 0x44, 0x00, 0x08]),
    // To the last byte of the line, which holds a `ret`.
    ("call", &[0xe8, 58, 0, 0, 0]),
];
/// Sites that fit into a line beside the body and the `ret` that is called.
const CROWD: usize = 10;
/// A line's last byte.
const LAST: usize = 63;
const RET: u8 = 0xc3;

/// A loop around one function; the same with many sites in its line; every function of a text far
/// larger than the caches, in no order.
pub fn run(options: &Options) {
    in_rounds(options, &VARIANTS, |variant| {
        hot(variant, options.iterations)
    });
    in_rounds(options, &VARIANTS, |variant| {
        crowded(variant, options.iterations)
    });
    in_rounds(options, &VARIANTS, cold);
}

fn line_of(variant: &Variant, sites: usize) -> [u8; 64] {
    let (name, site) = *variant;
    let mut line = [0x90; 64];
    let mut at = 0;
    let mut append = |bytes: &[u8], is_call: bool| {
        for (slot, byte) in line.iter_mut().skip(at).zip(bytes) {
            *slot = *byte;
        }
        // A call's distance depends on where it stands.
        if is_call && let Some(distance) = line.get_mut(at + 1) {
            *distance = u8::try_from(LAST.saturating_sub(at + 5)).unwrap_or_default();
        }
        at += bytes.len();
    };
    for _ in 0..sites {
        append(site, name == "call");
    }
    append(&BODY, false);
    if let Some(last) = line.last_mut() {
        *last = RET;
    }
    line
}

fn hot(variant: &Variant, calls: u64) {
    let leaf = code::put(0, &[&line_of(variant, 1)]);
    // SAFETY: a function was just put there.
    let cycles = unsafe { time_calls(leaf, calls, core::ptr::null()) };
    report(format_args!("nops.hot.{}", variant.0), calls, cycles);
}

fn crowded(variant: &Variant, calls: u64) {
    let leaf = code::put(0, &[&line_of(variant, CROWD)]);
    // SAFETY: a function was just put there.
    let cycles = unsafe { time_calls(leaf, calls, core::ptr::null()) };
    report(format_args!("nops.crowded.{}", variant.0), calls, cycles);
}

fn cold(variant: &Variant) {
    let line = line_of(variant, 1);
    let lines = code::lines();
    for number in 0..lines {
        code::put(number, &[&line]);
    }
    // Once to warm up what can be: page tables.
    time_all(lines);
    report(
        format_args!("nops.cold.{}", variant.0),
        lines,
        time_all(lines),
    );
}

/// Calls all functions, each once.
fn time_all(lines: u64) -> u64 {
    let start = fenced_timestamp();
    for number in 0..lines {
        let leaf = code::start() + shuffled(number, lines) * code::LINE;
        // SAFETY: each line holds a function of one word.
        unsafe { asm!("call {leaf}", leaf = in(reg) leaf, in("rdi") number, clobber_abi("C")) };
    }
    fenced_timestamp() - start
}

/// A permutation of the numbers below `count`, a power of two.
fn shuffled(number: u64, count: u64) -> u64 {
    let mask = count - 1;
    let mixed = number.wrapping_mul(0x9e37_79b1) & mask;
    let mixed = (mixed ^ (mixed >> 9)).wrapping_mul(0x85eb_ca77) & mask;
    mixed ^ (mixed >> 7)
}
