//! RAM in several pieces of the VMM's memory (QEMU's memory backends, one for each NUMA node; memory that was added to a guest that
//! ran): each is a slot of its own. In the guest they follow each other, what was added after a gap.
//!
//! Where one ends in the guest and the next one begins KVM does not say; but what size a piece can have says the VMM's mapping, and
//! KVM says whether it is exactly so. That is safe to ask only **where a slot is known to begin**: then the slot there is either
//! the one whose number is named, which stays as it is, or another one, which is refused. Anywhere else the slot that is named
//! would be moved there.

use terms::addr::Gpa;
use terms::region::Region;

use super::error::ForeignError;
use super::memory::Range;
use super::process::Mapping;
use crate::layout::{GIB, MIB};

/// What of a guest's first megabyte is RAM where a PC's ROMs follow: all of them, those of its cards left out, its BIOS alone.
pub(super) const CONVENTIONAL: [u64; 3] = [640 << 10, 768 << 10, 960 << 10];

/// A page, which no slot is smaller than.
const PAGE: u64 = 4096;
/// Where RAM continues that did not fit below the hole for devices.
pub(super) const HIGH: u64 = 4 * GIB;
/// Memory that was added begins at a multiple of the first (Cloud Hypervisor) or of the second (QEMU) after what there was.
const ADDED_AT: [u64; 2] = [128 * MIB, GIB];
/// Multiples of the second at which it is looked for, one after the other: what lay at the first can have been taken out.
const GAPS: u64 = 8;
/// More pieces than anybody adds.
const PIECES_MAX: usize = 256;

