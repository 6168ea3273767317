//! The memory of sessions in the window: rings, event rings, counters.

use terms::addr::{Gpa, Gva};

use super::retired::Allotment;
use super::{AttachError, Foothold};
use crate::paging::PageUse;
use crate::record::{Format, RECORD_BYTES};
use crate::ring::geometry::{Geometry, RING_BYTES_LOG2};
use crate::ring::turnstile::{Rings, WaitAt};
use crate::session::{SessionConfig, SessionEvents, SessionId, SessionMemory};
use crate::stub::cell::{CELL_BYTES, Cells, CpuStrategy, EVENT_CELL};
use crate::stub::event::{EventRecorder, PAYLOAD_LOG2_MIN};
use crate::stub::halt::Halts;
use crate::stub::mirror::Mirror;
use crate::stub::profile::{Profile, TableLayout};
use crate::stub::recorder::Recorder;
use crate::target::StoppedTarget;
use crate::window::WindowError;

/// Bytes of the event ring of one vCPU, payloads included, at most.
const EVENT_RING_MAX: u64 = 32 << 20;
/// Functions for which a profile has room are a multiple of this.
const PROFILE_ROOM: usize = 4096;
/// Bytes that the payload of one record can have, at most.
pub const PAYLOAD_BYTES_MAX: u64 = 1 << 16;
/// Bytes that the payload of a record has room for in a session that is given probes, if nothing else is asked for.
pub const PAYLOAD_BYTES_OF_PROBES: u64 = 256;

