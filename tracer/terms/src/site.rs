//! The bytes of a place in the text that is rewritten.

use std::fmt;

/// Bytes that a site takes: one `jmp rel32`.
pub const SITE_LENGTH: usize = 5;

/// The most bytes of a place: what five bytes take up when the last of them begins an instruction.
const PLACE_MAX: usize = SITE_LENGTH - 1 + 15;

/// The bytes of a place that is poked, shown in hexadecimal: five of a patch site, one of a lock prefix, all of the
/// instructions that are displaced.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SiteBytes {
    bytes: [u8; PLACE_MAX],
    length: u8,
}

impl SiteBytes {
    /// A patch site's.
    #[must_use]
    pub const fn new(site: [u8; SITE_LENGTH]) -> Self {
        let [a, b, c, d, e] = site;
        let mut bytes = [0; PLACE_MAX];
        [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4]] = [a, b, c, d, e];
        Self { bytes, length: 5 }
    }

    /// These; `None` when they are more than a place has.
    #[must_use]
    pub fn of(given: &[u8]) -> Option<Self> {
        let mut bytes = [0; PLACE_MAX];
        bytes.get_mut(..given.len())?.copy_from_slice(given);
        let length = u8::try_from(given.len()).ok()?;
        Some(Self { bytes, length })
    }

    /// A single byte.
    #[must_use]
    pub const fn one(byte: u8) -> Self {
        let mut bytes = [0; PLACE_MAX];
        bytes[0] = byte;
        Self { bytes, length: 1 }
    }

    /// The same with other bytes at the beginning; as many as there are.
    #[must_use]
    pub fn with_start(mut self, start: &[u8]) -> Self {
        let length = usize::from(self.length);
        let own = self.bytes.get_mut(..length).unwrap_or_default();
        for (byte, new) in own.iter_mut().zip(start) {
            *byte = *new;
        }
        self
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }

    /// The first of them.
    #[must_use]
    pub const fn first(&self) -> u8 {
        self.bytes[0]
    }

    /// The same with another first byte.
    #[must_use]
    pub const fn starting_with(mut self, first: u8) -> Self {
        self.bytes[0] = first;
        self
    }

    /// As many bytes as these, as `read` finds them.
    ///
    /// # Errors
    /// What `read` says.
    pub fn like<E>(self, read: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut bytes = [0; PLACE_MAX];
        let length = usize::from(self.length);
        read(bytes.get_mut(..length).unwrap_or_default())?;
        Ok(Self { bytes, ..self })
    }
}

impl fmt::Display for SiteBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HexBytes(self.as_slice()).fmt(f)
    }
}

impl fmt::Debug for SiteBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

/// Bytes as `0f 1f 44`.
#[derive(Debug)]
pub struct HexBytes<'a>(pub &'a [u8]);

impl fmt::Display for HexBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{byte:02x}")?;
        }
        Ok(())
    }
}
