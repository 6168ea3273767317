//! A journal that a dead tracer has left is read: which bytes of the guest's text were its own. The guest can have written
//! there.

use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::region::Region;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use super::{
    BEFORE_MAX, ENTRIES_MAX, ENTRY, ENTRY_BYTES, Entry, HEADER_BYTES, JournalError, MAGIC, USED_AT,
    VERSION,
};
use crate::target::{PhysicalMemory, WindowMemory};

/// The most bytes of a place that an entry has room for.
const PLACE_MAX: usize = 20;

/// All of it is done with: it has no places any more.
///
/// # Errors
/// [`JournalError::Memory`].
pub fn forget(memory: &mut (impl WindowMemory + ?Sized), at: Gpa) -> Result<(), JournalError> {
    Ok(memory.write_window(at.wrapping_add(USED_AT), &[0; 8])?)
}

/// Reads the journal that somebody has left at `at`, in the tracing memory at `window`. Entries that are free, or make no sense, are
/// left out: the guest can have written there.
///
/// # Errors
/// A [`JournalError`].
pub fn read(
    memory: &(impl PhysicalMemory + ?Sized),
    window: Region,
    at: Gpa,
) -> Result<Vec<Entry>, JournalError> {
    let none = |why| JournalError::None { at, why };
    let mut header = [0; 32];
    memory.read_physical(at, &mut header)?;
    let word = |index: usize| {
        let (words, _) = header.as_chunks::<8>();
        words.get(index).map_or(0, |word| u64::from_le_bytes(*word))
    };
    if header.first_chunk() != Some(&MAGIC) {
        return Err(none("it does not begin with EXOTRACE"));
    }
    if word(1) != u64::from(VERSION) | u64::from(ENTRY) << 32 {
        return Err(none("it is of another version"));
    }
    let (entries, used) = (word(2), word(3));
    if used > entries || entries > ENTRIES_MAX {
        return Err(none("it says that more of it is used than there is"));
    }
    // Elsewhere it can be said to be as long as it may be at all.
    if !window.holds(at, HEADER_BYTES + used * u64::from(ENTRY)) {
        return Err(none("it is not all in the tracing memory"));
    }
    let mut found = Vec::new();
    for slot in 0..used {
        let mut bytes = [0; ENTRY_BYTES];
        let entry = at.wrapping_add(HEADER_BYTES + slot * u64::from(ENTRY));
        memory.read_physical(entry, &mut bytes)?;
        found.extend(entry_of(&bytes));
    }
    Ok(found)
}

fn entry_of(bytes: &[u8; ENTRY_BYTES]) -> Option<Entry> {
    let (at, rest) = bytes.split_first_chunk()?;
    let (function, rest) = rest.split_first_chunk()?;
    let (sessions, rest) = rest.split_first_chunk()?;
    let length = usize::from(*rest.first()?);
    let place = |from: usize| SiteBytes::of(bytes.get(from..from + length)?);
    let at = Gva(u64::from_le_bytes(*at));
    (at.0 != 0 && (1..PLACE_MAX).contains(&length)).then_some(())?;
    let original = place(16)?;
    Some(Entry {
        at,
        function: FunctionId(u32::from_le_bytes(*function)),
        sessions: SessionSet::of_bits(u16::from_le_bytes(*sessions)),
        original,
        ours: place(36)?,
        before: original.with_start(bytes.get(56..56 + length.min(BEFORE_MAX))?),
    })
}
