//! Reading the rings of one session while the guest runs: each round looks at every head, which times its
//! records, and takes the records out when there is somewhere to put them. It writes nothing: what was read waits
//! (`Backlog`) for who writes, so whoever asks for counts never waits for a disk.

mod copied;
mod dumping;
mod off_times;
mod refused;

use std::sync::Arc;

use crate::record::Format;
use crate::ring::geometry::Geometry;
use crate::ring::reader::{Mode, Patience, Progress, RingReader, discarded, is_recording};
use crate::ring::turnstile::Rings;
use image::Image;
use terms::addr::Gpa;
use trace::doubt::{TimeDoubt, TimeDoubts};
use trace::export::probes::ProbeNote;
use trace::export::uftrace::{Entries, Metadata};
use trace::live::{Listener, Live, LostBefore};

use self::dumping::Dumping;
use self::off_times::{OffTime, OffTimes};
use self::refused::AllRefused;
use super::backlog::{Backlog, RECORDS_MAX};
use super::call_ring::{CallRing, Shared};
use super::call_rings::CallRings;
use super::encoder::Encoding;
use super::event_drain::{EventDrain, PointsRead};
use super::host_drain::HostDrain;
use super::looks::{AllLooks, Looks};
use super::only_vcpus::OnlyVcpus;
use super::output::Output;
use super::ring_clock::TraceTime;
use super::rings::SharedRings;
use super::rooms::Rooms;
use super::source::Source;
use super::stall_drain::StallDrain;
use super::wait_drain::{OnFull, WaitDrain};
use crate::host_events::HostEvents;
use crate::target::MemoryError;
use crate::waits::WaitingRoom;
use status::RingStatus;

/// How long a reserved slot is waited for: a guest that preempts a thread in a stub needs a few time slices to come back to
/// it, and a host that is busy takes the vCPU away in between (200 ms were too short with three other busy threads for each
/// CPU: two of 240 traces had calls of unknown duration). A busy ring is not kept so long: no more than a quarter of it waits.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The rings of one session and where their records go.
#[derive(Debug)]
pub struct Drain {
    rings: SharedRings,
    calls: CallRings,
    looks: AllLooks,
    time: TraceTime,
    geometry: Geometry,
    functions: u32,
    format: Format,
    /// Whether records are taken out, for an output.
    is_written: bool,
    /// What the output has not taken yet.
    backlog: Backlog,
    /// Where that goes from now on, where it went nowhere before.
    output: Option<Box<Output>>,
    /// Where the clock page stood still, for a session that is timed by it.
    stalls: Option<StallDrain>,
    /// From the session's first event on.
    points: Option<EventDrain>,
    /// Where the host tells what it does with the vCPUs.
    host: Option<HostDrain>,
    /// Where vCPUs wait that find a ring full, of a session that loses nothing.
    waits: Option<WaitDrain>,
    /// Every probe that it has recorded.
    probes: Vec<ProbeNote>,
    is_on: bool,
    /// Of which vCPUs it is.
    only: OnlyVcpus,
    /// When nothing was recorded, for who copies the rings.
    off_times: OffTimes,
    /// What its rings have refused and when, for the same.
    refused: AllRefused,
    /// Up to when something would have been recorded, where nothing is any more.
    until_ns: u64,
    /// Nothing more is recorded, and whoever could look at the clocks has.
    pub(crate) is_over: bool,
    /// What [`Self::recorded_until_ns`] was when the guest ended, once it has: it executes nothing from then on, whatever is still read
    /// of it, and however long that takes.
    pub(crate) ended_ns: Option<u64>,
}

