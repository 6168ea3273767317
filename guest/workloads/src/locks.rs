//! Words that all threads change with locked instructions.

use locked::Locked;

use crate::opaque;

/// Counted up by one instruction.
#[unsafe(export_name = "locks_added")]
pub static ADDED: Locked = Locked::new(0);
/// Counted up by a loop around a locked exchange.
#[unsafe(export_name = "locks_exchanged")]
pub static EXCHANGED: Locked = Locked::new(0);

/// Counts once in each word.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn locks_step(value: u64) -> u64 {
    ADDED.fetch_add(1);
    let mut now = EXCHANGED.load();
    while let Err(found) = EXCHANGED.compare_exchange(now, now.wrapping_add(1)) {
        now = found;
    }
    opaque(value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
