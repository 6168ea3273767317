//! Functions that are needed once, at the start: their text is freed before the first other workload.

use crate::opaque;

/// The leaf.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub extern "C" fn init_leaf(value: u64) -> u64 {
    opaque(value).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Calls it three times.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".init.text")]
#[inline(never)]
pub extern "C" fn init_root(value: u64) -> u64 {
    let value = init_leaf(value);
    let value = opaque(value) ^ init_leaf(value ^ 1);
    opaque(value) ^ init_leaf(value ^ 2)
}
