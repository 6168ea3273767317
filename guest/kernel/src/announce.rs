//! Text that comes and goes. Whoever watches from outside is told before and is waited for: a write to the
//! doorbell's port leaves the guest, and comes back when everything has been seen to.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu;
use crate::layout;
use crate::lock::SpinLock;

/// Where the text begins, and whether it is there (1) or about to go (0). Read from outside.
#[unsafe(export_name = "text_notice")]
static NOTICE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// One notice at a time.
static DOORBELL: SpinLock<()> = SpinLock::new(());

/// What is put where text was.
const POISON: u64 = 0xcccc_cccc_cccc_cccc;
/// From an address of the image to the same byte in the first GiB, where ring 0 may write it.
const HIGH: u64 = 0xffff_ffff_8000_0000;

/// Says that the text at `start` is there, or is about to go.
pub fn announce(start: u64, is_there: u64) {
    let guard = DOORBELL.lock();
    let [at, there] = &NOTICE;
    at.store(start, Ordering::Relaxed);
    there.store(is_there, Ordering::Release);
    cpu::write_port(layout::DOORBELL_PORT, 0);
    drop(guard);
}

/// Says anything, so often, at the same time as others.
pub fn ring(start: u64, is_there: u64, times: u64) {
    let [at, there] = &NOTICE;
    let mut left = times;
    while left > 0 {
        at.store(start, Ordering::Relaxed);
        there.store(is_there, Ordering::Relaxed);
        cpu::write_port(layout::DOORBELL_PORT, 0);
        left -= 1;
    }
}

/// Gives init text back: nobody calls it any more.
pub fn free_init() {
    let (start, end) = (layout::init_text_start(), layout::init_text_end());
    announce(start, 0);
    let mut at = start - HIGH;
    while at < end - HIGH {
        // SAFETY: the first GiB is mapped at its own address, and link.ld aligns init text to words.
        unsafe { (at as *mut u64).write_volatile(POISON) };
        at += 8;
    }
}