impl Drain {
    /// Readers of `rings`, which are all zeros still; records are taken out if they are written. Tracing is off.
    #[must_use]
    pub fn new(
        rings: SharedRings,
        geometry: Geometry,
        mode: Mode,
        functions: u32,
        time: TraceTime,
        is_written: bool,
    ) -> Self {
        let format = rings.format();
        let reader = |ring| {
            let reader = RingReader::new(ring, geometry, mode, functions)
                .of(format)
                .timed(time.rings.is_timed())
                .starting_at(rings.first(ring));
            reader.initialise(&rings);
            reader
        };
        let readers: Vec<RingReader> = (0..rings.count()).map(reader).collect();
        let looks = Arc::new(Looks::new(rings.clone(), geometry, &time.rings));
        let shared = Shared {
            rings: &rings,
            time: &time,
            stacks: Arc::default(),
            rooms: Rooms::default(),
        };
        let of_ring = |reader| {
            let source = Source::new(reader, geometry, &looks);
            CallRing::new(source, &shared, is_written)
        };
        let calls = CallRings::new(readers.into_iter().map(of_ring), shared.rooms.clone());
        Self {
            rings,
            calls,
            looks: AllLooks::new(looks),
            stalls: time.rings.beats().map(StallDrain::new),
            time,
            geometry,
            functions,
            format,
            is_written,
            backlog: Backlog::default(),
            output: None,
            points: None,
            host: None,
            waits: None,
            probes: Vec::new(),
            is_on: false,
            only: OnlyVcpus::default(),
            off_times: OffTimes::default(),
            refused: AllRefused::default(),
            until_ns: 0,
            is_over: false,
            ended_ns: None,
        }
    }

    /// Only these vCPUs are recorded, from the next switch on.
    pub fn record_only(&mut self, only: OnlyVcpus) {
        self.only = only;
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Arc<Image>) {
        self.functions = u32::try_from(image.functions.len()).unwrap_or(u32::MAX);
        let entries = Entries::of(&image.functions);
        for mut calls in self.calls.each() {
            calls.extend(self.functions, &entries);
        }
        self.backlog.news.image = Some(Arc::clone(image));
    }

    /// How the records of its calls are wanted.
    pub fn encode(&mut self, encoding: &Encoding) {
        let each = self.calls.each();
        each.for_each(|mut calls| calls.encode(encoding.clone()));
    }

    /// What the host does with the vCPUs is part of the trace, from now on.
    pub fn tell_of_host(&mut self, events: &Arc<HostEvents>) {
        self.host = Some(HostDrain::new(events));
    }

    /// The cells of its rings have moved ([`SharedRings::move_cells`]).
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn move_cells(&mut self, calls: &[Gpa], events: &[Gpa]) -> Result<(), MemoryError> {
        self.calls.still();
        self.rings.move_cells(calls)?;
        match &self.points {
            Some(points) => points.move_cells(events),
            None => Ok(()),
        }
    }

    /// vCPUs that find a ring full wait in `room`, as long as somebody reads it.
    pub(crate) fn wait_in(&mut self, room: Arc<WaitingRoom>, on_full: OnFull) {
        for mut calls in self.calls.each() {
            calls.source.wait_in(&room, Rings::Calls);
        }
        if let Some(points) = &mut self.points {
            points.wait_in(&room);
        }
        self.waits = Some(WaitDrain::new(
            room,
            on_full,
            self.time.run,
            self.time.rings.is_timed(),
        ));
        self.set_awaited();
    }

    /// Where vCPUs wait, if they do.
    pub(super) const fn waits(&self) -> Option<&WaitDrain> {
        self.waits.as_ref()
    }

    /// Changes for whom they wait, if that is what `change` says.
    pub(super) fn change_waits(&mut self, change: impl FnOnce(&mut WaitDrain) -> bool) {
        if self.waits.as_mut().is_some_and(change) {
            self.set_awaited();
        }
    }

    /// Has vCPUs wait at full rings where that has an end.
    fn set_awaited(&mut self) {
        let Some(waits) = &mut self.waits else {
            return;
        };
        let is_awaited = self.is_on && self.is_written && waits.is_attended();
        self.rings.set_awaited(is_awaited);
        waits.has_moved_limits();
    }

