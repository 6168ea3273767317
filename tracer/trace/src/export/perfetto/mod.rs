//! Perfetto's own format: track events in protobuf. A track for each thread with its calls, one for each vCPU with who ran
//! there and the guest's events, a counter of what was lost, and a track of what was done from outside: pauses, triggers.
//!
//! Each track is a sequence of packets of its own: what all packets of a sequence have in common is said once, times are the
//! differences to the ones before, and names are numbers. So an event takes 13 to 20 bytes.

mod message;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::btree_map::Entry;
use std::io::{self, Write};

use prost::Message;
use terms::field::FieldValue;
use terms::printable::masked;

use self::message::{
    BOOTTIME, CLEARED, Clock, ClockSnapshot, CounterDescriptor, DebugAnnotation, InternedData,
    NEEDED, Name, OWN_CLOCK, ProcessDescriptor, ThreadDescriptor, TracePacket, TracePacketDefaults,
    TrackDescriptor, TrackEvent, TrackEventDefaults, Type,
};
use crate::event::{Event, EventKind};
use crate::export::events::EventLine;
use crate::export::remark::Remark;
use crate::export::resolution::shorter;
use crate::export::tids::Thread;

/// The field of `Trace` that each packet is.
const PACKET: u8 = 1 << 3 | 2;
/// The track of the guest as a whole, and its process: no thread has such a number.
const GUEST: u64 = 1;
const GUEST_PID: i32 = 1 << 30;

/// What has a track of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Thread(u32),
    Vcpu(u16),
    Lost(u16),
    /// What was done from outside.
    Tracing,
}

/// A track that was begun.
#[derive(Debug)]
struct Begun {
    sequence: u32,
    last_ns: u64,
    names: Numbers,
    annotations: Numbers,
    /// Of what was lost, so far.
    sum: u64,
    /// Who is shown to run on a vCPU.
    running: Option<u32>,
}

/// Names that were told of a track, by number.
#[derive(Debug, Default)]
struct Numbers(HashMap<String, u64>);

impl Numbers {
    /// The number of a name, which is put to what is `told` if it is new.
    fn number(&mut self, name: &str, told: &mut Vec<Name>) -> u64 {
        if let Some(number) = self.0.get(name) {
            return *number;
        }
        let next = self.0.len() as u64 + 1;
        self.0.insert(name.to_owned(), next);
        told.push(Name {
            iid: Some(next),
            name: Some(masked(name).into_owned()),
        });
        next
    }
}

/// What is known of an event, by its name.
type Annotation<'a> = (&'a str, DebugAnnotation);

/// Writes one trace.
#[derive(Debug)]
pub struct Perfetto<W> {
    out: W,
    /// Of the clock that the times are from, if it does not tell every nanosecond.
    period_ns: Option<u64>,
    /// Threads by number.
    threads: BTreeMap<u32, Thread>,
    tracks: BTreeMap<Track, Begun>,
    last_ns: u64,
}

impl<W: Write> Perfetto<W> {
    /// Begins the trace of a guest that is called so.
    ///
    /// # Errors
    /// What `out` says.
    pub fn begin(
        out: W,
        guest: &str,
        threads: BTreeMap<u32, Thread>,
        period_ns: Option<u64>,
    ) -> io::Result<Self> {
        let mut perfetto = Self {
            out,
            period_ns,
            threads,
            tracks: BTreeMap::new(),
            last_ns: 0,
        };
        let process = ProcessDescriptor {
            pid: Some(GUEST_PID),
            process_name: Some(masked(guest).into_owned()),
        };
        perfetto.packet(&TracePacket {
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(GUEST),
                process: Some(process),
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        })?;
        Ok(perfetto)
    }

