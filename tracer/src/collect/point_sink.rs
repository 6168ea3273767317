//! What a ring of points delivers, turned into records with the values that lie beside them.

use crate::clock::RunClock;
use crate::event_formats::EventFormats;
use crate::ring::geometry::Geometry;
use crate::ring::payload::{NoPayload, PayloadMemory, read_payload};
use crate::ring::reader::{Delivered, Sink};
use terms::event_format::EventId;
use terms::field::FieldValue;
use trace::event::{CallValues, Passed, Record, RecordKind};

/// Records that were delivered without a whole payload.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Torn {
    pub overwritten: u64,
    pub invalid: u64,
}

/// What records of points are made with.
#[derive(Debug)]
pub(super) struct Points<'a, P> {
    pub payloads: &'a P,
    pub geometry: Geometry,
    pub formats: &'a EventFormats,
    pub clock: &'a RunClock,
}

/// Turns what a ring of points delivers into records.
pub(super) struct PointSink<'a, P> {
    pub vcpu: u16,
    pub from: &'a Points<'a, P>,
    pub torn: &'a mut Torn,
    pub records: &'a mut Vec<Record>,
    /// Bytes of their values.
    pub values: usize,
}

impl<P> PointSink<'_, P> {
    fn push(&mut self, ticks: u64, kind: RecordKind) {
        self.records.push(Record {
            time_ns: self.from.clock.nanoseconds(ticks),
            kind,
        });
    }
}

impl<P: PayloadMemory> Sink for PointSink<'_, P> {
    fn record(&mut self, record: Delivered) {
        let event = EventId(record.function.0);
        let from = self.from;
        let fields = match from.formats.get(event) {
            Some(format) => {
                let (ring, at) = (self.vcpu, record.position);
                let stacks = from.formats.stacks();
                read_payload(from.payloads, from.geometry, ring, at, format, stacks)
            }
            None => Err(NoPayload::Invalid),
        };
        match fields {
            Ok(fields) => {
                let weight = |field: &FieldValue| size_of_val(field) + field.weight();
                self.values += fields.iter().map(weight).sum::<usize>();
                let kind = match from.formats.call(event) {
                    Some((function, moment)) => {
                        let call = CallValues::of(function, moment, fields);
                        RecordKind::Captured(Box::new(call))
                    }
                    None => RecordKind::Point(Box::new(Passed {
                        event,
                        values: fields.into(),
                    })),
                };
                self.push(record.ticks, kind);
            }
            Err(why) => {
                match why {
                    NoPayload::Overwritten => self.torn.overwritten += 1,
                    NoPayload::Invalid => self.torn.invalid += 1,
                }
                self.lost(record.ticks, 1);
            }
        }
    }

    fn lost(&mut self, ticks: u64, records: u64) {
        let before = self.records.last_mut().map(|record| &mut record.kind);
        match before {
            Some(RecordKind::Lost(before)) => *before = before.saturating_add(records),
            _ => self.push(ticks, RecordKind::Lost(records)),
        }
    }
}
