//! What the workloads `tables` and `all_tables` need of ring 0: the page tables of a vCPU, built anew.

use core::arch::asm;

use crate::cpu;
use crate::layout::HIGH;

const PAGE: u64 = 4096;
const WORDS: u64 = 512;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// An entry that leads to a table, as in boot.s.
const TABLE: u64 = 0x67;
/// The entries of the upper two tables that lead to the image.
const LEADING: [u64; 2] = [(HIGH >> 39) & (WORDS - 1), (HIGH >> 30) & (WORDS - 1)];

/// Copies as many of the tables that lead to the image as `levels` says, the topmost first, to the pages from `to` on, and
/// uses the copies from now on. What has been used until now is memory like any other then.
///
/// # Safety
/// `to` leads to so many pages of the image's data, which nobody else uses.
pub unsafe fn renew(to: u64, levels: u64) {
    // Tables lie in the first GiB, which is mapped at its own address.
    let (mut from, mut at) = (cpu::page_table() & ADDRESS, to);
    // SAFETY: a table, and a page that is the caller's.
    unsafe { copy(from, at) };
    let mut left = levels;
    for number in LEADING {
        left = left.wrapping_sub(1);
        if left == 0 {
            break;
        }
        let entry = at.wrapping_add(number * 8) as *mut u64;
        at = at.wrapping_add(PAGE);
        // SAFETY: an entry of the copy.
        from = unsafe { entry.read_volatile() } & ADDRESS;
        // SAFETY: as above.
        unsafe { copy(from, at) };
        // SAFETY: as above; it leads to the same by the next copy.
        unsafe { entry.write_volatile(at.wrapping_sub(HIGH) | TABLE) };
    }
    // SAFETY: they lead to what the ones before lead to.
    unsafe { cpu::use_page_table(to.wrapping_sub(HIGH)) };
}

/// # Safety
/// Both are pages, of which the second one is the caller's.
unsafe fn copy(from: u64, to: u64) {
    // SAFETY: as of this function.
    unsafe {
        asm!(
            "rep movsq",
            inout("rsi") from => _, inout("rdi") to => _, inout("rcx") WORDS => _,
            options(nostack, preserves_flags)
        );
    }
}