    /// Its rings of calls.
    pub(super) const fn calls(&self) -> &CallRings {
        &self.calls
    }

    /// Its rings.
    #[must_use]
    pub const fn rings(&self) -> &SharedRings {
        &self.rings
    }

    /// The time of its trace.
    #[must_use]
    pub const fn time(&self) -> &TraceTime {
        &self.time
    }

    /// Reads the session's event rings, too, from now on.
    pub fn add_events(&mut self, mut points: EventDrain) {
        points.switch(self.is_on, &self.only);
        if let Some(waits) = &self.waits {
            points.wait_in(waits.room());
        }
        self.looks.add(points.looks());
        self.points = Some(points);
        self.set_awaited();
    }

    /// The event rings, if they are read.
    #[must_use]
    pub fn events(&mut self) -> Option<&mut EventDrain> {
        self.points.as_mut()
    }

    /// These probes are recorded from now on.
    pub fn note_probes(&mut self, notes: &[ProbeNote]) {
        self.probes.extend_from_slice(notes);
        self.probes.sort_by_key(|note| note.id);
        self.probes.dedup_by_key(|note| note.id);
        self.backlog.news.probes = Some(self.probes.clone());
    }

    /// Whether the event rings are read.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.points.is_some()
    }

    /// Up to when something would have been recorded, if something had been called: now, as long as that is so. 0 where nothing but the records
    /// says so, as the guest itself has ended it.
    #[must_use]
    pub fn recorded_until_ns(&self) -> u64 {
        if let Some(ended_ns) = self.ended_ns {
            return ended_ns;
        }
        if !self.is_on {
            return self.until_ns;
        }
        let now_ns = self.time.least_ns();
        let mut each = self.calls.each();
        let is_recorded = each.any(|calls| is_recording(&calls.source.reader, &self.rings));
        match is_recorded && self.time.rings.is_timed() {
            true => now_ns,
            false => 0,
        }
    }

    /// Lets stubs record, or stops them.
    pub fn switch(&mut self, on: bool) {
        // What comes now waits for nobody: all rings are switched at the same time.
        self.calls.still();
        if on && changes(self) {
            say_gap(self);
        }
        if !on {
            self.until_ns = self.recorded_until_ns();
        }
        self.is_on = on;
        if on {
            // Before anything is recorded: who finds a ring full waits already.
            self.set_awaited();
        }
        if let Some(points) = &mut self.points {
            points.switch(on, &self.only);
        }
        for mut calls in self.calls.each() {
            let is_recorded = on && self.only.has(calls.source.reader.ring());
            calls.switch(is_recorded);
        }
        self.set_awaited();
    }

    /// Looks at every head, so that the counts are those of now.
    pub fn look(&mut self) {
        self.calls.each().for_each(|mut calls| calls.look());
        if let Some(points) = &mut self.points {
            points.look();
        }
    }

    /// Reads what is not a ring of calls: of events that were found when that began some, if their values are many.
    pub fn read_rest(&mut self, patience: Patience) -> PointsRead {
        let (is_written, backlog) = (self.is_written, &mut self.backlog);
        if let Some(stalls) = &mut self.stalls {
            stalls.read(&self.time.run, is_written, |batch| backlog.push(batch));
        }
        if let Some(waits) = self.waits.as_mut().filter(|_| is_written) {
            waits.read(|batch| backlog.push(batch));
        }
        // As with rings, who comes later hears first what is kept.
        if let Some(host) = self.host.as_mut().filter(|_| is_written) {
            host.read(&self.time.run, |batch| backlog.push(batch));
        }
        let Some(points) = &mut self.points else {
            return PointsRead::default();
        };
        let backlog = self.is_written.then_some(&mut self.backlog);
        let points_read = points.read(patience, &self.time.run, &self.calls.rooms, backlog);
        if self.waits.is_some() {
            let read: Vec<_> = (0..).zip(points.progress()).collect();
            let counter = self.time.rings.host().counter;
            for (ring, at) in read {
                self.change_waits(|waits| waits.has_read(Rings::Events, ring, at, counter()));
            }
        }
        points_read
    }

    /// A ring of calls was read up to there. Also where nothing is written any more: who had found it full before that, and
    /// comes to wait only now, may go.
    pub(super) fn has_read(&mut self, ring: u16, at: Progress) {
        let counter = self.time.rings.host().counter;
        self.change_waits(|waits| waits.has_read(Rings::Calls, ring, at, counter()));
    }

    /// Gives all that waits to who writes it, but that of rings which are being read, and where to from now on, where it
    /// went nowhere before.
    #[must_use]
    pub(super) fn hand_over(&mut self, to: &mut Backlog) -> Option<Box<Output>> {
        self.calls.hand_over(to);
        to.news = self.backlog.take_news();
        to.take(&mut self.backlog);
        self.output.take()
    }

    fn set_written(&mut self, is_written: bool) {
        self.is_written = is_written;
        self.calls
            .each()
            .for_each(|mut calls| calls.set_written(is_written));
        self.set_awaited();
    }

    /// Nobody writes any more.
    pub fn end_output(&mut self) {
        self.set_written(false);
    }

    /// The same, and what was this session's may be another one's from now on: nothing is written there any more.
    pub fn leave(&mut self) {
        self.end_output();
        self.rings.leave();
        if let Some(points) = &self.points {
            points.leave();
        }
    }

    /// The same as [`Self::end_output`] where the last has gone who listened, unless another one has come.
    pub fn end_idle(&mut self) -> bool {
        if self.backlog.news.listeners.is_empty() {
            self.end_output();
        }
        !self.is_written
    }

    /// One more listens from now on. Where nothing was taken out of the rings, they are read from now on, and what is read
    /// goes to what `begin` makes of who listens.
    ///
    /// # Errors
    /// What `begin` says.
    pub fn listen<E>(
        &mut self,
        listener: Listener,
        begin: impl FnOnce(Live) -> Result<Output, E>,
    ) -> Result<(), E> {
        if !self.is_written {
            // What was written over by now is nobody's loss, whenever it was looked at last.
            self.look();
            let output = begin(Live::after(lost_before(&self.calls, self.points.as_ref())))?;
            if let Some(encoding) = output.encodes() {
                self.encode(&encoding);
            }
            self.output = Some(Box::new(output));
            if let Some(points) = &mut self.points {
                points.tell_again();
            }
            self.set_written(true);
        }
        self.backlog.news.listeners.push(listener);
        Ok(())
    }

    /// Records that were reserved so far, events too, in all rings.
    #[must_use]
    pub fn records(&self) -> u64 {
        let (rings, events) = (self.status(), self.event_status());
        let written = rings.iter().chain(&events).map(|ring| ring.written);
        written.fold(0, u64::saturating_add)
    }

    /// What copies what the rings hold.
    pub fn dumping(&mut self) -> Dumping<'_> {
        Dumping { drain: self }
    }

    /// How long a round waits for a slot that is reserved, while the guest runs.
    #[must_use]
    pub fn patience(&self) -> Patience {
        Patience::Ticks(self.time.run.ticks(PATIENCE_NS))
    }

    /// The looks at all its rings.
    #[must_use]
    pub fn looks(&self) -> AllLooks {
        self.looks.clone()
    }

    /// A round out of turn, so that the counts are those of now: unless too much has been read already that nobody
    /// has written.
    pub fn refresh(&mut self) {
        let patience = self.patience();
        let waits_much = |of: &Self| of.calls.waiting() + of.backlog.weight() >= RECORDS_MAX;
        for ring in 0..self.rings.count() {
            if waits_much(self) {
                return;
            }
            if let Some(at) = self.calls.read(ring, patience) {
                self.has_read(ring, at);
            }
        }
        while !waits_much(self) && self.read_rest(patience).is_left {}
    }

    /// The counts of each event ring; none before the first event.
    #[must_use]
    pub fn event_status(&self) -> Vec<RingStatus> {
        let points = self.points.as_ref();
        points.map_or_else(Vec::new, |points| points.status(self.is_written))
    }

    /// The counts of each ring.
    #[must_use]
    pub fn status(&self) -> Vec<RingStatus> {
        self.calls
            .each()
            .map(|calls| self.ring_status(&calls.source.reader))
            .collect()
    }

    fn ring_status(&self, reader: &RingReader) -> RingStatus {
        let losses = reader.losses();
        let (discarded, overwritten) = self.missing(reader);
        RingStatus {
            ring: reader.ring(),
            written: reader.reserved(),
            read: reader.delivered(),
            discarded,
            overwritten,
            abandoned: losses.abandoned,
            invalid: losses.invalid,
            corrupt: losses.corrupt,
            ..RingStatus::default()
        }
        .summed()
    }

    /// Records of a ring that were discarded and overwritten.
    fn missing(&self, reader: &RingReader) -> (u64, u64) {
        if self.is_written {
            let losses = reader.losses();
            return (losses.discarded, losses.overwritten);
        }
        // Nothing is taken out: what the ring does not hold any more has been written over.
        (discarded(reader, &self.rings), reader.overwritten())
    }

    /// Records that were read and whose times may be wrong.
    #[must_use]
    pub fn doubts(&self) -> TimeDoubts {
        let mut doubts = TimeDoubts::default();
        for calls in self.calls.each() {
            doubts.add_all(&calls.source.doubts());
            let is_unchecked = self.is_over && calls.source.is_unchecked();
            doubts.add(TimeDoubt::Unchecked, is_unchecked.into());
        }
        if let Some(points) = &self.points {
            points.add_doubts(&mut doubts);
        }
        let stalls = self.stalls.as_ref().map_or(0, StallDrain::forgotten);
        doubts.add(TimeDoubt::Stalled, stalls);
        doubts
    }

    /// Whether records are taken out, for an output.
    #[must_use]
    pub const fn is_written(&self) -> bool {
        self.is_written
    }

    /// What the trace says of itself has changed.
    pub fn describe(&mut self, metadata: Metadata) {
        self.backlog.news.metadata = Some(metadata);
    }
}

