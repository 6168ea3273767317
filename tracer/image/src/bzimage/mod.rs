//! The kernel inside a bzImage: a real-mode setup part, a protected-mode part, and in that a
//! compressed ELF file, which is what a guest runs and what tracing reads.
//!
//! Facts from the Linux boot protocol (Documentation/arch/x86/boot.rst): the setup header begins at
//! 0x1f1, `payload_offset` counts from the protected-mode part, and every payload but gzip's ends
//! with its unpacked size in four bytes (gzip's own trailer is the same).

mod compression;
#[cfg(test)]
mod tests;

pub use compression::Compression;

use terms::site::HexBytes;

/// The largest kernel that is unpacked: an allyesconfig kernel has less.
pub const UNPACKED_MAX: u64 = 1 << 29;

const SETUP_SECTS: usize = 0x1f1;
const BOOT_FLAG: usize = 0x1fe;
const JUMP_LENGTH: usize = 0x201;
const MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const XLOADFLAGS: usize = 0x236;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: u64 = 512;
/// What `setup_sects` means when it is zero.
const DEFAULT_SETUP_SECTS: u8 = 4;
/// The first protocol with `xloadflags`: Linux 3.8.
const OLDEST: u16 = 0x020c;
const KERNEL_64: u16 = 1;
/// The unpacked size at the end of a payload.
const SIZE_BYTES: usize = 4;

/// Why a bzImage gives no kernel. Every number in it comes from the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BzImageError {
    /// There is no setup header.
    #[error("not a bzImage: no `HdrS` at offset {MAGIC:#x}")]
    NotBzImage,
    /// A boot sector without its signature.
    #[error("damaged bzImage: the boot flag at {BOOT_FLAG:#x} is {found:#06x}, expected 0xaa55")]
    BootFlag {
        /// What stands there.
        found: u16,
    },
    /// A kernel older than the header fields that are needed.
    #[error(
        "the bzImage speaks boot protocol {}.{:02}, expected 2.12 or later (Linux 3.8)",
        version >> 8,
        version & 0xff
    )]
    TooOld {
        /// Its protocol version.
        version: u16,
    },
    /// A 32-bit kernel.
    #[error("the bzImage holds a 32-bit kernel: use one built for x86-64")]
    Not64Bit,
    /// The payload is not where the header says.
    #[error(
        "damaged bzImage: its payload at {offset:#x}, {length:#x} bytes long, does not fit the \
         file ({file:#x} bytes)"
    )]
    PayloadOutside {
        /// Where it should begin, in the file.
        offset: u64,
        /// Its length.
        length: u64,
        /// The length of the file.
        file: u64,
    },
    /// Compressed in a way that is known and not supported.
    #[error(
        "the kernel in the bzImage is compressed with {name}, which is not supported: unpack it \
         (scripts/extract-vmlinux of the kernel sources) and give the ELF file"
    )]
    Unsupported {
        /// The name of the compression.
        name: &'static str,
    },
    /// Nothing that is known.
    #[error(
        "the kernel in the bzImage is compressed in an unknown way: its payload begins with {}",
        HexBytes(.found)
    )]
    UnknownCompression {
        /// The first bytes, at most eight.
        found: Vec<u8>,
    },
    /// The unpacked kernel would be larger than any.
    #[error(
        "the kernel in the bzImage would have {bytes:#x} bytes, more than {UNPACKED_MAX:#x} are \
         not unpacked"
    )]
    TooLarge {
        /// Its size, as the file says it.
        bytes: u64,
    },
    /// The decoder refused the payload.
    #[error("damaged bzImage: its {name} payload does not unpack: {reason}")]
    Corrupt {
        /// The name of the compression.
        name: &'static str,
        /// What the decoder said.
        reason: String,
    },
    /// Another size than the file says.
    #[error(
        "damaged bzImage: its {name} payload unpacks to {} bytes, expected {expected:#x}",
        more_or_exact(*.found, *.expected)
    )]
    WrongSize {
        /// The name of the compression.
        name: &'static str,
        /// What came out; one more than expected where it was cut off.
        found: u64,
        /// What the file says.
        expected: u64,
    },
}

fn more_or_exact(found: u64, expected: u64) -> String {
    if found > expected {
        format!("more than {expected:#x}")
    } else {
        format!("{found:#x}")
    }
}

