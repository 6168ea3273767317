//! Some records of one ring, as bytes that can be read alone: a block of the file, with what stands before its records.

use std::fmt::Debug;

use super::blocks::FRAME;
use super::bytes::{Bytes, Malformed};
use super::decode::decode;
use super::looks::{number, origin};
use crate::event::Record;
use crate::form::Form;
use crate::stream::Origin;

/// Bytes before the records: the block's own, and what is said of them all.
const HEADER: usize = FRAME + HEAD;
const HEAD: usize = 40;

/// Where in what is said of them their number is.
const COUNT_AT: usize = 4;

/// Some records of one ring.
#[derive(Debug)]
pub(super) struct Part {
    /// Room for what stands before them, then they.
    pub bytes: Vec<u8>,
    /// The time from which those of its records count.
    pub base_ns: u64,
    /// How many records there are, without losses.
    pub records: u32,
    /// How many its losses say.
    pub lost: u64,
    /// How many of its records are waits of vCPUs, and how many nanoseconds of them.
    pub waits: (u64, u64),
}

/// What is said of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Of {
    pub origin: Origin,
    /// When the ring was looked at; none when something is waited for, or more of it follows.
    pub looked_ns: Option<u64>,
    /// Up to when a loss at their end may have happened.
    pub until_ns: u64,
}

impl Part {
    /// One whose records begin at this time; with room for so many bytes.
    pub fn from(base_ns: u64, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(room);
        bytes.resize(HEADER, 0);
        Self {
            bytes,
            base_ns,
            records: 0,
            lost: 0,
            waits: (0, 0),
        }
    }

    /// Fills in what stands before the records; the block's own is still to come.
    pub fn describe(&mut self, of: Of) -> &mut [u8] {
        let (kind, vcpu) = number(of.origin);
        let mut head = vec![kind, u8::from(of.looked_ns.is_some())];
        head.extend(vcpu.to_le_bytes());
        head.extend(self.records.to_le_bytes());
        let numbers = [
            self.lost,
            self.base_ns,
            of.until_ns,
            of.looked_ns.unwrap_or_default(),
        ];
        head.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        if let Some(place) = self.bytes.get_mut(FRAME..HEADER) {
            place.copy_from_slice(&head);
        }
        &mut self.bytes
    }

    /// Adds its records to `into`, for who wants them at once.
    pub fn records(&self, into: &mut Vec<Record>) -> Result<(), Malformed> {
        let bytes = self.bytes.get(HEADER..).unwrap_or_default();
        decode(bytes, self.base_ns, into)
    }
}

/// How many records a block says that it has, without losses.
pub(super) fn count(block: &[u8]) -> u32 {
    let count = block.get(COUNT_AT..).and_then(|count| count.first_chunk());
    count.copied().map_or(0, u32::from_le_bytes)
}

/// Reads a block: gives its records to `into`, and returns what is said of them.
pub(super) fn read(block: &[u8], into: &mut impl Form) -> Result<Of, Malformed> {
    let mut from = Bytes::of(block);
    let [kind, is_looked] = from.array()?;
    let vcpu = u16::from_le_bytes(from.array()?);
    let _count: [u8; 4] = from.array()?;
    let mut next = || from.array().map(u64::from_le_bytes);
    let (_lost, base_ns, until_ns, looked_ns) = (next()?, next()?, next()?, next()?);
    let of = Of {
        origin: origin(kind, vcpu)?,
        looked_ns: (is_looked == 1).then_some(looked_ns),
        until_ns,
    };
    let rest = block.get(HEAD..).unwrap_or_default();
    decode(rest, base_ns, into)?;
    Ok(of)
}
