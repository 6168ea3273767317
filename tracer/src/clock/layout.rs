//! The clock page: the time as a word that stubs load instead of executing `rdtsc`.
//!
//! A thread of the host writes the guest's time-stamp counter into it every so often. A record then has
//! the time of the last such *beat*: never later than the moment, and older by the period at most unless the
//! thread stalls, which it notices itself. The first word is already shifted to where a record has its
//! time, so that a stub needs one instruction for it.
//!
//! Each word has a cache line of its own, and no neighbour whose line is fetched along with it: each
//! store to a line that a vCPU has read costs that vCPU a miss, and a beat is to cost it only one.

use crate::record::TIME_SHIFT;

/// Bytes of the page; a page of its own, so that nothing else shares its cache lines.
pub const PAGE_BYTES: u64 = 4096;
/// Offset of the word that records take their time from.
pub const SHIFTED: u64 = 0;
/// Offset of the time-stamp counter.
pub const COUNTER: u64 = 128;
/// Offset of the number of beats so far.
pub const BEATS: u64 = 256;

/// The first word of the page when the guest's counter is `counter`.
#[must_use]
pub const fn shifted(counter: u64) -> u64 {
    counter << TIME_SHIFT
}
