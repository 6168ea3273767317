//! The 16-byte record of uftrace's data files: a time and a packed word.

use terms::addr::Gva;

/// Bytes of one record.
pub const RECORD_LENGTH: usize = 16;
/// Every record carries this in bits 3..6.
const MAGIC: u64 = 5;
/// Addresses and counts have 48 bits.
const VALUE_BITS: u32 = 48;

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A function was entered; the value is its address.
    Entry,
    /// A function was left; the value is its address.
    Exit,
    /// Records were lost; the value is their number.
    Lost,
    /// Something else (uftrace's events).
    Event,
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds.
    pub time: u64,
    /// What it says.
    pub kind: Kind,
    /// The low 48 bits of an address, or a count.
    pub value: u64,
    /// Calls of the thread that are open around it, up to [`MAX_DEPTH`].
    pub depth: u32,
    /// Whether values of the call stand after it.
    pub has_values: bool,
}

/// The largest count that a record holds.
pub const MAX_VALUE: u64 = (1 << VALUE_BITS) - 1;

/// The low 48 bits of an address: all that a record, a map or a symbol file holds.
#[must_use]
pub const fn truncated(address: u64) -> u64 {
    address & MAX_VALUE
}

/// The canonical address of which these are the low 48 bits.
#[must_use]
pub const fn canonical(truncated: u64) -> u64 {
    Gva(truncated).canonical().0
}

/// The deepest that a record can say.
pub const MAX_DEPTH: u32 = (1 << 10) - 1;
const DEPTH_SHIFT: u32 = 6;
/// Marks the word of a record after which values of its call stand.
const HAS_VALUES: u64 = 1 << 2;

/// The packed word of a record at depth 0; a value that does not fit is cut.
#[must_use]
pub const fn word(kind: Kind, value: u64) -> u64 {
    word_at(kind, 0, value)
}

/// The packed word of a record; what does not fit is cut.
#[must_use]
pub const fn word_at(kind: Kind, depth: u32, value: u64) -> u64 {
    let code = match kind {
        Kind::Entry => 0,
        Kind::Exit => 1,
        Kind::Lost => 2,
        Kind::Event => 3,
    };
    let depth = ((depth & MAX_DEPTH) as u64) << DEPTH_SHIFT;
    code | MAGIC << 3 | depth | value << (64 - VALUE_BITS)
}

/// The word of a step of a thread, of a function whose entries at depth 0 have this one.
#[must_use]
pub(super) const fn step_word(entry: u64, depth: u32, is_exit: bool) -> u64 {
    let depth = if depth < MAX_DEPTH { depth } else { MAX_DEPTH };
    entry | (depth as u64) << DEPTH_SHIFT | is_exit as u64
}

/// The value in a packed word.
#[must_use]
pub(super) const fn value_of(word: u64) -> u64 {
    word >> (64 - VALUE_BITS)
}

/// The same word of a record after which values of its call stand.
#[must_use]
pub(super) const fn with_values(word: u64) -> u64 {
    word | HAS_VALUES
}

impl Record {
    /// Reads a record; `None` if it is none.
    #[must_use]
    pub fn unpack(bytes: [u8; RECORD_LENGTH]) -> Option<Self> {
        let [time, word] = words(bytes);
        if word >> 3 & 7 != MAGIC {
            return None;
        }
        let kind = match word & 3 {
            0 => Kind::Entry,
            1 => Kind::Exit,
            2 => Kind::Lost,
            _ => Kind::Event,
        };
        Some(Self {
            time,
            kind,
            value: value_of(word),
            depth: u32::try_from(word >> DEPTH_SHIFT & u64::from(MAX_DEPTH)).unwrap_or(MAX_DEPTH),
            has_values: word & HAS_VALUES != 0,
        })
    }

    /// The bytes of the record.
    #[must_use]
    pub fn pack(self) -> [u8; RECORD_LENGTH] {
        let mark = if self.has_values { HAS_VALUES } else { 0 };
        packed(self.time, word_at(self.kind, self.depth, self.value) | mark)
    }
}

/// The bytes of a record with this word.
#[must_use]
pub(super) fn packed(time: u64, word: u64) -> [u8; RECORD_LENGTH] {
    (u128::from(word) << 64 | u128::from(time)).to_le_bytes()
}

fn words(bytes: [u8; RECORD_LENGTH]) -> [u64; 2] {
    let both = u128::from_le_bytes(bytes);
    let low = both & u128::from(u64::MAX);
    // Both halves fit by construction.
    [
        u64::try_from(low).unwrap_or(0),
        u64::try_from(both >> 64).unwrap_or(0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        for kind in [Kind::Entry, Kind::Exit, Kind::Lost, Kind::Event] {
            for (value, has_values) in [
                (0, false),
                (1, true),
                (0xffff_8010_0000, false),
                (MAX_VALUE, true),
            ] {
                let record = Record {
                    time: 0x0123_4567_89ab_cdef,
                    kind,
                    value,
                    depth: 77,
                    has_values,
                };
                assert_eq!(Record::unpack(record.pack()), Some(record));
            }
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert_eq!(Record::unpack([0; 16]), None);
        assert_eq!(Record::unpack([0xff; 16]), None);
        // As if the mark were another.
        assert_eq!(Record::unpack(packed(0, word(Kind::Entry, 0) ^ 8)), None);
    }

    #[test]
    fn addresses_survive_truncation() {
        for address in [
            0x10_0000,
            0x7fff_ffff_ffff,
            0xffff_8000_0000_0000,
            0xffff_ffff_8100_0000,
        ] {
            assert_eq!(canonical(truncated(address)), address);
        }
    }
}
