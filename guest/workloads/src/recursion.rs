//! A function that calls itself.

use crate::opaque;

/// How deep one call of [`recursion_step`] with this argument goes.
pub const DEPTH: u64 = 200;

/// Calls itself until `left` is 1: `left` calls in all.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn recursion_step(left: u64, value: u64) -> u64 {
    if left <= 1 {
        return opaque(value);
    }
    let inner = recursion_step(left - 1, value.rotate_left(1) ^ left);
    // Used after the call, so that it cannot become a loop.
    opaque(inner).wrapping_add(left)
}
