//! The fields of an event, read from the payload beside its record.
//!
//! A payload is a row of words of 32 bits each, in this order: a status word, where a field can be a fault (bit
//! `i` says that field `i` is); then each field. A number is one word or two, the lower half first; bytes are four
//! in each word; text is a word with its length, whose bit 31 says that there was more, and then its bytes.
//! Where text is short the words after it are not written. A stack is a word with its length, three registers, and its bytes.
//!
//! Each word of a payload has the lap mark of the record that it belongs to. So a payload is whole when all
//! its words have the mark of the record that was read before them; one that a later lap has begun to
//! write over, or that a late writer of an earlier lap has spoilt, is none. As with records, a writer that is late
//! by a multiple of 1024 laps exactly is not told.

use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::field::{Field, FieldType, FieldValue};

use super::geometry::{Geometry, Position};
use crate::record::MARK_MASK;
use crate::stack::{CopiedStack, StackReader};

/// The bit that tells text which has been cut from text that is whole.
pub const TRUNCATED: u32 = 1 << 31;

/// Words of a stack before what was copied: how many bytes that is, where the probe sits, its stack pointer, its frame pointer.
pub const STACK_HEAD: i32 = 7;

/// Where the value of a word of a payload begins.
pub const PAYLOAD_SHIFT: u32 = 32;

/// The host's access to the payloads of one session's event rings.
pub trait PayloadMemory {
    /// Reads the first words of the payload of `slot` of `ring`, one after the other, each whole.
    fn copy_payload(&self, ring: u16, slot: u64, into: &mut [u64]);
}

/// Why a record has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPayload {
    /// Another lap has written to it.
    Overwritten,
    /// It holds what no stub can have written.
    Invalid,
}

/// The fields of the event at `position`, whose record has been read and is of that position's lap. `stacks` makes values of stacks.
///
/// # Errors
/// [`NoPayload`].
pub fn read_payload(
    memory: &impl PayloadMemory,
    geometry: Geometry,
    ring: u16,
    position: Position,
    format: &EventFormat,
    stacks: Option<&StackReader>,
) -> Result<Vec<FieldValue>, NoPayload> {
    let mut words = vec![0; format.words()];
    memory.copy_payload(ring, geometry.slot(position), &mut words);
    let mark = (position.0 / geometry.slots()) & MARK_MASK;
    let mut words = Words { left: &words, mark };
    let status = match format.has_status {
        true => words.take(1)?.half(0)?,
        false => 0,
    };
    let fields = format.fields.iter().zip(0..);
    let value = |(field, number): (&Field, u32)| {
        let words = words.take(field.kind.words())?;
        let is_fault = status.checked_shr(number).unwrap_or(0) & 1 != 0;
        if is_fault {
            return Ok(FieldValue::Fault);
        }
        match field.kind.is_stack() {
            true => {
                let stack = words.stack(&field.kind)?;
                Ok(stacks.map_or(FieldValue::Fault, |reader| reader.value(&stack)))
            }
            false => words.value(&field.kind),
        }
    };
    fields.map(value).collect()
}

/// Words of a payload, of which those count that a value has been stored in: others have what an earlier lap left.
#[derive(Debug, Clone, Copy)]
struct Words<'a> {
    left: &'a [u64],
    mark: u64,
}

impl<'a> Words<'a> {
    /// The next ones.
    fn take(&mut self, count: usize) -> Result<Self, NoPayload> {
        let (taken, left) = self
            .left
            .split_at_checked(count)
            .ok_or(NoPayload::Invalid)?;
        self.left = left;
        Ok(Self {
            left: taken,
            mark: self.mark,
        })
    }

    /// What a word carries.
    fn half(self, number: usize) -> Result<u32, NoPayload> {
        let word = self.left.get(number).ok_or(NoPayload::Invalid)?;
        if word & MARK_MASK != self.mark {
            return Err(NoPayload::Overwritten);
        }
        if word & ((1 << PAYLOAD_SHIFT) - 1) != self.mark {
            return Err(NoPayload::Invalid);
        }
        Ok((word >> PAYLOAD_SHIFT) as u32)
    }

