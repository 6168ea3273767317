//! The sessions of an engine: how they come and go, and what becomes of their memory.
//!
//! A thread can be preempted inside a stub for as long as it likes, and a hooked function can return
//! through one long after its session was deleted. So the memory that a stub writes to is never given
//! to anything that such a *late writer* could damage:
//!
//! * The cells of a deleted session get the limit *off*: a writer that has not compared yet goes away
//!   without a trace.
//! * Its rings stay with its cell, as [`Retired`]. Only a new session of the same tracer kind, record
//!   format and ring size on the same cell gets them again. It begins a whole lap behind the last head, so
//!   whatever a late writer had reserved lies before the reader's first position and is ignored.
//! * When the window is half used, a session of another kind or size gets them ([`super::reuse`]).
//! * When every free cell was used for sessions of other kinds or sizes, the new session gets a used
//!   cell and rings of its own. A late writer of the earlier session can then reserve a slot
//!   that it does not fill, for it writes to the old rings: that slot is counted as *abandoned*.
//! * A late *exit* of a deleted graph session that gets through to a new one on the same cell has no entry
//!   there: the reconstruction counts it as a stray.
//!
//! Stubs are found again by what they do, so sessions that come and go do not use the arena up.

use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;

use super::reuse::REUSE_MAX;
use super::{ApplyError, AttachError, Engine, Ground};
use crate::filter::{Filter, Selection};
use crate::paging::PageUse;
use crate::patch::events::Callback;
use crate::record::Format;
use crate::ring::geometry::{Geometry, Position};
use crate::session::{
    CallMoments, Session, SessionConfig, SessionEvents, SessionId, SessionMemory, TracerKind,
};
use crate::stub::cell::{CELL_BYTES, Cells, HEAD, LIMIT, SESSIONS_MAX};
use crate::stub::mirror::Mirror;
use crate::stub::profile::{Profile, TableLayout};
use crate::stub::recorder::Recorder;
use crate::target::{MemoryError, StoppedTarget, WindowMemory};
use crate::window::WindowError;

/// The memory of a deleted session.
#[derive(Debug)]
pub(super) struct Retired {
    pub(super) id: SessionId,
    tracer: TracerKind,
    format: Format,
    /// None when the guest has written to its cells: then its rings are never used again.
    place: Option<Place>,
}

/// What a session has in the guest.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) memory: SessionMemory,
    pub(super) recorder: Option<Recorder>,
    pub(super) profile: Option<Profile>,
    pub(super) events: Option<SessionEvents>,
}

impl Retired {
    /// Its memory, if that is rings.
    pub(super) fn rings(&self) -> Option<&SessionMemory> {
        let place = self.place.as_ref()?;
        place.recorder.map(|_| &place.memory)
    }

    fn suits(&self, config: &SessionConfig) -> bool {
        let is_of =
            |place: &Place| place.recorder.is_none() || place.memory.geometry == config.geometry;
        (self.tracer, self.format) == (config.tracer, config.format())
            && self.place.as_ref().is_some_and(is_of)
    }
}

