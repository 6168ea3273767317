//! Looks at rings that brought nothing. They say what is certain, and are written when there is something to be certain of:
//! a guest in which nothing happens leaves its trace as it is.

use std::collections::BTreeMap;

use super::bytes::{Bytes, Malformed};
use crate::stream::Origin;

/// What is not written yet.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Of rounds that are over.
    before: BTreeMap<(u8, u16), u64>,
    /// Of this round.
    now: BTreeMap<(u8, u16), u64>,
    /// Something of this round is written.
    has_records: bool,
}

impl Looks {
    /// A ring that brought nothing was looked at.
    pub fn note(&mut self, origin: Origin, time_ns: u64) {
        self.now.insert(number(origin), time_ns);
    }

    /// What stands before the records that are written now: of the rounds before, which are over, and of this one.
    pub fn before_records(&mut self) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        self.has_records = true;
        (encode(&mut self.before), encode(&mut self.now))
    }

    /// No record comes any more: when rings were looked at after the last one.
    pub fn rest(&mut self) -> Option<Vec<u8>> {
        encode(&mut self.before)
    }

    /// The round is over: what is to be written for that, if anything is, and whether that is.
    pub fn end_round(&mut self) -> (bool, Option<Vec<u8>>) {
        if std::mem::take(&mut self.has_records) {
            return (true, encode(&mut self.now));
        }
        self.before.append(&mut self.now);
        (false, None)
    }
}

/// The number of a ring's kind, and its vCPU.
pub(super) const fn number(origin: Origin) -> (u8, u16) {
    match origin {
        Origin::Calls(vcpu) => (1, vcpu),
        Origin::Points(vcpu) => (2, vcpu),
        Origin::Clock => (3, 0),
        Origin::Host(vcpu) => (4, vcpu),
    }
}

/// The ring of these numbers.
pub(super) const fn origin(kind: u8, vcpu: u16) -> Result<Origin, Malformed> {
    match kind {
        1 => Ok(Origin::Calls(vcpu)),
        2 => Ok(Origin::Points(vcpu)),
        3 => Ok(Origin::Clock),
        4 => Ok(Origin::Host(vcpu)),
        _ => Err(Malformed("no kind of ring")),
    }
}

fn encode(looks: &mut BTreeMap<(u8, u16), u64>) -> Option<Vec<u8>> {
    if looks.is_empty() {
        return None;
    }
    let mut bytes = Vec::new();
    for ((kind, vcpu), time_ns) in std::mem::take(looks) {
        bytes.extend([kind, 1]);
        bytes.extend(vcpu.to_le_bytes());
        bytes.extend(time_ns.to_le_bytes());
    }
    Some(bytes)
}

/// Looks, read back.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<(Origin, u64)>, Malformed> {
    let mut from = Bytes::of(bytes);
    let mut looks = Vec::new();
    while !from.is_empty() {
        let [kind, _] = from.array()?;
        let vcpu = u16::from_le_bytes(from.array()?);
        let time_ns = u64::from_le_bytes(from.array()?);
        looks.push((origin(kind, vcpu)?, time_ns));
    }
    Ok(looks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stands in a file, read back.
    fn read(block: Option<Vec<u8>>) -> Vec<(Origin, u64)> {
        block.map_or_else(Vec::new, |bytes| decode(&bytes).unwrap())
    }

    #[test]
    fn looks_of_rounds_without_records_are_written_before_the_first_records() {
        let mut looks = Looks::default();
        let (first, second) = (Origin::Calls(0), Origin::Points(1));
        looks.note(first, 10);
        looks.note(second, 11);
        assert_eq!(looks.end_round(), (false, None));
        looks.note(first, 20);
        assert_eq!(looks.end_round(), (false, None));
        looks.note(second, 30);
        let (before, now) = looks.before_records();
        assert_eq!(read(before), [(first, 20), (second, 11)]);
        assert_eq!(read(now), [(second, 30)]);
        looks.note(first, 31);
        let (is_written, after) = looks.end_round();
        assert_eq!((is_written, read(after)), (true, vec![(first, 31)]));
        assert_eq!(looks.before_records(), (None, None), "once is enough");
        assert_eq!(looks.end_round(), (true, None));
        for time_ns in [40, 50] {
            looks.note(first, time_ns);
            assert_eq!(looks.end_round(), (false, None));
        }
        assert_eq!(read(looks.rest()), [(first, 50)]);
        assert_eq!(looks.rest(), None);
    }
}
