//! Reading the event rings of one session: records as those of functions, each with a payload that holds the
//! fields.

use std::sync::Arc;

use crate::event_formats::EventFormats;
use crate::record::Format;
use crate::ring::geometry::Geometry;
use crate::ring::reader::{Mode, Patience, Progress, RingReader, discarded};
use crate::ring::snapshot::Snapshot;
use crate::ring::turnstile::Rings;
use crate::session::SessionEvents;
use terms::addr::Gpa;
use terms::event_format::EventId;
use trace::doubt::{TimeDoubt, TimeDoubts};
use trace::event::{Record, RecordKind};
use trace::stream::Origin;

use super::backlog::{Backlog, Batch};
use super::copied_points::CopiedPoints;
use super::looks::Looks;
use super::only_vcpus::OnlyVcpus;
use super::point_sink::{PointSink, Points, Torn};
use super::ring_clock::RingClock;
use super::rings::{EventRings, SharedRings};
use super::rooms::Rooms;
use super::source::{Found, Source};
use crate::clock::RunClock;
use crate::guest::SharedMemory;
use crate::target::MemoryError;
use crate::waits::WaitingRoom;
use status::RingStatus;

/// Bytes of values after which no more is taken out of a ring at a time: a stack of names, or what a number is called, can be a
/// hundred times what the guest has written for it.
const AT_ONCE: usize = 16 << 20;

/// One of the rings.
#[derive(Debug)]
struct PointRing {
    source: Source,
    torn: Torn,
    /// What was found and has not been taken out yet.
    found: Option<Found>,
}

/// What was read at a time.
#[derive(Debug, Clone, Copy, Default)]
pub struct PointsRead {
    /// How many events.
    pub count: usize,
    /// Whether more were found, which the next time brings.
    pub is_left: bool,
}

/// The event rings of one session.
#[derive(Debug)]
pub struct EventDrain {
    rings: EventRings,
    readers: Vec<PointRing>,
    looks: Arc<Looks>,
    geometry: Geometry,
    formats: Arc<EventFormats>,
    /// Whether the output has not been told of them yet.
    is_news: bool,
    /// How often each event was read.
    hits: Vec<u64>,
}

impl EventDrain {
    /// Readers of these rings; nothing is recorded yet.
    #[must_use]
    pub fn new(
        memory: Arc<dyn SharedMemory>,
        place: &SessionEvents,
        mode: Mode,
        formats: &Arc<EventFormats>,
        clock: &RingClock,
    ) -> Self {
        let geometry = place.memory.geometry;
        let rings = EventRings::new(memory, place);
        let events = formats.count();
        let reader = |ring| {
            let first = rings.records().first(ring);
            let reader = RingReader::new(ring, geometry, mode, events)
                .timed(clock.is_timed())
                .starting_at(first);
            reader.initialise(rings.records());
            reader
        };
        let readers: Vec<RingReader> = (0..rings.records().count()).map(reader).collect();
        let looks = Arc::new(Looks::new(rings.records().clone(), geometry, clock));
        let of_ring = |reader| PointRing {
            source: Source::new(reader, geometry, &looks),
            torn: Torn::default(),
            found: None,
        };
        let readers = readers.into_iter().map(of_ring).collect();
        Self {
            rings,
            readers,
            looks,
            geometry,
            formats: Arc::clone(formats),
            is_news: true,
            hits: Vec::new(),
        }
    }

    /// vCPUs that find one of the rings full wait in this room.
    pub(super) fn wait_in(&mut self, room: &WaitingRoom) {
        for PointRing { source, .. } in &mut self.readers {
            source.wait_in(room, Rings::Events);
        }
    }

    /// Whether that is so of the reader of each ring.
    pub(super) fn all(&self, is_so: impl Fn(&RingReader) -> bool) -> bool {
        let mut readers = self.readers.iter();
        readers.all(|ring| is_so(&ring.source.reader))
    }

    /// Events have come: `formats` has those of before, and more.
    pub fn know(&mut self, formats: &Arc<EventFormats>) {
        self.formats = Arc::clone(formats);
        self.is_news = true;
        for PointRing { source, .. } in &mut self.readers {
            source.reader.set_functions(formats.count());
        }
    }

