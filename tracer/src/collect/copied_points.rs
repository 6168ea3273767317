//! What a ring of events held, with the values beside its records, until it is made into events.

use std::collections::VecDeque;
use std::sync::Arc;

use trace::doubt::TimeDoubts;
use trace::event::Record;

use super::point_sink::{PointSink, Points, Torn};
use super::rings::EventRings;
use crate::clock::RunClock;
use crate::event_formats::EventFormats;
use crate::ring::geometry::{Geometry, Position};
use crate::ring::payload::PayloadMemory;
use crate::ring::snapshot::{Copied, Piece, Snapshot};

/// Bytes of payloads in a piece: values that are made of them can be a hundred times as many.
const PIECE_BYTES: u64 = 256 << 10;

/// A copy of one ring.
#[derive(Debug)]
pub(super) struct CopiedPoints {
    ring: u16,
    geometry: Geometry,
    formats: Arc<EventFormats>,
    records: Copied,
    /// Of each piece of the records.
    payloads: VecDeque<Payloads>,
    torn: Torn,
}

/// The payloads of slots that lie one after the other.
#[derive(Debug)]
struct Payloads {
    first_slot: u64,
    words_of_one: usize,
    words: Vec<u64>,
}

impl PayloadMemory for Payloads {
    fn copy_payload(&self, _ring: u16, slot: u64, into: &mut [u64]) {
        let slots = usize::try_from(slot.wrapping_sub(self.first_slot)).unwrap_or(usize::MAX);
        let from = slots.saturating_mul(self.words_of_one);
        let held = self.words.get(from..).unwrap_or_default();
        into.fill(0);
        for (word, held) in into.iter_mut().zip(held) {
            *word = *held;
        }
    }
}

impl CopiedPoints {
    /// Of the ring of this view: first the records, then what lies beside them.
    pub fn of(view: &Snapshot<'_>, rings: &EventRings, formats: &Arc<EventFormats>) -> Self {
        let of_one = rings.payload_bytes();
        let records = view.copy(rings.records(), PIECE_BYTES / of_one.max(1));
        let words_of_one = usize::try_from(of_one / 8).unwrap_or_default();
        let beside = |piece: &Piece| {
            let slots = usize::try_from(piece.slots()).unwrap_or_default();
            let mut words = vec![0; slots.saturating_mul(words_of_one)];
            let first_slot = view.geometry.slot(piece.first);
            rings.copy_payload(view.ring, first_slot, &mut words);
            Payloads {
                first_slot,
                words_of_one,
                words,
            }
        };
        Self {
            ring: view.ring,
            geometry: view.geometry,
            formats: Arc::clone(formats),
            payloads: records.pieces().map(beside).collect(),
            records,
            torn: Torn::default(),
        }
    }

    /// The ring's number.
    pub const fn ring(&self) -> u16 {
        self.ring
    }

    /// What is made later has this time or a later one.
    pub const fn last(&self) -> u64 {
        self.records.last()
    }

    /// How many events have times that may be wrong.
    pub const fn doubts(&self) -> TimeDoubts {
        self.records.doubts()
    }

    /// Makes the next events. Whether that was all.
    pub fn deliver_some(&mut self, clock: &RunClock, to: &mut Vec<Record>) -> bool {
        let none = Payloads {
            first_slot: 0,
            words_of_one: 0,
            words: Vec::new(),
        };
        let payloads = self.payloads.pop_front().unwrap_or(none);
        let from = Points {
            payloads: &payloads,
            geometry: self.geometry,
            formats: &self.formats,
            clock,
        };
        let mut sink = PointSink {
            vcpu: self.ring,
            from: &from,
            torn: &mut self.torn,
            records: to,
            values: 0,
        };
        self.records.deliver_some(Position(u64::MAX), &mut sink);
        let is_over = self.records.is_over();
        if is_over {
            self.records.say_missing(&mut sink);
        }
        is_over
    }
}
