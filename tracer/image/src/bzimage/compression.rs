//! How a kernel is compressed, told by the first bytes, and taking it apart within a bound.

use std::io::{self, Read};

use super::{BzImageError, SIZE_BYTES};

/// Memory that a decoder may want for its window: `xz` and `zstd` state it in the stream. The
/// kernel's build uses 128 MiB of it at most.
const WINDOW_MAX: u64 = 128 << 20;
/// What `xz` needs beside its window, in KiB.
const XZ_OVERHEAD_KIB: u64 = 1024;

/// A compression that is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// `CONFIG_KERNEL_GZIP`.
    Gzip,
    /// `CONFIG_KERNEL_LZ4`: the legacy frame.
    Lz4,
    /// `CONFIG_KERNEL_XZ`, with its x86 filter.
    Xz,
    /// `CONFIG_KERNEL_ZSTD`.
    Zstd,
}

/// What streams begin with.
const SUPPORTED: [(&[u8], Compression); 4] = [
    (&[0x1f, 0x8b], Compression::Gzip),
    (&[0x02, 0x21, 0x4c, 0x18], Compression::Lz4),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
    (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
];
const UNSUPPORTED: [(&[u8], &str); 3] = [
    (b"BZh", "bzip2"),
    (&[0x89, b'L', b'Z', b'O', 0], "lzo"),
    (&[0x5d, 0, 0], "lzma"),
];

impl Compression {
    /// How `payload` is compressed.
    pub(super) fn of(payload: &[u8]) -> Result<Self, BzImageError> {
        let begins = |magic: &[u8]| payload.starts_with(magic);
        if let Some((_, compression)) = SUPPORTED.iter().find(|(magic, _)| begins(magic)) {
            return Ok(*compression);
        }
        match UNSUPPORTED.iter().find(|(magic, _)| begins(magic)) {
            Some((_, name)) => Err(BzImageError::Unsupported { name }),
            None => Err(BzImageError::UnknownCompression {
                found: payload.iter().take(8).copied().collect(),
            }),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }

    /// The stream alone. The kernel's build adds the size to all but gzip, which has it as the
    /// last word of its own trailer.
    pub(super) fn without_size(self, payload: &[u8]) -> &[u8] {
        let size = match self {
            Self::Gzip => 0,
            Self::Lz4 | Self::Xz | Self::Zstd => SIZE_BYTES,
        };
        payload
            .get(..payload.len().saturating_sub(size))
            .unwrap_or_default()
    }

    /// Unpacks `packed`, but no more than one byte past `expected`.
    pub(super) fn unpack(self, packed: &[u8], expected: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip => bounded(flate2::bufread::GzDecoder::new(packed), expected),
            Self::Lz4 => bounded(lz4_flex::frame::FrameDecoder::new(packed), expected),
            Self::Xz => {
                let limit = WINDOW_MAX / 1024 + XZ_OVERHEAD_KIB;
                let limit = u32::try_from(limit).unwrap_or_default();
                let stream = lzma_rust2::XzReader::new_mem_limit(packed, false, limit);
                bounded(stream, expected)
            }
            Self::Zstd => {
                use ruzstd::decoding::StreamingDecoder;
                let stream = StreamingDecoder::new_with_max_window_size(packed, WINDOW_MAX)
                    .map_err(io::Error::other)?;
                bounded(stream, expected)
            }
        }
    }
}

fn bounded(stream: impl Read, expected: u64) -> io::Result<Vec<u8>> {
    let mut kernel = Vec::new();
    stream.take(expected + 1).read_to_end(&mut kernel)?;
    Ok(kernel)
}