impl Engine {
    /// Makes a session that traces nothing yet. Its rings are in the guest; a reader has to set their
    /// cells.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn create_session(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        config: SessionConfig,
    ) -> Result<SessionId, AttachError> {
        if self.session_named(&config.name).is_some() {
            return Err(AttachError::NameTaken { name: config.name });
        }
        let Some((mut id, mut reused)) = self.free_session(&config) else {
            return Err(AttachError::TooManySessions { name: config.name });
        };
        let ground = self.ground.as_mut().ok_or(WindowError::NoVcpu)?;
        if config.tracer.hooks_returns() {
            ground.make_mirror(target)?;
        }
        let made = match reused {
            Some(_) => None,
            None if config.tracer == TracerKind::Profile => {
                Some(ground.make_counters(target, id, &config, self.image.functions.len())?)
            }
            None => match ground.make_rings(target, id, &config) {
                Ok(place) => Some(place),
                Err(error) => match self.roomy(&config) {
                    Some((roomy, index)) => {
                        (id, reused) = (roomy, Some(index));
                        None
                    }
                    None => return Err(error),
                },
            },
        };
        let place = match (made, reused) {
            (Some(place), _) => place,
            (None, index) => self.take_retired(target, index, &config)?,
        };
        if let Some(profile) = &place.profile {
            let zeros = vec![0; usize::try_from(profile.layout.bytes()).unwrap_or_default()];
            let zeroed = target.write_window(place.memory.rings, &zeros);
            zeroed.map_err(|source| AttachError::Counters {
                name: config.name.clone(),
                source,
            })?;
        }
        let clock = config.clock;
        let session = Session {
            memory: place.memory,
            recorder: place
                .recorder
                .map(|recorder| Recorder { clock, ..recorder }),
            profile: place.profile.map(|profile| Profile { clock, ..profile }),
            events: place.events.map(|mut events| {
                events.recorder.recorder.clock = clock;
                events
            }),
            filter: Filter::default(),
            selection: Selection::default(),
            captures: CallMoments::default(),
            config,
        };
        let index = usize::from(id.0);
        if self.sessions.len() <= index {
            self.sessions.resize_with(index + 1, || None);
        }
        if let Some(slot) = self.sessions.get_mut(index) {
            *slot = Some(session);
        }
        Ok(id)
    }

    /// The memory of a deleted session, as `config` wants it.
    fn take_retired(
        &mut self,
        target: &mut (impl WindowMemory + ?Sized),
        index: Option<usize>,
        config: &SessionConfig,
    ) -> Result<Place, AttachError> {
        let ground = self.ground.as_ref().ok_or(WindowError::NoVcpu)?;
        let index = index.filter(|index| *index < self.retired.len());
        let retired = index.map(|index| self.retired.swap_remove(index));
        let suits = retired.as_ref().is_some_and(|one| one.suits(config));
        let place = retired
            .and_then(|one| one.place)
            .ok_or(WindowError::NoVcpu)?;
        if suits {
            return Ok(place);
        }
        ground.refit(target, place, config)
    }

    /// The number for a new session, and which retired memory it gets: one whose memory suits it, else one
    /// whose rings have room when there is not much else, else one that was never used, else any
    /// that is free.
    fn free_session(&self, config: &SessionConfig) -> Option<(SessionId, Option<usize>)> {
        let numbers = u8::try_from(SESSIONS_MAX).unwrap_or(u8::MAX);
        let free = || {
            (0..numbers)
                .map(SessionId)
                .filter(|id| self.session(*id).is_err())
        };
        let suits = |one: &Retired| one.suits(config) && self.session(one.id).is_err();
        let suiting = self.retired.iter().position(suits);
        let suiting = suiting.and_then(|index| Some((self.retired.get(index)?.id, Some(index))));
        let roomy = || self.roomy(config).filter(|_| self.is_scarce(config));
        let is_new = |id: &SessionId| self.retired.iter().all(|one| one.id != *id);
        // What a profile keeps beside the mirror is worth more than any rings.
        let of = |id: SessionId| self.retired.iter().filter(move |one| one.id == id);
        let has_rings_only = |id: &SessionId| of(*id).all(|one| one.rings().is_some());
        suiting
            .or_else(|| roomy().map(|(id, index)| (id, Some(index))))
            .or_else(|| free().find(is_new).map(|id| (id, None)))
            .or_else(|| free().find(has_rings_only).map(|id| (id, None)))
            .or_else(|| free().next().map(|id| (id, None)))
    }

    /// Deletes a session that traces nothing any more: switches its cells off and keeps its memory
    /// from everything that a late writer could damage. Nobody may read its rings any more.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`], [`ApplyError::StillTracing`], or [`ApplyError::Cells`]; then the
    /// session is still there.
    pub fn delete_session(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        id: SessionId,
    ) -> Result<(), ApplyError> {
        let session = self.session(id)?;
        let functions = self.traced_by(id);
        let name = || session.config.name.clone();
        let tracepoints = self.tracepoints.of(Callback::Session(id.0)).count();
        let probes = self.probes_of(id).count();
        let events = tracepoints + self.markers.of(id.0).count() + probes;
        if functions + events > 0 {
            return Err(ApplyError::StillTracing {
                name: name(),
                functions,
                events,
            });
        }
        let heads = switch_off(memory, &session.memory).map_err(|source| ApplyError::Cells {
            name: name(),
            source,
        })?;
        let event_heads = session.events.as_ref().map_or(Ok(Vec::new()), |events| {
            switch_off(memory, &events.memory).map_err(|source| ApplyError::Cells {
                name: name(),
                source,
            })
        })?;
        let Some(session) = self
            .sessions
            .get_mut(usize::from(id.0))
            .and_then(Option::take)
        else {
            return Err(ApplyError::NoSession(id.0));
        };
        // Counters have no heads.
        let heads = if session.profile.is_some() {
            Vec::new()
        } else {
            heads
        };
        let first = behind(session.memory.geometry, heads);
        let mut events = session.events;
        if let Some(rings) = &mut events {
            match behind(rings.memory.geometry, event_heads) {
                Some(first) => rings.memory.first = first,
                None => events = None,
            }
        }
        let place = first.map(|first| {
            let memory = SessionMemory {
                first,
                ..session.memory
            };
            Place {
                memory,
                recorder: session.recorder,
                profile: session.profile,
                events,
            }
        });
        self.retired.push(Retired {
            id,
            tracer: session.config.tracer,
            format: session.config.format(),
            place,
        });
        Ok(())
    }

    /// A session.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub fn session(&self, id: SessionId) -> Result<&Session, ApplyError> {
        let slot = self.sessions.get(usize::from(id.0));
        slot.and_then(Option::as_ref)
            .ok_or(ApplyError::NoSession(id.0))
    }

    /// The session of that name.
    #[must_use]
    pub fn session_named(&self, name: &str) -> Option<SessionId> {
        let is_named = |slot: &Option<Session>| {
            slot.as_ref()
                .is_some_and(|session| session.config.name == name)
        };
        let index = self.sessions.iter().position(is_named)?;
        u8::try_from(index).ok().map(SessionId)
    }

    /// How many functions lead to a session.
    #[must_use]
    pub fn traced_by(&self, id: SessionId) -> usize {
        let functions = u32::try_from(self.image.functions.len()).unwrap_or(u32::MAX);
        (0..functions)
            .filter(|function| self.table.sessions(FunctionId(*function)).has(id.0))
            .count()
    }

    /// Notes what a session is asked to trace, once that has been applied.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub fn set_selection(
        &mut self,
        id: SessionId,
        filter: Filter,
        selection: Selection,
    ) -> Result<(), ApplyError> {
        let slot = self
            .sessions
            .get_mut(usize::from(id.0))
            .and_then(Option::as_mut);
        let session = slot.ok_or(ApplyError::NoSession(id.0))?;
        session.filter = filter;
        session.selection = selection;
        Ok(())
    }
}

