//! A tree of small functions, six deep, each calling the next one twice.

use crate::opaque;

/// The body of the leaf: a few instructions.
#[inline(always)]
pub fn leaf_body(value: u64) -> u64 {
    opaque(value)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(7)
}

/// The leaf.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn calls_leaf(value: u64) -> u64 {
    leaf_body(value)
}

/// Functions that call the next one twice: instrumented where the crate that uses it is.
#[macro_export]
macro_rules! twice {
    ($($(#[$doc:meta])* $name:ident => $next:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub extern "C" fn $name(value: u64) -> u64 {
            let first = $next(value);
            $crate::opaque($next(first ^ 1)).wrapping_add(first)
        }
    )*};
}

twice! {
    /// Depth 5.
    calls_twig => calls_leaf;
    /// Depth 4.
    calls_branch => calls_twig;
    /// Depth 3.
    calls_bough => calls_branch;
    /// Depth 2.
    calls_trunk => calls_bough;
    /// Depth 1.
    calls_root => calls_trunk;
}

/// The root of the workload `threads`, with functions of its own: preempted and migrated.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn threads_leaf(value: u64) -> u64 {
    let mut value = opaque(value);
    for _ in 0..8 {
        value = opaque(value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    value
}

twice! {
    /// Depth 2 of `threads`.
    threads_branch => threads_leaf;
    /// Depth 1 of `threads`.
    threads_root => threads_branch;
}

/// The leaf that all vCPUs call in the workload `smp`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn smp_leaf(value: u64) -> u64 {
    opaque(value)
        .wrapping_mul(0x94d0_49bb_1331_11eb)
        .rotate_left(11)
}

twice! {
    /// Depth 2 of `smp`.
    smp_branch => smp_leaf;
    /// Depth 1 of `smp`.
    smp_root => smp_branch;
}

/// The leaf of the workload `spin`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn spin_leaf(value: u64) -> u64 {
    opaque(value)
        .wrapping_mul(0xd6e8_feb8_6659_fd93)
        .rotate_left(13)
}

twice! {
    /// Depth 2 of `spin`.
    spin_branch => spin_leaf;
    /// Depth 1 of `spin`.
    spin_root => spin_branch;
}