    /// What `length` bytes are, from word `first` on.
    fn bytes(self, first: usize, length: usize) -> Result<Vec<u8>, NoPayload> {
        let halves = (first..)
            .take(length.div_ceil(4))
            .map(|number| self.half(number));
        let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
        for half in halves {
            bytes.extend(half?.to_le_bytes());
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// What two words carry.
    fn whole(self, first: usize) -> Result<u64, NoPayload> {
        let (low, high) = (self.half(first)?, self.half(first.saturating_add(1))?);
        Ok(u64::from(high) << PAYLOAD_SHIFT | u64::from(low))
    }

    fn stack(self, kind: &FieldType) -> Result<CopiedStack, NoPayload> {
        let length = u16::try_from(self.half(0)?).ok();
        let length = length.filter(|length| *length <= kind.bytes());
        let length = length.ok_or(NoPayload::Invalid)?;
        Ok(CopiedStack {
            at: Gva(self.whole(1)?),
            pointer: Gva(self.whole(3)?),
            frame: self.whole(5)?,
            bytes: self.bytes(7, usize::from(length))?,
        })
    }

    fn value(self, kind: &FieldType) -> Result<FieldValue, NoPayload> {
        if kind.is_number() {
            let high = match kind.words() {
                2 => self.half(1)?,
                _ => 0,
            };
            let low = u64::from(self.half(0)?);
            return Ok(kind.value(u64::from(high) << PAYLOAD_SHIFT | low));
        }
        if !kind.is_text() {
            let bytes = self.bytes(0, usize::from(kind.bytes()))?;
            return Ok(FieldValue::of_bytes(&bytes));
        }
        let said = self.half(0)?;
        let length = u16::try_from(said & !TRUNCATED).ok();
        let length = length.filter(|length| *length <= kind.bytes());
        let length = length.ok_or(NoPayload::Invalid)?;
        let bytes = self.bytes(1, usize::from(length))?;
        Ok(FieldValue::of_text(&bytes, said & TRUNCATED != 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Words(Vec<u64>);

    impl PayloadMemory for Words {
        fn copy_payload(&self, _: u16, _: u64, into: &mut [u64]) {
            into.copy_from_slice(&self.0[..into.len()]);
        }
    }

    fn format(kinds: &[&str]) -> EventFormat {
        let fields = kinds.iter().map(|kind| Field {
            name: (*kind).into(),
            kind: FieldType::named(kind).unwrap(),
        });
        EventFormat::new("e".into(), fields.collect())
    }

    #[test]
    fn values_come_back_with_their_signs() {
        let geometry = Geometry::with_bytes(4096).unwrap();
        let position = geometry.first().after(5 * geometry.slots() + 3);
        let format = format(&["u8", "i8", "u64", "i32", "bool", "i64"]);
        let halves: [u64; 8] = [
            0xff,
            0xff,
            0x89ab_cdef,
            0x0123_4567,
            0xffff_fffe,
            1,
            0,
            1 << 31,
        ];
        let words = halves.map(|half| half << PAYLOAD_SHIFT | 6);
        let read = |words: &[u64]| {
            read_payload(&Words(words.to_vec()), geometry, 0, position, &format, None)
        };
        assert_eq!(
            read(&words),
            Ok(vec![
                FieldValue::Unsigned(255),
                FieldValue::Signed(-1),
                FieldValue::Unsigned(0x0123_4567_89ab_cdef),
                FieldValue::Signed(-2),
                FieldValue::Bool(true),
                FieldValue::Signed(i64::MIN),
            ])
        );
        for index in 0..words.len() {
            let mut torn = words;
            torn[index] ^= 1;
            assert_eq!(read(&torn), Err(NoPayload::Overwritten));
            let mut nonsense = words;
            nonsense[index] |= 1 << 20;
            assert_eq!(read(&nonsense), Err(NoPayload::Invalid));
        }
    }

    #[test]
    fn text_bytes_and_faults_are_read_as_far_as_they_were_written() {
        let geometry = Geometry::with_bytes(4096).unwrap();
        let position = geometry.first();
        let field = |kind| Field {
            name: "f".into(),
            kind,
        };
        let format = EventFormat {
            has_status: true,
            ..EventFormat::new(
                "e".into(),
                vec![
                    field(FieldType::text(6)),
                    field(FieldType::raw(5)),
                    field(FieldType::named("u64").unwrap()),
                ],
            )
        };
        assert_eq!(format.words(), 1 + 3 + 2 + 2);
        // Words of an earlier lap lie where nothing was written.
        let read = |halves: [Option<u32>; 8]| {
            let words =
                halves.map(|half| half.map_or(7, |half| u64::from(half) << PAYLOAD_SHIFT | 1));
            read_payload(&Words(words.to_vec()), geometry, 0, position, &format, None)
        };
        let four = |bytes: &[u8; 4]| Some(u32::from_le_bytes(*bytes));
        let number = [Some(7), Some(0)];
        let [low, high] = number;
        let bytes = [four(&[1, 2, 3, 4]), four(&[0xff, 9, 9, 9])];
        let [first, second] = bytes;
        let of_bytes = || FieldValue::of_bytes(&[1, 2, 3, 4, 0xff]);
        assert_eq!(
            read([
                Some(0),
                Some(3),
                four(b"abc\0"),
                None,
                first,
                second,
                low,
                high
            ]),
            Ok(vec![
                FieldValue::of_text(b"abc", false),
                of_bytes(),
                FieldValue::Unsigned(7)
            ])
        );
        let cut = Some(6 | TRUNCATED);
        assert_eq!(
            read([
                Some(0),
                cut,
                four(b"abcd"),
                four(b"ef??"),
                first,
                second,
                low,
                high
            ]),
            Ok(vec![
                FieldValue::of_text(b"abcdef", true),
                of_bytes(),
                FieldValue::Unsigned(7)
            ])
        );
        assert_eq!(
            read([Some(3), Some(0), None, None, None, None, low, high]),
            Ok(vec![
                FieldValue::Fault,
                FieldValue::Fault,
                FieldValue::Unsigned(7)
            ])
        );
        let torn = read([Some(0), cut, four(b"abcd"), None, first, second, low, high]);
        assert_eq!(torn, Err(NoPayload::Overwritten));
        for length in [7, 0x1_0000, TRUNCATED | 7, u32::MAX] {
            let said = read([Some(0), Some(length), first, first, first, first, low, high]);
            assert_eq!(said, Err(NoPayload::Invalid), "{length:#x}");
        }
    }

    proptest! {
        /// Whatever the guest writes: a value or a reason, never a panic.
        #[test]
        fn any_words_are_read(words in prop::collection::vec(any::<u64>(), 3), at in any::<u64>()) {
            let geometry = Geometry::with_bytes(4096).unwrap();
            let _ = read_payload(&Words(words), geometry, 0, Position(at), &format(&["u64", "bool"]), None);
        }
    }
}