    /// The cells of the rings have moved.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn move_cells(&self, to: &[Gpa]) -> Result<(), MemoryError> {
        self.rings.records().move_cells(to)
    }

    /// What was this session's may be another one's from now on.
    pub fn leave(&self) {
        self.rings.records().leave();
    }

    /// Another output is to be told of them.
    pub const fn tell_again(&mut self) {
        self.is_news = true;
    }

    /// The looks at the rings.
    #[must_use]
    pub fn looks(&self) -> &Arc<Looks> {
        &self.looks
    }

    /// Adds the records that were read and whose times may be wrong. What became of clocks is for the rings
    /// of calls to say.
    pub fn add_doubts(&self, to: &mut TimeDoubts) {
        for PointRing { source, .. } in &self.readers {
            let doubts = source.doubts();
            let records = TimeDoubt::ALL.into_iter();
            let records = records.filter(|kind| kind.is_of_records());
            records.for_each(|kind| to.add(kind, doubts.count(kind)));
        }
    }

    /// How often an event was read so far.
    #[must_use]
    pub fn hits(&self, event: EventId) -> u64 {
        self.hits.get(event.index()).copied().unwrap_or_default()
    }

    /// Lets stubs of these vCPUs record, or stops all.
    pub fn switch(&mut self, on: bool, only: &OnlyVcpus) {
        for PointRing { source, .. } in &mut self.readers {
            let is_recorded = on && only.has(source.reader.ring());
            source.reader.switch(self.rings.records(), is_recorded);
        }
    }

    /// How far each ring was read.
    pub fn progress(&self) -> impl Iterator<Item = Progress> {
        let readers = self.readers.iter();
        readers.map(|ring| ring.source.reader.progress())
    }

    /// Has events counted as lost instead of recorded. Returns how many each ring had lost before.
    pub fn hold(&mut self) -> Vec<u64> {
        let hold = |ring: &mut PointRing| ring.source.reader.hold(self.rings.records());
        self.readers.iter_mut().map(hold).collect()
    }

    /// Has events recorded again, if they were before.
    pub fn release(&mut self) {
        for PointRing { source, .. } in &mut self.readers {
            source.reader.release(self.rings.records());
        }
    }

    /// How many events each ring has lost.
    #[must_use]
    pub fn lost(&self) -> Vec<u64> {
        let lost = |ring: &PointRing| discarded(&ring.source.reader, self.rings.records());
        self.readers.iter().map(lost).collect()
    }

    /// Looks at every head, so that the counts are those of now.
    pub fn look(&mut self) {
        for PointRing { source, .. } in &mut self.readers {
            source.look(self.rings.records());
        }
    }

    /// Reads all rings into `backlog`, if records are taken out: of each what was found when that began, in as many times as its
    /// values ask for.
    pub(super) fn read(
        &mut self,
        patience: Patience,
        clock: &RunClock,
        rooms: &Rooms,
        mut backlog: Option<&mut Backlog>,
    ) -> PointsRead {
        let mut read = PointsRead::default();
        let from = Points {
            payloads: &self.rings,
            geometry: self.geometry,
            formats: &self.formats,
            clock,
        };
        for ring in &mut self.readers {
            let Some(backlog) = &mut backlog else {
                ring.found = None;
                ring.source.look(self.rings.records());
                continue;
            };
            let mut records = rooms.rows();
            let memory = self.rings.records();
            let (values, seen_to) = ring.read_some(memory, &from, patience, &mut records);
            count_hits(&mut self.hits, &records);
            read.count += records.len();
            read.is_left |= ring.found.is_some();
            backlog.push(Batch {
                values,
                looked_ns: seen_to.map(|ticks| clock.nanoseconds(ticks)),
                ..Batch::held(Origin::Points(ring.source.reader.ring()), records)
            });
        }
        if let Some(backlog) = backlog
            && std::mem::take(&mut self.is_news)
        {
            backlog.news.formats = Some(Arc::clone(&self.formats));
        }
        read
    }

    /// What its events are.
    #[must_use]
    pub const fn formats(&self) -> &Arc<EventFormats> {
        &self.formats
    }

    /// Copies what the rings held at the last look, as it is; nothing is taken out of them.
    #[must_use]
    pub(super) fn copy(&self) -> Vec<CopiedPoints> {
        let copy = |ring: &PointRing| {
            let reader = &ring.source.reader;
            let snapshot = Snapshot {
                ring: reader.ring(),
                geometry: self.geometry,
                first: reader.first(),
                head: reader.head(),
                functions: self.formats.count(),
                format: Format::Calls,
                is_timed: self.looks.clock().is_timed(),
                timeline: &ring.source.timeline,
            };
            CopiedPoints::of(&snapshot, &self.rings, &self.formats)
        };
        self.readers.iter().map(copy).collect()
    }

    /// What reads each ring.
    pub fn readers(&self) -> impl Iterator<Item = &RingReader> {
        self.readers.iter().map(|ring| &ring.source.reader)
    }

    /// The counts of each ring; `is_read` when records are taken out.
    #[must_use]
    pub fn status(&self, is_read: bool) -> Vec<RingStatus> {
        let of = |PointRing { source, torn, .. }: &PointRing| {
            let reader = &source.reader;
            let losses = reader.losses();
            let (discarded, overwritten) = if is_read {
                (losses.discarded, losses.overwritten)
            } else {
                let lost = discarded(reader, self.rings.records());
                (lost, reader.overwritten())
            };
            let overwritten = overwritten.saturating_add(torn.overwritten);
            let invalid = losses.invalid.saturating_add(torn.invalid);
            RingStatus {
                ring: reader.ring(),
                written: reader.reserved(),
                read: reader.delivered() - torn.overwritten - torn.invalid,
                discarded,
                overwritten,
                abandoned: losses.abandoned,
                invalid,
                corrupt: losses.corrupt,
                ..RingStatus::default()
            }
            .summed()
        };
        self.readers.iter().map(of).collect()
    }
}

/// Counts what was read.
fn count_hits(hits: &mut Vec<u64>, records: &[Record]) {
    for record in records {
        if let RecordKind::Point(passed) = &record.kind {
            let event = passed.event;
            if hits.len() <= event.index() {
                hits.resize(event.index() + 1, 0);
            }
            if let Some(hits) = hits.get_mut(event.index()) {
                *hits += 1;
            }
        }
    }
}

impl PointRing {
    /// Takes out what was found before, or is found now, until its values are many. Returns the bytes of these, and what all that
    /// comes is later than, if that is known.
    fn read_some(
        &mut self,
        memory: &SharedRings,
        from: &Points<'_, EventRings>,
        patience: Patience,
        records: &mut Vec<Record>,
    ) -> (usize, Option<u64>) {
        let Self { source, torn, .. } = self;
        let found = self.found.take();
        let found = found.unwrap_or_else(|| source.find(memory));
        let mut sink = PointSink {
            vcpu: source.reader.ring(),
            from,
            torn,
            records,
            values: 0,
        };
        while source.drain_to(found.head, 1, memory, patience, &mut sink) {
            if sink.values >= AT_ONCE {
                self.found = Some(found);
                break;
            }
        }
        (sink.values, source.seen_to(found))
    }
}
