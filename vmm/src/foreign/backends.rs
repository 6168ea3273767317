//! RAM in several pieces of the VMM's memory (QEMU's memory backends, one for each NUMA node): each is a slot of its own, and they
//! follow each other in the guest.
//!
//! Where one ends in the guest and the next one begins KVM does not say; but what size a piece can have says the VMM's mapping, and
//! KVM says whether it is exactly so. That is safe to ask only where a slot is known to begin: then the slot there is either
//! the one whose number is named, which stays as it is, or another one, which is refused.

use terms::addr::Gpa;
use terms::region::Region;

use super::error::ForeignError;
use super::memory::Range;
use super::process::Mapping;
use crate::layout::MIB;

/// What of a guest's first megabyte is RAM where a PC's ROMs follow: all of them, those of its cards left out, its BIOS alone.
pub(super) const CONVENTIONAL: [u64; 3] = [640 << 10, 768 << 10, 960 << 10];

/// KVM's slots by their numbers.
pub(super) trait Named {
    /// The numbers that are in use; the page at `covered` has a slot.
    ///
    /// # Errors
    /// Those of calls.
    fn used_numbers(&mut self, covered: Gpa) -> Result<Vec<u32>, ForeignError>;

    /// Whether a slot with one of these numbers is exactly so. One begins where this does.
    ///
    /// # Errors
    /// Those of calls.
    fn is_one_of(&mut self, numbers: &[u32], range: Range) -> Result<bool, ForeignError>;
}

/// A mapping, of which the guest has a part so far.
#[derive(Debug)]
struct Piece {
    host: u64,
    left: u64,
}

/// The slots of two runs of guest memory that are covered by slots; or where one of them begins that is none of the pieces.
///
/// # Errors
/// Those of calls.
pub(super) fn find(
    slots: &mut impl Named,
    mappings: &[Mapping],
    runs: [Region; 2],
) -> Result<Result<Vec<Range>, Gpa>, ForeignError> {
    let numbers = slots.used_numbers(runs[0].start)?;
    let mut pieces: Vec<_> = mappings.iter().map(Piece::from).collect();
    let mut found = Vec::new();
    for run in runs {
        let mut at = run.start.0;
        while at < run.end() {
            let left = run.end() - at;
            let Some(next) = next(slots, &numbers, &mut pieces, Gpa(at), left)? else {
                return Ok(Err(Gpa(at)));
            };
            at = match next.guest.end() {
                // What lies between is not the guest's RAM to all who look.
                low if CONVENTIONAL.contains(&low) => MIB,
                end => end,
            };
            found.push(next);
        }
    }
    Ok(Ok(found))
}

impl From<&Mapping> for Piece {
    fn from(mapping: &Mapping) -> Self {
        Self {
            host: mapping.start,
            left: mapping.bytes,
        }
    }
}

impl Piece {
    /// The guest has so much of it, up to where it has the next one.
    fn take(&mut self, bytes: u64) {
        self.host = self.host.saturating_add(bytes);
        self.left = self.left.saturating_sub(bytes);
    }

    /// How much of it a slot can be, where `left` is what is covered from there on.
    fn sizes(&self, at: Gpa, left: u64) -> impl Iterator<Item = u64> + use<> {
        let whole = self.left.min(left);
        let low = CONVENTIONAL.into_iter().filter(move |_| at.0 == 0);
        std::iter::once(whole)
            .chain(low)
            .filter(move |bytes| *bytes > 0 && *bytes <= whole)
    }
}

/// The slot that begins at `at`, if it is one of the pieces.
fn next(
    slots: &mut impl Named,
    numbers: &[u32],
    pieces: &mut [Piece],
    at: Gpa,
    left: u64,
) -> Result<Option<Range>, ForeignError> {
    for piece in pieces {
        for bytes in piece.sizes(at, left) {
            let range = Range {
                guest: Region { start: at, bytes },
                host: piece.host,
            };
            if slots.is_one_of(numbers, range)? {
                let is_low = CONVENTIONAL.contains(&range.guest.end());
                piece.take(if is_low { MIB } else { bytes });
                return Ok(Some(range));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_a_slot_as_a_whole_or_as_far_as_memory_goes() {
        let mut piece = Piece {
            host: 0x7f00_0000_0000,
            left: 128 * MIB,
        };
        let sizes = |piece: &Piece, at, left| piece.sizes(Gpa(at), left).collect::<Vec<_>>();
        let mut at_first = vec![128 * MIB];
        at_first.extend(CONVENTIONAL);
        assert_eq!(sizes(&piece, 0, 256 * MIB), at_first);
        assert_eq!(sizes(&piece, 128 * MIB, 256 * MIB), [128 * MIB]);
        piece.take(MIB);
        assert_eq!(piece.host, 0x7f00_0010_0000);
        assert_eq!(sizes(&piece, MIB, 256 * MIB), [127 * MIB]);
        assert_eq!(sizes(&piece, MIB, 64 * MIB), [64 * MIB]);
        piece.take(127 * MIB);
        assert_eq!(sizes(&piece, 128 * MIB, 128 * MIB).len(), 0);
    }
}
