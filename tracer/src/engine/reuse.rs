//! Rings of deleted sessions, for new ones of another kind or size.
//!
//! Memory is not given back to the window: nobody can tell that no preempted thread is left that is about to
//! write there. It stays with the cell whose stubs write to it, and only a session on that cell gets it, so
//! whatever a late writer does it does to the session that it takes its slot from. What it writes is told by
//! the lap mark: the new rings begin after the last lap of the old ones, and hold nothing but the lap
//! before. (A writer that had not reserved yet marks by the old size what it reserves in the new ring, which
//! stays unwritten and counts as *abandoned*. Its stray word would have to hit the mark of another slot by
//! chance to be taken for a record.)
//!
//! That last chance is why memory nobody has used comes first, until half of the window is in use. From then
//! on sessions that come and go need no more than there have been at once.
//!
//! Event rings stay with their number for the same reason. Their records never leave the place of records, nor
//! payloads that of payloads, so that what a late writer has captured reaches no record: records that need more room are fewer.

use super::retired::{Allotment, Retired};
use super::rings::payload_log2;
use super::{AttachError, Foothold};
use terms::addr::Gpa;

use crate::record::{MARK_MASK, RECORD_BYTES};
use crate::ring::geometry::{Geometry, Position};
use crate::ring::turnstile::Rings;
use crate::session::{SessionConfig, SessionEvents, SessionId, SessionMemory, TracerKind};
use crate::stub::event::EventRecorder;
use crate::stub::recorder::Recorder;
use crate::target::{MemoryError, StoppedTarget, WindowMemory};

/// No ring reaches this: such a one is not used again, so that positions never reach their end.
pub(super) const REUSE_MAX: Position = Position(1 << 48);
/// Bytes written at a time.
const CHUNK: usize = 1 << 16;

/// The smallest rings of a deleted session that have room for one as `config` says, on a cell that is free.
pub(super) fn roomy(
    retired: &[Retired],
    is_free: impl Fn(SessionId) -> bool,
    foothold: &Foothold,
    config: &SessionConfig,
) -> Option<(SessionId, usize)> {
    let needed = bytes_for(config, foothold.strategy.rings());
    let fits = |one: &Retired| {
        let room = one.rings().map(|memory| memory.room);
        room.filter(|room| *room >= needed && is_free(one.id))
    };
    let all = retired.iter().enumerate();
    let fitting = all.filter_map(|(index, one)| Some((fits(one)?, one.id, index)));
    let (_, id, index) = fitting.min_by_key(|(room, ..)| *room)?;
    Some((id, index))
}

/// Whether new memory for such a session would come from the second half of the window.
pub(super) fn is_scarce(foothold: &Foothold, config: &SessionConfig) -> bool {
    let needed = bytes_for(config, foothold.strategy.rings());
    foothold.window.left() < foothold.window.bytes() / 2 + needed
}

/// Whether half of the window is in use.
fn is_half_used(foothold: &Foothold) -> bool {
    foothold.window.left() < foothold.window.bytes() / 2
}

/// Bytes that the rings of such a session take; none for a profile, which has no rings.
fn bytes_for(config: &SessionConfig, rings: usize) -> u64 {
    let words = if config.format().has_details() { 2 } else { 1 };
    match config.tracer {
        TracerKind::Profile => u64::MAX,
        TracerKind::Function | TracerKind::Graph => words * rings as u64 * config.geometry.bytes(),
    }
}