/// Whether a ring that is to be recorded is not, or one is that is not to be.
fn changes(drain: &Drain) -> bool {
    let mut each = drain.calls.each();
    each.any(|calls| {
        let reader = &calls.source.reader;
        drain.only.has(reader.ring()) != is_recording(reader, &drain.rings)
    })
}

/// Nothing was recorded for some time up to now, and something is about to be: says so after all that was before that, and before
/// the first that comes on any vCPU. Else a call would be taken for one that was open when recording ended.
fn say_gap(drain: &mut Drain) {
    drain.look();
    let is_drained = |reader: &RingReader| reader.is_drained_to(reader.head());
    if drain.is_written && !drain.calls.all(is_drained) {
        drain.refresh();
    }
    let Some(mut first) = drain.calls.each().next() else {
        return;
    };
    // Who was in a stub may have reserved a slot since.
    first.look();
    let until = drain.time.rings.least();
    if drain.is_written {
        first.note_gap(drain.time.run.nanoseconds(until));
    }
    drain.off_times.add(OffTime {
        head: first.source.reader.head(),
        until,
    });
}

/// What is written over by now, of which nobody was told.
fn lost_before(calls: &CallRings, points: Option<&EventDrain>) -> LostBefore {
    let unread = |reader: &RingReader| {
        let told = reader.losses().overwritten;
        (reader.ring(), reader.overwritten().saturating_sub(told))
    };
    let points = points.into_iter().flat_map(EventDrain::readers);
    LostBefore {
        calls: calls
            .each()
            .map(|calls| unread(&calls.source.reader))
            .collect(),
        points: points.map(unread).collect(),
    }
}
