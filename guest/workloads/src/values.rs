//! Values that probes find, in Rust: the workload `values`. Everything follows from `serial`.

use crate::opaque;

/// A structure.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// Twice the serial's lower half, turned around.
    pub x: i32,
    /// The serial's complement.
    pub y: i64,
    /// What it is called.
    pub label: &'static str,
}

/// Numbers with names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Even serials.
    Idle = 2,
    /// Odd ones.
    Busy = 7,
}

/// The serials' names, by turns.
const LABELS: [&str; 3] = ["alpha", "", "a label that is rather long, for a label"];

/// A reference, text, a pair and a number with a name.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(
    improper_ctypes_definitions,
    reason = "a Rust function that other Rust calls"
)]
pub extern "C" fn rust_values_arguments(
    serial: u64,
    point: &Point,
    state: State,
    is_odd: bool,
    small: i8,
) -> i64 {
    let sum = opaque(serial).wrapping_add(state as u64);
    opaque(sum).wrapping_add(u64::from(is_odd)).cast_signed() ^ point.y ^ i64::from(small)
}

/// Text in two registers, as Rust passes it, and a pair.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn rust_values_text(serial: u64, text: &str, pair: (u32, i16)) -> u64 {
    // Who leaves a parameter alone is not given it.
    let first = text.as_bytes().first().copied();
    opaque(serial)
        .wrapping_add(text.len() as u64 + u64::from(first.unwrap_or_default()))
        .wrapping_add(u64::from(pair.0))
        .wrapping_add_signed(i64::from(pair.1))
}

/// One iteration.
#[unsafe(no_mangle)]
#[inline(never)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "values of every width are made of one"
)]
pub extern "C" fn rust_values(serial: u64) -> u64 {
    let label = match serial % 3 {
        0 => LABELS[0],
        1 => LABELS[1],
        _ => LABELS[2],
    };
    let point = Point {
        x: (serial as i32).wrapping_mul(-2),
        y: !serial as i64,
        label,
    };
    let is_odd = serial & 1 == 1;
    let state = if is_odd { State::Busy } else { State::Idle };
    let sum = rust_values_arguments(serial, &point, state, is_odd, serial as i8);
    let pair = ((serial >> 7) as u32, !serial as i16);
    opaque(rust_values_text(serial, label, pair).wrapping_add_signed(sum));
    serial
}
