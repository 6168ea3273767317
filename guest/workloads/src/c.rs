//! The C functions, each in three builds (build.rs), and what they call at their entries.

use core::arch::global_asm;

// The compilers' hooks. Nobody is meant to reach them when tracing is on; they keep all registers.
global_asm!(
    ".section .text.mcount, \"ax\"",
    ".global mcount",
    ".type mcount, @function",
    "mcount: ret",
    ".size mcount, . - mcount",
    ".global __fentry__",
    ".type __fentry__, @function",
    "__fentry__: ret",
    ".size __fentry__, . - __fentry__",
    // What the builds call that keep their calls.
    ".global returns_at_once",
    ".type returns_at_once, @function",
    "returns_at_once: ret",
    ".size returns_at_once, . - returns_at_once",
    ".text",
);

macro_rules! builds {
    ($($build:ident: $root:ident, $empty:ident, $floats:ident, $marks:ident;)*) => {$(
        /// One iteration of a workload, in this build.
        pub mod $build {
            unsafe extern "C" {
                /// c/tree.c: plain words in and out, so any value is fine.
                pub safe fn $root(value: u64) -> u64;
                /// c/tree.c: a patch site and a return.
                pub safe fn $empty();
                /// c/floats.c: plain words in and out, so any value is fine.
                pub safe fn $floats(value: u64) -> u64;
                /// c/marks.c: plain words in and out, so any value is fine.
                pub safe fn $marks(value: u64) -> u64;
            }
        }
    )*};
}

/// Builds of c/dispatch.c: each function passes a place so many times.
macro_rules! dispatch_builds {
    ($($build:ident: $($way:ident),*;)*) => {$(
        #[doc = concat!("c/dispatch.c as \"", stringify!($build), "\".")]
        pub mod $build {
            unsafe extern "C" {
                $(
                    /// So many passes.
                    pub safe fn $way(calls: u64);
                )*
            }
        }
    )*};
}

dispatch_builds! {
    plain: plain_off, plain_direct, plain_pointer, plain_iterator1, plain_iterator2;
    retpoline: retpoline_off, retpoline_direct, retpoline_pointer, retpoline_iterator1, retpoline_iterator2;
}

/// Builds of c/tree.c that tracing has nothing to do with, for comparison.
macro_rules! untraced_builds {
    ($($(#[$doc:meta])* $build:ident: $root:ident;)*) => {$(
        $(#[$doc])*
        pub mod $build {
            unsafe extern "C" {
                /// c/tree.c: plain words in and out, so any value is fine.
                pub safe fn $root(value: u64) -> u64;
            }
        }
    )*};
}

untraced_builds! {
    /// No instrumentation.
    base: base_root;
    /// No instrumentation, but frame pointers.
    frame: frame_root;
    /// A call after each prologue that returns at once.
    call: call_root;
    /// A call before each prologue that returns at once.
    fentry_call: fentry_call_root;
}

/// Builds of c/values.c.
pub mod values {
    unsafe extern "C" {
        /// Plain words in and out, so any value is fine: the next one.
        pub safe fn unoptimised_values(serial: u64) -> u64;
        /// The same.
        pub safe fn optimised_values(serial: u64) -> u64;
    }
}

builds! {
    fentry: fentry_root, fentry_empty, fentry_floats, fentry_marks;
    mcount: mcount_root, mcount_empty, mcount_floats, mcount_marks;
    patchable: patchable_root, patchable_empty, patchable_floats, patchable_marks;
}
