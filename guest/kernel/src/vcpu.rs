//! The block that each vCPU's GS base points at, in every ring: no swapgs anywhere.
//!
//! One page each, readable and writable by ring 3, so that code in either ring finds its vCPU's own
//! memory with a `gs:` prefix.

use core::arch::asm;

use crate::cpu;
use crate::layout;

const MSR_GS_BASE: u32 = 0xc000_0101;

/// Start of a vCPU's page. Offsets are known to trap.s and to `control`.
#[repr(C)]
pub struct Block {
    /// This vCPU's number, from 0. Read by ring 3 as `gs:[0]`.
    pub index: u64,
    /// Top of its ring 0 stack. Read by trap.s as `gs:[8]`.
    pub kernel_stack: u64,
    /// Number of the thread that runs, or [`IDLE`].
    pub current: u64,
}

/// [`Block::current`] of a vCPU that has nothing to run.
pub const IDLE: u64 = u64::MAX;

/// Points this vCPU's GS base at its block.
pub fn set_up(index: u64) {
    let block = layout::vcpu_blocks_start() + index * 4096;
    let kernel_stack = layout::kernel_stacks_start() + (index + 1) * layout::KERNEL_STACK_SIZE;
    // SAFETY: link.ld reserves a page per vCPU there, and only this vCPU uses this one.
    unsafe {
        (block as *mut Block).write_volatile(Block {
            index,
            kernel_stack,
            current: IDLE,
        })
    };
    // SAFETY: the register exists in long mode; Rust code does not use GS.
    unsafe { cpu::write_msr(MSR_GS_BASE, block) };
}

/// This vCPU's number.
pub fn index() -> u64 {
    let value: u64;
    // SAFETY: `set_up` has run on this vCPU before anything else does.
    unsafe { asm!("mov {}, gs:[0]", out(reg) value, options(nostack, readonly)) }
    value
}

/// The thread that this vCPU runs.
pub fn current() -> u64 {
    let value: u64;
    // SAFETY: as in `index`.
    unsafe { asm!("mov {}, gs:[16]", out(reg) value, options(nostack, readonly)) }
    value
}

/// Notes which thread this vCPU runs.
pub fn set_current(thread: u64) {
    // SAFETY: as in `index`; only this vCPU writes its block.
    unsafe { asm!("mov gs:[16], {}", in(reg) thread, options(nostack)) }
}
