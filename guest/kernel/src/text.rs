//! The kernel's own text, written by itself: as any kernel does that has a tracer of its own.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::HIGH;

/// A word of the text, to be written.
///
/// # Safety
/// `at` must be the address of an aligned word of the image.
unsafe fn word<'t>(at: u64) -> &'t AtomicU64 {
    // The image is mapped again at its physical address, where ring 0 may write.
    let word = at.wrapping_sub(HIGH) as *mut u64;
    // SAFETY: it is mapped for as long as the guest runs, and nobody writes to it but by atomic operations.
    unsafe { AtomicU64::from_ptr(word) }
}

/// Puts a word into the text in the place of `old`, if that is there. Returns what was there.
///
/// Its lock prefix is not among those that are switched off where one vCPU runs alone: who changes text from outside is one
/// more (`check.sh` knows it by its name).
///
/// # Safety
/// As of [`exchange`].
#[unsafe(export_name = "text_replace")]
#[inline(never)]
pub unsafe fn replace(at: u64, old: u64, new: u64) -> u64 {
    // SAFETY: the caller vouches for the word.
    let word = unsafe { word(at) };
    let replaced = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
    replaced.unwrap_or_else(|found| found)
}

/// Puts a word into the text. Returns what was there.
///
/// # Safety
/// `at` must be the address of an aligned word of the image, and code that runs there must be as good with
/// the new word as with the old one.
pub unsafe fn exchange(at: u64, new: u64) -> u64 {
    // SAFETY: the caller vouches for the word.
    let word = unsafe { word(at) };
    // Other vCPUs fetch it as a whole. A plain store would not do: a KVM that emulates ring 0 may copy it byte by byte, an
    // exchange it makes as one.
    word.swap(new, Ordering::SeqCst)
}
