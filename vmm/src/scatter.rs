//! Accesses by virtual address as physical pieces, each of which is contiguous: in a page, or in what was loaded as one.

use terms::addr::{Gpa, Gva};
use tracer::target::{MemoryError, PhysicalMemory};

use crate::all_memory::AllMemory;

/// Physically contiguous bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    at: Gpa,
    bytes: usize,
}

/// Cuts `length` bytes at `at` into pieces. `locate` gives the physical address of a byte and how
/// many bytes follow it contiguously.
pub(crate) fn pieces(
    at: Gva,
    length: usize,
    locate: impl Fn(Gva) -> Result<(Gpa, u64), MemoryError>,
) -> Result<Vec<Piece>, MemoryError> {
    let mut pieces = Vec::with_capacity(1);
    let mut done = 0;
    while done < length {
        let (physical, contiguous) = locate(at.wrapping_add(done as u64))?;
        let contiguous = usize::try_from(contiguous).unwrap_or(usize::MAX).max(1);
        let bytes = contiguous.min(length - done);
        pieces.push(Piece {
            at: physical,
            bytes,
        });
        done += bytes;
    }
    Ok(pieces)
}

/// The same of what lies where it was loaded; `locate` knows where that is.
pub(crate) fn loaded_pieces(
    at: Gva,
    length: usize,
    locate: impl Fn(Gva) -> Option<(Gpa, u64)>,
) -> Result<Vec<Piece>, MemoryError> {
    pieces(at, length, |here| {
        locate(here).ok_or(MemoryError::NotMapped {
            address: here,
            length,
        })
    })
}

/// Reads the pieces one after the other.
pub(crate) fn read_pieces(
    memory: &impl PhysicalMemory,
    pieces: &[Piece],
    mut into: &mut [u8],
) -> Result<(), MemoryError> {
    for piece in pieces {
        let (part, rest) = into.split_at_mut(piece.bytes.min(into.len()));
        memory.read_physical(piece.at, part)?;
        into = rest;
    }
    Ok(())
}

/// Writes the pieces one after the other: all of them or, when one is no memory, none.
pub(crate) fn write_pieces(
    ram: &impl AllMemory,
    pieces: &[Piece],
    mut bytes: &[u8],
) -> Result<(), MemoryError> {
    for piece in pieces {
        if !ram.contains(piece.at, piece.bytes) {
            return Err(MemoryError::NotMemory {
                address: piece.at,
                length: piece.bytes,
            });
        }
    }
    for piece in pieces {
        let (part, rest) = bytes.split_at(piece.bytes.min(bytes.len()));
        ram.write(piece.at, part)?;
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::MIB;
    use crate::memory::Ram;

    /// Pages of 4 KiB, in descending physical order.
    fn backwards(at: Gva) -> Result<(Gpa, u64), MemoryError> {
        let page = at.0 / 4096;
        if page >= 200 {
            return Err(MemoryError::NotMapped {
                address: at,
                length: 1,
            });
        }
        Ok((Gpa((300 - page) * 4096 + at.0 % 4096), 4096 - at.0 % 4096))
    }

    #[test]
    fn an_access_over_pages_goes_to_each() {
        let ram = Ram::create(16, MIB).unwrap();
        let bytes: Vec<u8> = (0..10_000u32).map(|number| (number % 251) as u8).collect();
        let found = pieces(Gva(4000), bytes.len(), backwards).unwrap();
        assert_eq!(found.len(), 4);
        write_pieces(&ram, &found, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        read_pieces(ram.memory(), &found, &mut back).unwrap();
        assert_eq!(back, bytes);
        let mut second_page = [0; 4];
        ram.read(Gpa(299 * 4096), &mut second_page).unwrap();
        assert_eq!(second_page, bytes[96..100]);
    }

    #[test]
    fn a_write_that_ends_outside_writes_nothing() {
        let ram = Ram::create(16, MIB).unwrap();
        pieces(Gva(199 * 4096), 8192, backwards).unwrap_err();
        let outside = [
            Piece {
                at: Gpa(0x1000),
                bytes: 8,
            },
            Piece {
                at: Gpa(16 * MIB),
                bytes: 8,
            },
        ];
        write_pieces(&ram, &outside, &[1; 16]).unwrap_err();
        let mut first = [7; 8];
        ram.read(Gpa(0x1000), &mut first).unwrap();
        assert_eq!(first, [0; 8]);
    }
}
