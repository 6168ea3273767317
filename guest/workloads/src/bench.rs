//! The leaves that the benchmark calls, as far as they are instrumented. `control` has the same leaf
//! without instrumentation.

/// The body of every leaf that the benchmark compares.
#[inline(always)]
pub fn leaf_body(value: u64) -> u64 {
    // The constant makes an instruction that is long enough for a jump: probes are measured there.
    (crate::opaque(value).wrapping_mul(5) ^ 0x5555_5555).wrapping_add(value)
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