impl Ground {
    /// Rings that nobody has used yet, for the cells of session number `id`.
    fn make_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
    ) -> Result<Place, AttachError> {
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
        };
        let recorder = Recorder {
            cell: cells.place,
            rings: rings.at,
            format,
            details: has_details.then(|| rings.at.wrapping_add(bytes)),
            geometry,
            clock: config.clock,
        };
        Ok(Place {
            memory,
            recorder: Some(recorder),
            profile: None,
            events: None,
        })
    }

    /// Where the pages of stack are listed whose slots records of this format have only a part of.
    pub(super) fn directory(&self, format: Format) -> Option<(Gpa, u64)> {
        let (bytes, _) = Mirror::bytes(self.mirror?.pages_log2);
        let at = self.mirror_physical?;
        (format == Format::GraphUntimed).then_some((at, bytes))
    }

    /// Where the host finds a session's cells.
    fn physical_cells(&self, cells: &Cells) -> Vec<Gpa> {
        let physical = self.cells.physical;
        let offsets = cells.offsets.iter();
        offsets
            .map(|offset| physical.wrapping_add(*offset))
            .collect()
    }

    /// Counters that nobody has used yet, and the pages beside the mirror's for entry times.
    fn make_counters(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        config: &SessionConfig,
        functions: usize,
    ) -> Result<Place, AttachError> {
        let too_large = || AttachError::ProfileTooLarge {
            name: config.name.clone(),
            functions,
        };
        let count = u32::try_from(functions).map_err(|_| too_large())?;
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
        };
        Ok(Place {
            memory,
            recorder: None,
            profile: Some(profile),
            events: None,
        })
    }
}

/// The first positions of rings with these heads for their next user: a lap behind all that is reserved. None
/// when a head is the guest's doing.
fn behind(geometry: Geometry, heads: Vec<u64>) -> Option<Vec<Position>> {
    let behind = |(ring, head)| {
        let head = Position::of_word(head, ring).filter(|head| *head < REUSE_MAX);
        head.map(|head| head.after(geometry.slots()))
    };
    (0u16..).zip(heads).map(behind).collect()
}

/// Keeps stubs from recording into the rings at `place`. Returns their heads.
fn switch_off(
    memory: &mut (impl WindowMemory + ?Sized),
    place: &SessionMemory,
) -> Result<Vec<u64>, MemoryError> {
    let word =
        |cell: terms::addr::Gpa, offset: i32| cell.wrapping_add(offset.unsigned_abs().into());
    let mut heads = Vec::with_capacity(place.cells.len());
    for cell in &place.cells {
        memory.write_window(word(*cell, LIMIT), &0u64.to_le_bytes())?;
        let mut head = [0; 8];
        memory.read_physical(word(*cell, HEAD), &mut head)?;
        heads.push(u64::from_le_bytes(head));
    }
    Ok(heads)
}