impl Foothold {
    /// Rings that nobody has used yet, for the cells of session number `id`.
    pub(super) fn make_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
    ) -> Result<Allotment, AttachError> {
        let cells = self.strategy.cells(self.cells.at, id.0);
        let geometry = config.geometry;
        let bytes = geometry.bytes() * self.strategy.rings() as u64;
        let format = config.format();
        let has_details = format.has_details();
        let words = if has_details { 2 } else { 1 };
        let rings = self.window.map(target, words * bytes, PageUse::Data)?;
        let memory = SessionMemory {
            cells: self.physical_cells(&cells),
            rings: rings.physical,
            format,
            details: has_details.then(|| rings.physical.wrapping_add(bytes)),
            directory: self.directory(format),
            room: rings.bytes,
            geometry,
            first: vec![geometry.first(); self.strategy.rings()],
            halts_left: None,
            awaited: None,
        };
        let recorder = Recorder {
            cell: cells.place,
            rings: rings.at,
            format,
            details: has_details.then(|| rings.at.wrapping_add(bytes)),
            geometry,
            clock: config.clock,
            halts: Halts::default(),
            waits: self.waits_of(id, config, Rings::Calls),
            tasks: None,
        };
        Ok(Allotment {
            memory,
            recorder: Some(recorder),
            profile: None,
        })
    }

    /// Where the stubs of such a session wait that find a ring full, if they are to.
    pub(super) fn waits_of(
        &self,
        id: SessionId,
        config: &SessionConfig,
        rings: Rings,
    ) -> Option<WaitAt> {
        let turnstile = self.turnstile.filter(|_| config.waits)?;
        Some(turnstile.of(id.0, rings))
    }

    /// Where the pages of stack are listed whose slots records of this format have only a part of.
    pub(super) fn directory(&self, format: Format) -> Option<(Gpa, u64)> {
        let (bytes, _) = Mirror::bytes(self.mirror?.pages_log2);
        let at = self.mirror_physical?;
        (format == Format::GraphUntimed).then_some((at, bytes))
    }

    /// Where the host finds a session's cells.
    pub(super) fn physical_cells(&self, cells: &Cells) -> Vec<Gpa> {
        let physical = self.cells.physical;
        let offsets = cells.offsets.iter();
        offsets
            .map(|offset| physical.wrapping_add(*offset))
            .collect()
    }

    /// Counters that nobody has used yet, and the pages beside the mirror's for entry times.
    pub(super) fn make_counters(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
        functions: usize,
    ) -> Result<Allotment, AttachError> {
        let too_large = || AttachError::ProfileTooLarge {
            name: config.name.clone(),
            functions,
        };
        if matches!(self.strategy, CpuStrategy::First { .. }) {
            let name = config.name.clone();
            return Err(AttachError::ProfileTooEarly { name });
        }
        // Modules bring more.
        let room = functions.next_multiple_of(PROFILE_ROOM);
        let count = u32::try_from(room).map_err(|_| too_large())?;
        let layout = TableLayout::new(count, &self.strategy).ok_or_else(too_large)?;
        let mirror = self.mirror.ok_or(WindowError::NoVcpu)?;
        let (_, beside) = Mirror::bytes(mirror.pages_log2);
        let table = self.window.map(target, layout.bytes(), PageUse::Data)?;
        let pages = self.window.map(target, 2 * beside, PageUse::Data)?;
        let cells = self.strategy.cells(self.cells.at, id.0);
        let first_cell = self.cells.at.wrapping_add(u64::from(id.0) * CELL_BYTES);
        let distance = |from: Gva, to: Gva| {
            i32::try_from(to.0.wrapping_sub(from.0).cast_signed()).map_err(|_| too_large())
        };
        let profile = Profile {
            cell: cells.place,
            table: distance(first_cell, table.at)?,
            layout,
            entered: distance(mirror.pages, pages.at)?,
            saved: distance(mirror.pages, pages.at.wrapping_add(beside))?,
            clock: config.clock,
            tasks: None,
        };
        let memory = SessionMemory {
            cells: self.physical_cells(&cells),
            rings: table.physical,
            format: Format::default(),
            details: None,
            directory: None,
            room: table.bytes,
            geometry: config.geometry,
            first: Vec::new(),
            halts_left: None,
            awaited: None,
        };
        Ok(Allotment {
            memory,
            recorder: None,
            profile: Some(profile),
        })
    }

    /// Event rings that nobody has used yet, with room for `payload_bytes` beside each slot.
    pub(super) fn make_event_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
        payload_bytes: u64,
    ) -> Result<SessionEvents, AttachError> {
        let cells = self.strategy.cells(self.cells.at, id.0);
        let payload_log2 = payload_log2(payload_bytes);
        // Probes say much in few records: they may have an eighth of what is left.
        let rings = self.strategy.rings() as u64;
        let share = match 1 << payload_log2 >= PAYLOAD_BYTES_OF_PROBES {
            true => (self.window.left() / 8 / rings).min(EVENT_RING_MAX),
            false => 0,
        };
        let geometry = event_geometry(config.geometry, share, payload_log2);
        let records = geometry.bytes() * self.strategy.rings() as u64;
        let payloads = (records / RECORD_BYTES) << payload_log2;
        let rings = self.window.map(target, records + payloads, PageUse::Data)?;
        let place = |offset: &u64| {
            let cell: Gpa = self.cells.physical.wrapping_add(*offset);
            cell.wrapping_add(EVENT_CELL)
        };
        let memory = SessionMemory {
            cells: cells.offsets.iter().map(place).collect(),
            rings: rings.physical,
            format: Format::Calls,
            details: None,
            directory: None,
            room: rings.bytes,
            geometry,
            first: vec![geometry.first(); self.strategy.rings()],
            halts_left: None,
            awaited: None,
        };
        let recorder = Recorder {
            cell: cells.place.events(),
            rings: rings.at,
            format: Format::Calls,
            details: None,
            geometry,
            clock: config.clock,
            halts: Halts::default(),
            waits: self.waits_of(id, config, Rings::Events),
            tasks: None,
        };
        let recorder = EventRecorder {
            recorder,
            payload: rings.at.wrapping_add(records),
            payload_log2,
        };
        Ok(SessionEvents {
            memory,
            recorder,
            payload: rings.physical.wrapping_add(records),
        })
    }
}

/// The room beside each slot for payloads of so many bytes, as a power of two.
pub(super) fn payload_log2(bytes: u64) -> u32 {
    let bytes = bytes.min(PAYLOAD_BYTES_MAX).next_power_of_two();
    bytes.ilog2().max(PAYLOAD_LOG2_MIN)
}

/// Rings that take no more memory with their payloads than the session's others, twice over because a payload is
/// rounded up to a power of two, or `share`, as far as a ring can be so small.
fn event_geometry(rings: Geometry, share: u64, payload_log2: u32) -> Geometry {
    let of_slot = RECORD_BYTES + (1 << payload_log2);
    let slots = (2 * rings.bytes()).min(EVENT_RING_MAX).max(share) / of_slot;
    let log2 = (slots * RECORD_BYTES)
        .max(1)
        .ilog2()
        .max(*RING_BYTES_LOG2.start());
    Geometry::with_bytes(1 << log2).unwrap_or(rings)
}