/// KVM's slots by their numbers.
pub(super) trait Named {
    /// Whether a page of the guest's has a slot.
    ///
    /// # Errors
    /// Those of calls.
    fn is_covered(&mut self, at: Gpa) -> Result<bool, ForeignError>;

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

/// The slots of the guest memory below the hole for devices, `low`, and above it, which ends at `high_end` or later; or where one of
/// them begins that is none of the pieces.
///
/// # Errors
/// Those of calls.
pub(super) fn find(
    slots: &mut impl Named,
    mappings: &[Mapping],
    low: Region,
    high_end: u64,
) -> Result<Result<Vec<Range>, Gpa>, ForeignError> {
    let numbers = slots.used_numbers(low.start)?;
    let mut search = Search {
        numbers,
        pieces: mappings.iter().map(Piece::from).collect(),
        found: Vec::new(),
    };
    let low_end = search.run(slots, low.start.0, low.end())?;
    let mut end = search.run(slots, HIGH, high_end)?;
    if low_end < low.end() {
        return Ok(Err(Gpa(low_end)));
    }
    while let Some(added) = added_after(slots, end)? {
        // Where none begins the one that is there would be moved by asking.
        let begins = added == end || !slots.is_covered(Gpa(added - PAGE))?;
        if begins {
            end = search.run(slots, added, u64::MAX)?;
        }
        if end <= added || search.found.len() > PIECES_MAX {
            return Ok(Err(Gpa(added)));
        }
    }
    // What is known to be covered was found.
    match end < high_end {
        true => Ok(Err(Gpa(end))),
        false => Ok(Ok(search.found)),
    }
}

/// Where there is memory that was added to what ends at `end`, if there is any.
///
/// # Errors
/// Those of calls.
pub(super) fn added_after(slots: &mut impl Named, end: u64) -> Result<Option<u64>, ForeignError> {
    if slots.is_covered(Gpa(end))? {
        return Ok(Some(end));
    }
    let [small, large] = ADDED_AT.map(|multiple| end.next_multiple_of(multiple));
    let large = (0..GAPS).map(|gap| large + gap * ADDED_AT[1]);
    for at in std::iter::once(small).chain(large) {
        if slots.is_covered(Gpa(at))? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// What was found of a guest's memory so far.
#[derive(Debug)]
struct Search {
    numbers: Vec<u32>,
    pieces: Vec<Piece>,
    found: Vec<Range>,
}

impl Search {
    /// Finds the slots that follow each other from `at` on, where one begins if any is there, up to `end`. Returns how far there are
    /// some that are pieces.
    fn run(&mut self, slots: &mut impl Named, at: u64, end: u64) -> Result<u64, ForeignError> {
        let mut at = at;
        while at < end && slots.is_covered(Gpa(at))? {
            let left = end - at;
            let Some(next) = next(slots, &self.numbers, &mut self.pieces, Gpa(at), left)? else {
                break;
            };
            at = match next.guest.end() {
                // What lies between is not the guest's RAM to all who look.
                low if CONVENTIONAL.contains(&low) => MIB,
                end => end,
            };
            self.found.push(next);
        }
        Ok(at)
    }
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

    /// KVM, as it takes a slot that is named (`kvm_set_memory_region`): one that would be moved is never forgiven.
    #[derive(Debug)]
    struct Kvm(Vec<Range>);

    impl Named for Kvm {
        fn is_covered(&mut self, at: Gpa) -> Result<bool, ForeignError> {
            Ok(self.0.iter().any(|slot| slot.guest.holds(at, PAGE)))
        }

        fn used_numbers(&mut self, covered: Gpa) -> Result<Vec<u32>, ForeignError> {
            assert!(self.is_covered(covered)?);
            Ok((0..).take(self.0.len()).collect())
        }

        fn is_one_of(&mut self, numbers: &[u32], range: Range) -> Result<bool, ForeignError> {
            for number in numbers {
                let slot = self.0[usize::try_from(*number).unwrap()];
                if slot == range {
                    return Ok(true);
                }
                let others = self.0.iter().filter(|other| **other != slot);
                let is_taken = others.clone().any(|other| {
                    let (start, end) = (range.guest.start.0, range.guest.end());
                    start < other.guest.end() && other.guest.start.0 < end
                });
                let is_same = (slot.host, slot.guest.bytes) == (range.host, range.guest.bytes);
                assert!(!is_same || is_taken, "{slot:x?} is moved: {range:x?}");
            }
            Ok(false)
        }
    }

    /// A guest with these slots, each in a mapping of its own, of which the first two are in one.
    fn found(slots: &[(u64, u64)], high_end: u64) -> Result<Vec<(u64, u64)>, Gpa> {
        let mut kvm = Kvm(Vec::new());
        let mut mappings: Vec<Mapping> = Vec::new();
        for (number, (start, bytes)) in (0..).zip(slots) {
            let guest = Region {
                start: Gpa(*start),
                bytes: *bytes,
            };
            let host = match mappings.first_mut().filter(|_| number == 1) {
                Some(first) => {
                    first.bytes += bytes;
                    first.start + first.bytes - bytes
                }
                None => {
                    let start = (number + 1) << 40;
                    mappings.push(Mapping {
                        start,
                        bytes: *bytes,
                        file: None,
                        offset: 0,
                        is_shared: false,
                    });
                    start
                }
            };
            kvm.0.push(Range { guest, host });
        }
        let low = kvm.0[0].guest;
        let found = find(&mut kvm, &mappings, low, high_end).unwrap()?;
        let range = |range: &Range| (range.guest.start.0, range.guest.bytes);
        Ok(found.iter().map(range).collect())
    }

    #[test]
    fn memory_that_was_added_is_found_after_what_there_was_and_nothing_is_moved() {
        let ram = [(0, 2 * GIB), (HIGH, GIB + 64 * MIB)];
        let end = HIGH + GIB + 64 * MIB;
        for added in [end, end + 64 * MIB, HIGH + 2 * GIB, HIGH + 5 * GIB] {
            let all = [&ram[..], &[(added, GIB / 2), (added + GIB / 2, GIB)]].concat();
            // Where the search for the end stopped by chance: before, in, and after the gap.
            for high_end in [end, added + GIB / 4, added + GIB + GIB / 2] {
                assert_eq!(found(&all, high_end).as_ref(), Ok(&all), "{added:x}");
            }
        }
        let far = [&ram[..], &[(HIGH + 40 * GIB, GIB)]].concat();
        assert_eq!(found(&far, end).unwrap(), ram);
        assert_eq!(found(&far, HIGH + 41 * GIB), Err(Gpa(end)));
        // One that begins where nobody looks is not asked for.
        let odd = [&ram[..], &[(HIGH + 2 * GIB - PAGE, GIB)]].concat();
        assert_eq!(found(&odd, end), Err(Gpa(HIGH + 2 * GIB)));
    }
}
