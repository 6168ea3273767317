//! What the micro measurements call, as far as it is instrumented.

use crate::opaque;

/// Calls itself until it is `depth` deep.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn micro_nested(depth: u64, value: u64) -> u64 {
    let value = opaque(value);
    if depth <= 1 {
        return value.wrapping_mul(5) ^ 0x55;
    }
    opaque(micro_nested(depth - 1, value)).wrapping_add(depth)
}
