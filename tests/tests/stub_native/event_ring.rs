//! The event ring of a vCPU in the ground, with its payloads.

use tracer::record::Format;
use tracer::ring::geometry::Position;
use tracer::ring::payload::PayloadMemory;
use tracer::stub::cell::EVENT_CELL;
use tracer::stub::event::EventRecorder;
use tracer::stub::recorder::Recorder;

use crate::ground::{Ground, RINGS_MAX};

/// Bytes of the payload of a slot, as a power of two: room for the longest that tests make.
pub const PAYLOAD_LOG2: u32 = 9;

/// The event ring of vCPU 0, whose payloads lie after the rings of the session.
pub struct EventRing<'a> {
    ground: &'a Ground,
    pub event: EventRecorder,
    cell: u64,
}

impl EventRing<'_> {
    pub fn new(ground: &Ground) -> EventRing<'_> {
        let of_records = ground.recorders[0];
        let recorder = Recorder {
            cell: of_records.cell.events(),
            format: Format::Calls,
            details: None,
            ..of_records
        };
        let records = of_records.geometry.bytes() * u64::from(RINGS_MAX);
        let event = EventRecorder {
            recorder,
            payload: recorder.rings.wrapping_add(records),
            payload_log2: PAYLOAD_LOG2,
        };
        let cell = ground.cell(0, 0) + EVENT_CELL;
        EventRing {
            ground,
            event,
            cell,
        }
    }

    pub fn word(&self, offset: i32) -> u64 {
        let bytes = self
            .ground
            .read(self.cell + u64::from(offset.unsigned_abs()), 8);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    pub fn set_word(&self, offset: i32, value: u64) {
        let at = self.cell + u64::from(offset.unsigned_abs());
        self.ground.write(at, &value.to_le_bytes());
    }

    /// Where the record at a position is.
    pub fn slot(&self, position: Position) -> u64 {
        let recorder = &self.event.recorder;
        recorder.rings.0 + 8 * recorder.geometry.slot(position)
    }
}

impl PayloadMemory for EventRing<'_> {
    fn copy_payload(&self, ring: u16, slot: u64, into: &mut [u64]) {
        assert_eq!(ring, 0);
        assert!(into.len() <= 1 << (PAYLOAD_LOG2 - 3));
        let at = self.event.payload.0 + (slot << PAYLOAD_LOG2);
        let bytes = self.ground.read(at, 8 * into.len());
        for (word, bytes) in into.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
    }
}
