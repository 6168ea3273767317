//! A journal that a dead tracer has left is read: which bytes of the guest's text were its own. The guest can have written
//! there.

use insn::jump::{INT3, jump_target};
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

impl Entry {
    /// Whether `found` is what we put there. A breakpoint there is none of ours: a guest in which text is changed by breakpoints ends with
    /// its tracer.
    #[must_use]
    pub fn is_ours(&self, found: SiteBytes) -> bool {
        [self.ours, self.before].contains(&found)
    }

    /// Whether `found` is a write of ours that was cut off: who is killed while he copies, at the end of a page above all, has written
    /// the first bytes of what was to stand there, and the others are as they were. Nobody else puts such bytes there.
    #[must_use]
    pub fn is_cut(&self, found: SiteBytes) -> bool {
        let Self {
            original,
            ours,
            before,
            ..
        } = self;
        // An aligned word is written by one store.
        let is_word = found.as_slice().len() == size_of::<u64>() && self.at.0.is_multiple_of(8);
        // What was to be there, and what was: the first that we put there, another one in its place or that one again, and what
        // stood there at first.
        let first = (ours == before).then_some((ours, original));
        let others = [(ours, before), (before, ours), (original, ours)];
        let others = others.into_iter().chain([(original, before)]);
        let is_cut = |(new, old): (&SiteBytes, &SiteBytes)| {
            let (new, old) = (new.as_slice(), old.as_slice());
            (1..new.len()).any(|cut| {
                let (there, still) = found.as_slice().split_at(cut);
                new.starts_with(there) && old.ends_with(still)
            })
        };
        !is_word && found != *original && first.into_iter().chain(others).any(is_cut)
    }

    /// Whether `found` is what we put there, all of it or its beginning, with a breakpoint of the guest's own over it (a kprobe), which
    /// keeps our byte below it. Over its own instruction it is no business of ours.
    #[must_use]
    pub fn is_covered(&self, found: SiteBytes) -> bool {
        let (Some(first), Some(rest)) = (found.as_slice().first(), found.as_slice().get(1..))
        else {
            return false;
        };
        let is_over_its_own = self.original.as_slice().get(1..) == Some(rest);
        let mut below = [self.ours, self.before, self.original].into_iter();
        *first == INT3
            && !is_over_its_own
            && below.any(|bytes| {
                let below = bytes.as_slice().first();
                let below = below.map(|first| found.with_start(&[*first]));
                below.is_some_and(|below| self.is_ours(below) || self.is_cut(below))
            })
    }

    /// Where `found`, which somebody else has changed, still jumps to, if it begins as a jump or a call does; also from below a
    /// breakpoint, which keeps the byte that it is over.
    #[must_use]
    pub fn leads_to(&self, found: SiteBytes) -> Option<Gva> {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        let [opcode, distance @ ..] = *found.as_slice().first_chunk::<5>()?;
        let jump = [JUMP, distance[0], distance[1], distance[2], distance[3]];
        let is_one = [CALL, JUMP, INT3].contains(&opcode);
        is_one.then(|| jump_target(self.at, jump)).flatten()
    }
}

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
