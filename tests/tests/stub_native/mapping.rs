//! The memory of a ground: one anonymous mapping that can be read, written and executed.

use crate::setup::Place;

/// So many bytes.
pub const BYTES: usize = 32 << 20;
/// Where [`Place::GsElsewhere`] is looked for: a stack there is told apart by the low 36 bits of its address.
const ELSEWHERE: std::ops::Range<u64> = 4 << 30..60 << 30;

/// New memory for a ground.
pub fn map(place: Place) -> u64 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let of_own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = |wanted: u64, flags| {
        // SAFETY: a new anonymous mapping takes no memory that is in use.
        unsafe { libc::mmap(wanted as *mut _, BYTES, protection, of_own | flags, -1, 0) }
    };
    let base = if place == Place::GsElsewhere {
        let mut free = ELSEWHERE
            .step_by(1 << 30)
            .map(|wanted| at(wanted, libc::MAP_FIXED_NOREPLACE));
        free.find(|base| *base != libc::MAP_FAILED)
    } else {
        Some(at(0, libc::MAP_32BIT)).filter(|base| *base != libc::MAP_FAILED)
    };
    base.expect("mmap of executable memory") as u64
}

/// Gives it back.
///
/// # Safety
/// `base` is what [`map`] has returned, and nobody uses that memory any more.
pub unsafe fn unmap(base: u64) {
    // SAFETY: as the caller has promised.
    unsafe { libc::munmap(base as *mut libc::c_void, BYTES) };
}
