//! The kernel's own text, written by itself: as any kernel does that has a tracer of its own.

use crate::layout::HIGH;

/// Puts a word into the text. Returns what was there.
///
/// # Safety
/// `at` must be the address of an aligned word of the image, and code that runs there must be as good with
/// the new word as with the old one.
pub unsafe fn exchange(at: u64, new: u64) -> u64 {
    // The image is mapped again at its physical address, where ring 0 may write.
    let word = at.wrapping_sub(HIGH) as *mut u64;
    // SAFETY: the caller vouches for the word. Other vCPUs fetch it as a whole.
    let old = unsafe { word.read_volatile() };
    // SAFETY: as above.
    unsafe { word.write_volatile(new) };
    old
}
