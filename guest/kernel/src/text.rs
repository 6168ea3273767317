//! The kernel's own text, written by itself: as any kernel does that has a tracer of its own.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::HIGH;

/// Puts a word into the text. Returns what was there.
///
/// # Safety
/// `at` must be the address of an aligned word of the image, and code that runs there must be as good with
/// the new word as with the old one.
pub unsafe fn exchange(at: u64, new: u64) -> u64 {
    // The image is mapped again at its physical address, where ring 0 may write.
    let word = at.wrapping_sub(HIGH) as *mut u64;
    // SAFETY: the caller vouches for the word, which nobody but this writes.
    let word = unsafe { AtomicU64::from_ptr(word) };
    // Other vCPUs fetch it as a whole. A plain store would not do: a KVM that emulates ring 0 may copy it byte by byte, an
    // exchange it makes as one.
    word.swap(new, Ordering::SeqCst)
}
