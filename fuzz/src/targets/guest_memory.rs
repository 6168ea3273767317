//! A guest's memory of which every byte is the input's: 64 KiB that are found again and again at all addresses, but for
//! some that nothing is mapped at.

use std::cell::Cell;

use terms::addr::Gva;
use tracer::target::{MemoryError, TargetMemory};

/// Bytes of it.
pub const BYTES: u64 = 1 << 16;

/// The memory.
pub struct GuestMemory<'a> {
    bytes: &'a [u8],
    reads: Cell<u64>,
    most: u64,
}

impl<'a> GuestMemory<'a> {
    /// Of these bytes and zeros; whoever reads more often than `most` times follows something that does not end.
    pub fn new(bytes: &'a [u8], most: u64) -> Self {
        Self {
            bytes,
            reads: Cell::new(0),
            most,
        }
    }
}

impl TargetMemory for GuestMemory<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        assert!(
            self.reads.get() <= self.most,
            "more than {} reads",
            self.most
        );
        let length = into.len();
        for (byte, address) in into
            .iter_mut()
            .zip((0..).map(|offset| at.wrapping_add(offset)))
        {
            if address.0 >> 20 & 0xff == 0xee {
                return Err(MemoryError::NotMapped { address, length });
            }
            let offset = usize::try_from(address.0 % BYTES).unwrap_or_default();
            *byte = self.bytes.get(offset).copied().unwrap_or_default();
        }
        Ok(())
    }
}

/// Such a memory as a seed: words at offsets, and texts at offsets.
pub fn image(words: &[(u64, u64)], texts: &[(u64, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |at: u64, part: &[u8]| {
        let at = usize::try_from(at % BYTES).unwrap_or_default();
        let end = at + part.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[at..end].copy_from_slice(part);
    };
    for (at, word) in words {
        put(*at, &word.to_le_bytes());
    }
    for (at, text) in texts {
        put(*at, text.as_bytes());
    }
    bytes
}
