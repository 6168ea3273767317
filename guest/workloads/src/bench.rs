//! The leaves that the benchmark calls, as far as they are instrumented. `control` has the same leaf
//! without instrumentation.

/// The body of every leaf that the benchmark compares.
#[inline(always)]
pub fn leaf_body(value: u64) -> u64 {
    (crate::opaque(value).wrapping_mul(5) ^ 0x55).wrapping_add(value)
}

/// Instrumented; the benchmark leaves its nop alone.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_nop(value: u64) -> u64 {
    leaf_body(value)
}

/// Instrumented; the benchmark traces it.
#[unsafe(no_mangle)]
#[inline(never)]
#[rustc_align(64)]
pub extern "C" fn bench_leaf_traced(value: u64) -> u64 {
    leaf_body(value)
}