/// A bzImage whose header is checked and whose payload is in the file.
#[derive(Debug, Clone, Copy)]
pub struct BzImage<'a> {
    setup_header: &'a [u8],
    payload: &'a [u8],
    compression: Compression,
    unpacked: u64,
}

impl<'a> BzImage<'a> {
    /// Whether the file means to be a bzImage.
    #[must_use]
    pub fn recognise(bytes: &[u8]) -> bool {
        bytes.get(MAGIC..VERSION) == Some(b"HdrS")
    }

    /// Checks the header and finds the payload.
    ///
    /// # Errors
    /// A [`BzImageError`] that says what is wrong with the file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BzImageError> {
        if !Self::recognise(bytes) {
            return Err(BzImageError::NotBzImage);
        }
        let field = |offset| u16_at(bytes, offset).unwrap_or_default();
        let (found, version) = (field(BOOT_FLAG), field(VERSION));
        if found != 0xaa55 {
            return Err(BzImageError::BootFlag { found });
        }
        if version < OLDEST {
            return Err(BzImageError::TooOld { version });
        }
        if field(XLOADFLAGS) & KERNEL_64 == 0 {
            return Err(BzImageError::Not64Bit);
        }
        let payload = payload(bytes)?;
        let compression = Compression::of(payload)?;
        let size = payload.last_chunk().copied().unwrap_or_default();
        let unpacked = u64::from(u32::from_le_bytes(size));
        if unpacked > UNPACKED_MAX {
            return Err(BzImageError::TooLarge { bytes: unpacked });
        }
        Ok(Self {
            setup_header: setup_header(bytes),
            payload,
            compression,
            unpacked,
        })
    }

    /// The setup header, from offset 0x1f1 of the file to its end: `boot_params.hdr`.
    #[must_use]
    pub fn setup_header(&self) -> &'a [u8] {
        self.setup_header
    }

    /// How the kernel is compressed.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The kernel's ELF file, followed by its relocations where the kernel has them.
    ///
    /// # Errors
    /// [`BzImageError::Corrupt`] and [`BzImageError::WrongSize`]. Whatever the payload would
    /// grow to, no more than one byte past the stated size is unpacked.
    pub fn unpack(&self) -> Result<Vec<u8>, BzImageError> {
        let name = self.compression.name();
        let packed = self.compression.without_size(self.payload);
        let kernel = self
            .compression
            .unpack(packed, self.unpacked)
            .map_err(|error| BzImageError::Corrupt {
                name,
                reason: error.to_string(),
            })?;
        let found = kernel.len() as u64;
        if found != self.unpacked {
            return Err(BzImageError::WrongSize {
                name,
                found,
                expected: self.unpacked,
            });
        }
        Ok(kernel)
    }
}

/// The header ends where the jump before its magic leads.
fn setup_header(bytes: &[u8]) -> &[u8] {
    let jump = bytes.get(JUMP_LENGTH).copied().unwrap_or_default();
    let end = MAGIC + usize::from(jump);
    bytes.get(SETUP_SECTS..end).unwrap_or_default()
}

fn payload(bytes: &[u8]) -> Result<&[u8], BzImageError> {
    let file = bytes.len() as u64;
    let field = |offset| u32_at(bytes, offset).map(u64::from);
    let outside = |offset, length| BzImageError::PayloadOutside {
        offset,
        length,
        file,
    };
    let (Some(offset), Some(length)) = (field(PAYLOAD_OFFSET), field(PAYLOAD_LENGTH)) else {
        return Err(outside(0, 0));
    };
    let setup_sects = match bytes.get(SETUP_SECTS) {
        Some(0) | None => DEFAULT_SETUP_SECTS,
        Some(sectors) => *sectors,
    };
    let start = (u64::from(setup_sects) + 1) * SECTOR + offset;
    let found = usize::try_from(start)
        .ok()
        .zip(usize::try_from(start + length).ok())
        .and_then(|(start, end)| bytes.get(start..end));
    match found {
        Some(payload) if payload.len() > SIZE_BYTES => Ok(payload),
        _ => Err(outside(start, length)),
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u16::from_le_bytes(*field))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*field))
}