impl Foothold {
    /// Event rings for a session as `config` says, in which a record has room for this many bytes: some of `retired`, those of
    /// deleted sessions of the same number, or new ones.
    ///
    /// # Errors
    /// [`AttachError`] when there is no memory for either.
    pub(super) fn event_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
        payload_bytes: u64,
        retired: &mut Vec<SessionEvents>,
    ) -> Result<SessionEvents, AttachError> {
        let log2 = payload_log2(payload_bytes);
        let is_same = |events: &SessionEvents| events.recorder.payload_log2 == log2;
        let mut events = if let Some(index) = retired.iter().position(is_same) {
            retired.swap_remove(index)
        } else if is_half_used(self)
            && let Some(refitted) = self.refit_some(target, config, log2, retired)?
        {
            refitted
        } else {
            match self.make_event_rings(target, id, config, payload_bytes) {
                Ok(made) => return Ok(made),
                Err(error) => self
                    .refit_some(target, config, log2, retired)?
                    .ok_or(error)?,
            }
        };
        let recorder = &mut events.recorder.recorder;
        recorder.clock = config.clock;
        recorder.waits = self.waits_of(id, config, Rings::Events);
        Ok(events)
    }

    /// Those of `retired` that hold the most such records, made to hold them. None when none of them can.
    fn refit_some(
        &self,
        target: &mut (impl WindowMemory + ?Sized),
        config: &SessionConfig,
        payload_log2: u32,
        retired: &mut Vec<SessionEvents>,
    ) -> Result<Option<SessionEvents>, AttachError> {
        let all = retired.iter().enumerate();
        let fitting = all.filter_map(|(index, one)| Some((one.geometry(payload_log2)?, index)));
        let Some((geometry, index)) = fitting.max_by_key(|(geometry, _)| geometry.slots()) else {
            return Ok(None);
        };
        let Some(one) = retired.get_mut(index) else {
            return Ok(None);
        };
        let rings = one.memory.first.len();
        let bytes = rings as u64 * geometry.bytes();
        let lap = begin_after(target, &mut one.memory, geometry, bytes);
        let lap = lap.map_err(|source| AttachError::Rings {
            name: config.name.clone(),
            source,
        })?;
        let old = retired.swap_remove(index);
        let (memory, recorder) = (old.memory, old.recorder);
        Ok(Some(SessionEvents {
            memory: SessionMemory {
                geometry,
                first: vec![Position(lap * geometry.slots()); rings],
                ..memory
            },
            recorder: EventRecorder {
                recorder: Recorder {
                    geometry,
                    ..recorder.recorder
                },
                payload_log2,
                ..recorder
            },
            ..old
        }))
    }

    /// Makes the rings at `place` those of a session as `config` says.
    ///
    /// # Errors
    /// [`AttachError::Rings`]; then they are those that they were, and it can be tried again.
    pub(super) fn refit(
        &self,
        target: &mut (impl WindowMemory + ?Sized),
        place: &mut Allotment,
        config: &SessionConfig,
    ) -> Result<(), AttachError> {
        let Some(recorder) = &mut place.recorder else {
            return Ok(());
        };
        let (format, geometry) = (config.format(), config.geometry);
        let (rings, memory) = (self.strategy.rings(), &mut place.memory);
        let lap = begin_after(target, memory, geometry, bytes_for(config, rings));
        let lap = lap.map_err(|source| AttachError::Rings {
            name: config.name.clone(),
            source,
        })?;
        let details = format
            .has_details()
            .then(|| rings as u64 * geometry.bytes());
        memory.format = format;
        memory.geometry = geometry;
        memory.details = details.map(|offset| memory.rings.wrapping_add(offset));
        memory.directory = self.directory(format);
        memory.first = vec![Position(lap * geometry.slots()); rings];
        recorder.format = format;
        recorder.geometry = geometry;
        recorder.details = details.map(|offset| recorder.rings.wrapping_add(offset));
        Ok(())
    }
}

impl SessionEvents {
    /// The size of its rings if a record has room for so many bytes. None if they cannot be so small.
    fn geometry(&self, payload_log2: u32) -> Option<Geometry> {
        let records = self.payload.0.checked_sub(self.memory.rings.0)?;
        let payloads = self.memory.room.checked_sub(records)?;
        let slots = (records / RECORD_BYTES).min(payloads >> payload_log2);
        let of_ring = slots / self.memory.first.len().max(1) as u64;
        let log2 = of_ring.checked_ilog2()?;
        Geometry::with_bytes(RECORD_BYTES << log2).ok()
    }
}

/// A lap past all that late writers can have reserved, for rings of `slots`.
fn first_lap(old: &SessionMemory, slots: u64) -> u64 {
    let was = old.geometry.slots();
    let last = old.first.iter().map(|first| first.0 / was).max();
    let lap = last.unwrap_or_default() + 1;
    if lap.saturating_mul(slots) < REUSE_MAX.0 / 2 {
        return lap;
    }
    // As far past as marks can tell.
    let laps = MARK_MASK + 1;
    laps + lap % laps
}

/// Readies the first `bytes` of `memory` for rings of this size, with records of the lap before theirs. Returns their first lap.
///
/// # Errors
/// Why it could not be written. What was written by then is of the lap with which the rings begin that are there: they begin
/// a lap later from now on.
fn begin_after(
    target: &mut (impl WindowMemory + ?Sized),
    memory: &mut SessionMemory,
    size: Geometry,
    bytes: u64,
) -> Result<u64, MemoryError> {
    let lap = first_lap(memory, size.slots());
    let filled = fill(target, memory.rings, bytes, (lap - 1) & MARK_MASK);
    if filled.is_err() {
        let slots = memory.geometry.slots();
        let next = Position(first_lap(memory, slots) * slots);
        memory.first.fill(next);
    }
    filled.map(|()| lap)
}

/// Writes records of the lap `mark` all over the first `bytes` of rings.
fn fill(
    target: &mut (impl WindowMemory + ?Sized),
    rings: Gpa,
    bytes: u64,
    mark: u64,
) -> Result<(), MemoryError> {
    let words = CHUNK / usize::try_from(RECORD_BYTES).unwrap_or(1);
    let chunk = mark.to_le_bytes().repeat(words);
    let mut at = rings;
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        let part = chunk.get(..left.min(CHUNK)).unwrap_or(&chunk);
        target.write_window(at, part)?;
        at = at.wrapping_add(part.len() as u64);
        left -= part.len();
    }
    Ok(())
}
