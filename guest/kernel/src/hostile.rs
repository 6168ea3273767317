//! What the workload `hostile` needs of ring 0: the window of whoever watches from outside, wrong page table entries,
//! the doorbell without waiting for a turn, and that its threads may end in an accident.
//!
//! The window is found by walking our own page tables: there is nothing of ours behind an entry that leads to 4 GiB or
//! above.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::context::Frame;
use crate::cpu;
use crate::layout::HIGH;
use crate::lock::SpinLock;

/// Physical addresses from here on are none of our memory.
const FOREIGN: u64 = 1 << 32;
/// Bits of an entry of a page table.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const LARGE_PAGE: u64 = 2 << 20;
const ENTRIES: u64 = 512;
/// Where the image is: the entries of the upper tables that lead to its page directory.
const TOP: u64 = (HIGH >> 39) & (ENTRIES - 1);
const UPPER: u64 = (HIGH >> 30) & (ENTRIES - 1);
/// How long an entry is wrong, in looks at it.
const WRONG_FOR: u64 = 50;

static IS_ON: AtomicBool = AtomicBool::new(false);
/// One wrong entry at a time: two would put each other's back.
static TWISTING: SpinLock<()> = SpinLock::new(());

/// From now on an exception in ring 3 ends its thread, and not the VM.
pub fn survive() {
    IS_ON.store(true, Ordering::Relaxed);
}

/// Whether this exception ends the thread only.
pub fn survives(frame: &Frame) -> bool {
    IS_ON.load(Ordering::Relaxed) && frame.cs & 3 == 3
}

/// The entry in table `at`, if it is there. Tables lie in the first GiB, which is mapped at its own address.
fn entry(at: u64, number: u64) -> Option<(*mut u64, u64)> {
    if at >= FOREIGN {
        return None;
    }
    let place = (at + number * 8) as *mut u64;
    // SAFETY: page tables are memory of ours; nobody else changes them but who watches from outside.
    let value = unsafe { place.read_volatile() };
    (value & PRESENT != 0).then_some((place, value))
}

/// The page directory of the image.
fn directory() -> Option<u64> {
    let (_, upper) = entry(cpu::page_table() & ADDRESS, TOP)?;
    let (_, directory) = entry(upper & ADDRESS, UPPER)?;
    Some(directory & ADDRESS)
}

/// The entry with this number, if a page of the window is behind it.
fn page(directory: u64, number: u64) -> Option<(*mut u64, u64)> {
    let (place, value) = entry(directory, number & (ENTRIES - 1))?;
    (value & LARGE != 0 && value & ADDRESS >= FOREIGN).then_some((place, value))
}

/// The address of the first page of the window from this entry of the page directory on, with bit 0 where ring 3 may
/// write there.
pub fn window(from: u64) -> Option<u64> {
    let directory = directory()?;
    let mut number = from;
    while number < ENTRIES {
        if let Some((_, value)) = page(directory, number) {
            let may_write = WRITABLE | USER;
            let at = HIGH + number * LARGE_PAGE;
            return Some(at | u64::from(value & may_write == may_write));
        }
        number += 1;
    }
    None
}

/// Makes the entry of a page of the window wrong in these bits, for a moment.
pub fn twist(number: u64, bits: u64) {
    let guard = TWISTING.lock();
    let found = match directory() {
        Some(directory) => page(directory, number),
        None => None,
    };
    if let Some((place, value)) = found {
        let bits = bits & (PRESENT | WRITABLE | USER | NO_EXECUTE);
        // SAFETY: an entry of the window's: nothing of ring 0 is behind it.
        unsafe { place.write_volatile(value ^ bits) };
        cpu::flush_page_table();
        let mut left = WRONG_FOR;
        while left > 0 {
            // SAFETY: as above.
            let _ = unsafe { place.read_volatile() };
            left -= 1;
        }
        // SAFETY: as above.
        unsafe { place.write_volatile(value) };
        cpu::flush_page_table();
    }
    drop(guard);
}
