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

use super::retired::{Place, Retired};
use super::{AttachError, Foothold};
use crate::record::{MARK_MASK, RECORD_BYTES};
use crate::ring::geometry::Position;
use crate::ring::turnstile::Rings;
use crate::session::{SessionConfig, SessionEvents, SessionId, TracerKind};
use crate::stub::recorder::Recorder;
use crate::target::WindowMemory;

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

/// Bytes that the rings of such a session take; none for a profile, which has no rings.
fn bytes_for(config: &SessionConfig, rings: usize) -> u64 {
    let words = if config.format().has_details() { 2 } else { 1 };
    match config.tracer {
        TracerKind::Profile => u64::MAX,
        TracerKind::Function | TracerKind::Graph => words * rings as u64 * config.geometry.bytes(),
    }
}

impl Foothold {
    /// Event rings of a session of the same number that was deleted, for one as `config` says.
    pub(super) fn reuse_event_rings(
        &self,
        id: SessionId,
        config: &SessionConfig,
        mut events: SessionEvents,
    ) -> SessionEvents {
        let recorder = &mut events.recorder.recorder;
        recorder.clock = config.clock;
        recorder.waits = self.waits_of(id, config, Rings::Events);
        events
    }

    /// The rings at `old`, made those of a session as `config` says.
    pub(super) fn refit(
        &self,
        target: &mut (impl WindowMemory + ?Sized),
        old: Place,
        config: &SessionConfig,
    ) -> Result<Place, AttachError> {
        let Some(recorder) = old.recorder else {
            return Ok(old);
        };
        let (format, geometry) = (config.format(), config.geometry);
        let rings = self.strategy.rings();
        let lap = first_lap(&old, geometry.slots());
        let before = (lap - 1) & MARK_MASK;
        fill(target, &old, bytes_for(config, rings), before).map_err(|source| {
            AttachError::Rings {
                name: config.name.clone(),
                source,
            }
        })?;
        let details = format
            .has_details()
            .then(|| rings as u64 * geometry.bytes());
        let mut memory = old.memory;
        memory.format = format;
        memory.geometry = geometry;
        memory.details = details.map(|offset| memory.rings.wrapping_add(offset));
        memory.directory = self.directory(format);
        memory.first = vec![Position(lap * geometry.slots()); rings];
        let recorder = Recorder {
            format,
            geometry,
            details: details.map(|offset| recorder.rings.wrapping_add(offset)),
            ..recorder
        };
        Ok(Place {
            memory,
            recorder: Some(recorder),
            ..old
        })
    }
}

/// Takes event rings out whose records have room as `is_wanted` says of its logarithm.
pub(super) fn take(
    retired: &mut Vec<SessionEvents>,
    is_wanted: impl Fn(u32) -> bool,
) -> Option<SessionEvents> {
    let is_it = |events: &SessionEvents| is_wanted(events.recorder.payload_log2);
    let index = retired.iter().position(is_it)?;
    Some(retired.swap_remove(index))
}

/// A lap past all that late writers can have reserved, for rings of `slots`.
fn first_lap(old: &Place, slots: u64) -> u64 {
    let was = old.memory.geometry.slots();
    let last = old.memory.first.iter().map(|first| first.0 / was).max();
    let lap = last.unwrap_or_default() + 1;
    if lap.saturating_mul(slots) < REUSE_MAX.0 / 2 {
        return lap;
    }
    // As far past as marks can tell.
    let laps = MARK_MASK + 1;
    laps + lap % laps
}

/// Writes records of the lap `mark` all over the first `bytes`.
fn fill(
    target: &mut (impl WindowMemory + ?Sized),
    place: &Place,
    bytes: u64,
    mark: u64,
) -> Result<(), crate::target::MemoryError> {
    let words = CHUNK / usize::try_from(RECORD_BYTES).unwrap_or(1);
    let chunk = mark.to_le_bytes().repeat(words);
    let mut at = place.memory.rings;
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        let part = chunk.get(..left.min(CHUNK)).unwrap_or(&chunk);
        target.write_window(at, part)?;
        at = at.wrapping_add(part.len() as u64);
        left -= part.len();
    }
    Ok(())
}
