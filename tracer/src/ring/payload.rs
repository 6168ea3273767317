//! The fields of an event, read from the payload beside its record.
//!
//! Each word of a payload has the lap mark of the record that it belongs to. So a payload is whole when all
//! its words have the mark of the record that was read before them; one that a later lap has begun to
//! write over, or that a late writer of an earlier lap has spoilt, is none. As with records, a writer that is late
//! by a multiple of 1024 laps exactly is not told.

use super::geometry::{Geometry, Position};
use crate::image::field::FieldValue;
use crate::image::points::EventFormat;
use crate::record::MARK_MASK;
use crate::stub::event::PAYLOAD_SHIFT;

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

/// The fields of the event at `position`, whose record has been read and is of that position's lap.
///
/// # Errors
/// [`NoPayload`].
pub fn read_payload(
    memory: &impl PayloadMemory,
    geometry: Geometry,
    ring: u16,
    position: Position,
    format: &EventFormat,
) -> Result<Vec<FieldValue>, NoPayload> {
    let mut words = vec![0; format.words()];
    memory.copy_payload(ring, geometry.slot(position), &mut words);
    let mark = (position.0 / geometry.slots()) & MARK_MASK;
    if words.iter().any(|word| word & MARK_MASK != mark) {
        return Err(NoPayload::Overwritten);
    }
    if words
        .iter()
        .any(|word| word & ((1 << PAYLOAD_SHIFT) - 1) != mark)
    {
        return Err(NoPayload::Invalid);
    }
    let mut halves = words.iter().map(|word| word >> PAYLOAD_SHIFT);
    let fields = format.fields.iter().map(|field| {
        let low = halves.next().unwrap_or_default();
        let high = match field.kind.words() {
            2 => halves.next().unwrap_or_default(),
            _ => 0,
        };
        field.kind.value(high << PAYLOAD_SHIFT | low)
    });
    Ok(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::field::{Field, FieldType};
    use proptest::prelude::*;

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
        EventFormat {
            name: "e".into(),
            fields: fields.collect(),
        }
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
        let read =
            |words: &[u64]| read_payload(&Words(words.to_vec()), geometry, 0, position, &format);
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

    proptest! {
        /// Whatever the guest writes: a value or a reason, never a panic.
        #[test]
        fn any_words_are_read(words in prop::collection::vec(any::<u64>(), 3), at in any::<u64>()) {
            let geometry = Geometry::with_bytes(4096).unwrap();
            let _ = read_payload(&Words(words), geometry, 0, Position(at), &format(&["u64", "bool"]));
        }
    }
}
