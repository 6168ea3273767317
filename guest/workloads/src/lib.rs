//! The traced code of the bundled guest.
//!
//! This crate is compiled with `-Zpatchable-function-entry=5`, so *every* function in it that is not
//! inlined is a patch site, and its calls are counted. Hence the rules: a function here is
//! `#[unsafe(no_mangle)]` and `#[inline(never)]`, takes part in a workload, and stands in that
//! workload's table in `control`; loops, formatting and everything else that drives workloads
//! belongs there, too. Nothing generic of the core library may be instantiated here.

#![no_std]
#![feature(fn_align)]
#![feature(patchable_function_entry)]

pub mod bench;
pub mod c;
pub mod calls;
pub mod dynamic;
pub mod events;
pub mod floats;
pub mod init;
pub mod locks;
pub mod many;
pub mod marks;
pub mod messages;
pub mod micro;
pub mod recursion;
pub mod tail_calls;
pub mod values;

/// Returns its argument in a way that the compiler cannot see through: calls are neither merged,
/// hoisted, dropped nor turned into loops.
#[inline(always)]
pub fn opaque(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: no instruction at all.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags));
    }
    value
}