    /// The next step of a thread, in the order of time: of a function of this name, with what is known of the call. Where
    /// returns are not traced (`has_ends`), a call is a moment.
    ///
    /// # Errors
    /// What `out` says.
    pub fn step<'a>(
        &mut self,
        step: &Event,
        name: &str,
        values: impl Iterator<Item = (&'a str, &'a FieldValue)>,
        has_ends: bool,
    ) -> io::Result<()> {
        let (time_ns, track) = (step.time_ns, Track::Thread(step.thread));
        let values = values.map(|(name, value)| (name, annotation(value)));
        let mut values: Vec<Annotation<'_>> = values.collect();
        match step.kind {
            EventKind::Entry(_) => {
                self.runs(step.vcpu, step.thread, time_ns)?;
                let kind = if has_ends {
                    Type::SliceBegin
                } else {
                    Type::Moment
                };
                self.event(track, time_ns, kind, Some(name), values)
            }
            EventKind::Exit { end, duration, .. } => {
                self.runs(step.vcpu, step.thread, time_ns)?;
                let shorter = duration.and_then(|time| shorter(time, self.period_ns));
                if let Some(period) = shorter {
                    values.push(("duration", text(format!("<{period} ns"))));
                } else if duration.is_none() {
                    let remark = end.remark().unwrap_or("duration unknown");
                    values.push(("end", text(remark.to_owned())));
                }
                self.event(track, time_ns, Type::SliceEnd, None, values)
            }
            EventKind::Lost(count) => self.lost(step.vcpu, time_ns, count),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => Ok(()),
        }
    }

    /// An event of the guest's own, or a loss of some.
    ///
    /// # Errors
    /// What `out` says.
    pub fn point(&mut self, event: &EventLine) -> io::Result<()> {
        let Some(name) = &event.event else {
            return self.lost(event.vcpu, event.time_ns, event.lost);
        };
        let fields = event.fields.0.iter();
        let values = fields
            .map(|(name, value)| (name.as_str(), annotation(value)))
            .collect();
        let track = Track::Vcpu(event.vcpu);
        self.event(track, event.time_ns, Type::Moment, Some(name), values)
    }

    /// What concerns all vCPUs is a moment of a track of its own.
    ///
    /// # Errors
    /// What `out` says.
    pub fn remark(&mut self, remark: &Remark) -> io::Result<()> {
        let length = |ns| ("length_ns", annotation(&FieldValue::Unsigned(ns)));
        let (name, values) = match remark {
            Remark::Stall(stall) => (
                "clock stood still until here",
                vec![length(stall.length_ns)],
            ),
            Remark::Pause(pause) => ("guest held", vec![length(pause.length_ns)]),
            Remark::Wait(wait) => {
                let vcpu = annotation(&FieldValue::Unsigned(wait.vcpu.into()));
                let values = vec![("vcpu", vcpu), length(wait.length_ns)];
                ("waited for the reader until here", values)
            }
            Remark::Fired(fired) => {
                let trigger = masked(&fired.trigger).into_owned();
                ("trigger fired", vec![("trigger", text(trigger))])
            }
            Remark::Cut(_, said) => ("not whole", vec![("why", text(said.clone()))]),
            Remark::Doubt(_, said) => ("in doubt", vec![("what", text(said.clone()))]),
        };
        let time_ns = remark.time_ns();
        self.event(Track::Tracing, time_ns, Type::Moment, Some(name), values)
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// What `out` says.
    pub fn finish(mut self) -> io::Result<()> {
        let running = self
            .tracks
            .iter()
            .filter(|(_, begun)| begun.running.is_some());
        let running: Vec<Track> = running.map(|(track, _)| *track).collect();
        let last_ns = self.last_ns;
        for track in running {
            self.event(track, last_ns, Type::SliceEnd, None, Vec::new())?;
        }
        self.out.flush()
    }

    /// A thread was seen on a vCPU: it has been there since then, for all that is known.
    fn runs(&mut self, vcpu: u16, thread: u32, time_ns: u64) -> io::Result<()> {
        let track = Track::Vcpu(vcpu);
        let begun = self.begun(track, time_ns)?;
        let before = begun.running.replace(thread);
        if before == Some(thread) {
            return Ok(());
        }
        if before.is_some() {
            self.event(track, time_ns, Type::SliceEnd, None, Vec::new())?;
        }
        let name = self.thread(thread).name;
        self.event(track, time_ns, Type::SliceBegin, Some(&name), Vec::new())
    }

    fn thread(&self, thread: u32) -> Thread {
        let known = self.threads.get(&thread).cloned();
        known.unwrap_or_else(|| Thread {
            tid: thread,
            name: format!("thread{thread}"),
        })
    }

    fn lost(&mut self, vcpu: u16, time_ns: u64, count: u64) -> io::Result<()> {
        let track = Track::Lost(vcpu);
        let begun = self.begun(track, time_ns)?;
        begun.sum = begun.sum.saturating_add(count);
        let event = TrackEvent {
            r#type: Some(Type::Counter.into()),
            counter_value: Some(i64::try_from(begun.sum).unwrap_or(i64::MAX)),
            ..TrackEvent::default()
        };
        self.put(track, time_ns, event, None, Vec::new())
    }

    fn event(
        &mut self,
        track: Track,
        time_ns: u64,
        kind: Type,
        name: Option<&str>,
        values: Vec<Annotation<'_>>,
    ) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(kind.into()),
            ..TrackEvent::default()
        };
        self.put(track, time_ns, event, name, values)
    }

    /// Writes an event, with the names that are new to the track.
    fn put(
        &mut self,
        track: Track,
        time_ns: u64,
        mut event: TrackEvent,
        name: Option<&str>,
        values: Vec<Annotation<'_>>,
    ) -> io::Result<()> {
        let begun = self.begun(track, time_ns)?;
        let mut told = InternedData::default();
        event.name_iid = name.map(|name| begun.names.number(name, &mut told.event_names));
        let numbered = values.into_iter().map(|(name, value)| DebugAnnotation {
            name_iid: Some(
                begun
                    .annotations
                    .number(name, &mut told.debug_annotation_names),
            ),
            ..value
        });
        event.debug_annotations = numbered.collect();
        let delta = time_ns.saturating_sub(begun.last_ns);
        begun.last_ns = begun.last_ns.max(time_ns);
        let packet = TracePacket {
            timestamp: Some(delta),
            trusted_packet_sequence_id: Some(begun.sequence),
            track_event: Some(event),
            interned_data: Some(told).filter(|told| *told != InternedData::default()),
            sequence_flags: Some(NEEDED),
            ..TracePacket::default()
        };
        self.last_ns = self.last_ns.max(time_ns);
        self.packet(&packet)
    }

    /// A track; begins it if it is new.
    fn begun(&mut self, track: Track, time_ns: u64) -> io::Result<&mut Begun> {
        let sequence = u32::try_from(self.tracks.len() + 2).unwrap_or(u32::MAX);
        if !self.tracks.contains_key(&track) {
            self.describe(track, sequence)?;
            self.defaults(sequence, time_ns)?;
        }
        Ok(match self.tracks.entry(track) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Begun {
                sequence,
                last_ns: time_ns,
                names: Numbers::default(),
                annotations: Numbers::default(),
                sum: 0,
                running: None,
            }),
        })
    }

    fn describe(&mut self, track: Track, sequence: u32) -> io::Result<()> {
        let mut descriptor = TrackDescriptor {
            uuid: Some(sequence.into()),
            parent_uuid: Some(GUEST),
            ..TrackDescriptor::default()
        };
        match track {
            Track::Thread(thread) => {
                let Thread { tid, name } = self.thread(thread);
                descriptor.parent_uuid = None;
                descriptor.thread = Some(ThreadDescriptor {
                    pid: Some(GUEST_PID),
                    tid: Some(tid.into()),
                    thread_name: Some(masked(&name).into_owned()),
                });
            }
            Track::Vcpu(vcpu) => descriptor.name = Some(format!("vCPU {vcpu}")),
            Track::Tracing => descriptor.name = Some("tracing".to_owned()),
            Track::Lost(vcpu) => {
                descriptor.name = Some(format!("records lost on vCPU {vcpu}"));
                descriptor.counter = Some(CounterDescriptor {});
            }
        }
        self.packet(&TracePacket {
            track_descriptor: Some(descriptor),
            trusted_packet_sequence_id: Some(sequence),
            ..TracePacket::default()
        })
    }

    /// What all events of a track have in common: where they are, and the time that the first one is told from.
    fn defaults(&mut self, sequence: u32, time_ns: u64) -> io::Result<()> {
        let clock = |id, is_incremental| Clock {
            clock_id: Some(id),
            timestamp: Some(time_ns),
            is_incremental,
        };
        let defaults = TracePacketDefaults {
            track_event_defaults: Some(TrackEventDefaults {
                track_uuid: Some(sequence.into()),
            }),
            timestamp_clock_id: Some(OWN_CLOCK),
        };
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(sequence),
            sequence_flags: Some(CLEARED),
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![clock(BOOTTIME, None), clock(OWN_CLOCK, Some(true))],
            }),
            trace_packet_defaults: Some(defaults),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: &TracePacket) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(PACKET);
        packet
            .encode_length_delimited(&mut bytes)
            .map_err(io::Error::other)?;
        self.out.write_all(&bytes)
    }
}

fn text(value: String) -> DebugAnnotation {
    DebugAnnotation {
        string_value: Some(value),
        ..DebugAnnotation::default()
    }
}

fn annotation(value: &FieldValue) -> DebugAnnotation {
    let mut annotation = DebugAnnotation::default();
    match value {
        FieldValue::Bool(value) => annotation.bool_value = Some(*value),
        FieldValue::Unsigned(value) => annotation.uint_value = Some(*value),
        FieldValue::Signed(value) => annotation.int_value = Some(*value),
        FieldValue::Pointer(value) => annotation.pointer_value = Some(value.0),
        FieldValue::Text { text, truncated } => {
            let more = if *truncated { "..." } else { "" };
            annotation.string_value = Some(masked(text).into_owned() + more);
        }
        FieldValue::Character { .. }
        | FieldValue::Enumerator { .. }
        | FieldValue::Bytes { .. }
        | FieldValue::Stack { .. }
        | FieldValue::Fault => annotation.string_value = Some(value.to_string()),
    }
    annotation
}
