//! The sessions of an engine: how they come and go, and what becomes of their memory.
//!
//! A thread can be preempted inside a stub for as long as it likes, and a hooked function can return
//! through one long after its session was deleted. So the memory that a stub writes to is never given
//! to anything that such a *late writer* could damage:
//!
//! * The cells of a deleted session get the limit *off*: a writer that has not compared yet goes away
//!   without a trace.
//! * Its rings stay with its cell, as [`Retired`]. Only a new session of the same tracer kind, record
//!   format and ring size on the same cell gets them again. It begins a whole lap past the last head, so
//!   whatever a late writer had reserved lies before the reader's first position and is ignored.
//! * Its event rings stay with its number, each for records of the room that it has: a session of the same number gets them
//!   whose records need that.
//! * When the window is half used, a session of another kind or size gets them, and one whose records need another room
//!   ([`super::reuse`]).
//! * What could not be made ready, because the window could not be written at that moment, stays as it was for the next one.
//! * When every free cell was used for sessions of other kinds or sizes, the new session gets a used
//!   cell and rings of its own. A late writer of the earlier session can then reserve a slot
//!   that it does not fill, for it writes to the old rings: that slot is counted as *abandoned*.
//! * A late *exit* of a deleted graph session that gets through to a new one on the same cell has no entry
//!   there: the reconstruction counts it as a stray.
//!
//! Stubs are found again by what they do, so sessions that come and go do not use the arena up.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use terms::addr::Gpa;
use terms::function::Function;
use terms::session_set::SessionSet;

use super::foothold::CellsMoved;
use super::retired::{Allotment, Retired};
use super::reuse::{REUSE_MAX, is_scarce, roomy};
use super::{ApplyError, AttachError, Foothold};
use crate::filter::Selection;
use crate::points::functions::{HaltSet, Recording};
use crate::ring::geometry::{Geometry, Position};
use crate::ring::turnstile::Rings;
use crate::session::{
    CallMoments, Session, SessionConfig, SessionEvents, SessionId, SessionMemory, TracerKind,
};
use crate::stub::cell::{EVENT_CELL, HEAD, LIMIT, SESSIONS_MAX};
use crate::stub::recorder::Recorder;
use crate::stub::spec::StubSpec;
use crate::stub::spec::{Hook, ReturnHook, SiteShape};
use crate::stub::task::TaskCheck;
use crate::target::{MemoryError, StoppedTarget, VcpuRegisters, WindowMemory};
use crate::window::WindowError;

/// All sessions, by their numbers, and the memory of those that there were.
#[derive(Debug, Default)]
pub struct Sessions {
    slots: Vec<Option<Session>>,
    retired: Vec<Retired>,
    /// Event rings of those that there were, by their numbers: no session has them with the rest, as the room of their
    /// records may be another one.
    retired_events: BTreeMap<SessionId, Vec<SessionEvents>>,
    anew: SessionSet,
}

impl Sessions {
    /// Makes a session that traces nothing yet. Its rings are in the guest; a reader has to set their
    /// cells. A profile counts `functions` functions.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub(super) fn create(
        &mut self,
        foothold: Option<&mut Foothold>,
        target: &mut (impl StoppedTarget + ?Sized),
        config: SessionConfig,
        functions: usize,
    ) -> Result<SessionId, AttachError> {
        if self.named(&config.name).is_some() {
            return Err(AttachError::NameTaken { name: config.name });
        }
        let foothold = foothold.ok_or(AttachError::NotAttached)?;
        check_hook(target.vcpus(), &config)?;
        let mut memory = self.memory_for(foothold, target, &config, functions)?;
        let id = memory.id;
        let fitted = memory.fit(foothold, target, &config, functions);
        let placed = fitted.and_then(|()| foothold.place_halts(target, id, &config));
        let (halts, left) = match placed {
            Ok(placed) => placed,
            Err(error) => {
                // The window takes nothing back: it is there for the next one.
                self.retired.push(memory);
                return Err(error);
            }
        };
        let place = memory.place.ok_or(WindowError::NoVcpu)?;
        let waits = foothold.waits_of(id, &config, Rings::Calls);
        let turnstile = foothold.turnstile().filter(|_| config.waits);
        let mut session = place.session(config.clone(), waits);
        session.memory.awaited = turnstile.map(|turnstile| turnstile.awaited_of(id.0));
        session.halts = halts;
        session.memory.halts_left = left;
        self.put(id, session);
        Ok(id)
    }

    /// Memory for a session as `config` says: some of a deleted session, or new one.
    fn memory_for(
        &mut self,
        foothold: &mut Foothold,
        target: &mut (impl StoppedTarget + ?Sized),
        config: &SessionConfig,
        functions: usize,
    ) -> Result<Retired, AttachError> {
        let Some((id, reused)) = self.free(foothold, config, functions) else {
            let name = config.name.clone();
            return Err(AttachError::TooManySessions { name });
        };
        if config.tracer.hooks_returns() {
            foothold.make_mirror(target)?;
        }
        if config.waits {
            foothold.make_turnstile(target)?;
        }
        let index = match reused {
            Some(index) => index,
            None => {
                let made = match config.tracer {
                    TracerKind::Profile => foothold.make_counters(target, id, config, functions),
                    TracerKind::Function | TracerKind::Graph => {
                        foothold.make_rings(target, id, config)
                    }
                };
                match made {
                    Ok(place) => return Ok(Retired::unused(id, config, place)),
                    Err(error) => self.roomy(foothold, config).ok_or(error)?.1,
                }
            }
        };
        Ok(self.take_retired(index).ok_or(WindowError::NoVcpu)?)
    }

    fn put(&mut self, id: SessionId, session: Session) {
        let index = usize::from(id.0);
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(session);
        }
    }

    /// The smallest rings of a deleted session that have room for one as `config` says, on a cell that is free.
    fn roomy(&self, foothold: &Foothold, config: &SessionConfig) -> Option<(SessionId, usize)> {
        let is_free = |id| self.get(id).is_err();
        roomy(&self.retired, is_free, foothold, config)
    }

    /// The memory of a deleted session.
    fn take_retired(&mut self, index: usize) -> Option<Retired> {
        let is_there = index < self.retired.len();
        is_there.then(|| self.retired.swap_remove(index))
    }

    /// The number for a new session, and which retired memory it gets: one whose memory suits it, else one
    /// whose rings have room when there is not much else, else one that was never used, else any
    /// that is free. Of several that suit, the one that had event rings: there may be probes again.
    fn free(
        &self,
        foothold: &Foothold,
        config: &SessionConfig,
        functions: usize,
    ) -> Option<(SessionId, Option<usize>)> {
        let numbers = u8::try_from(SESSIONS_MAX).unwrap_or(u8::MAX);
        let free = || {
            (0..numbers)
                .map(SessionId)
                .filter(|id| self.get(*id).is_err())
        };
        let suits = |one: &Retired| one.suits(config, functions) && self.get(one.id).is_err();
        let all = self.retired.iter().enumerate();
        let suiting = all.filter(|(_, one)| suits(one));
        let suiting = suiting.map(|(index, one)| (one.id, Some(index)));
        let suiting = suiting.max_by_key(|(id, index)| (self.room_of_events(*id), Reverse(*index)));
        let roomy = || {
            let roomy = self.roomy(foothold, config);
            roomy.filter(|_| is_scarce(foothold, config))
        };
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

    /// Bytes of event rings that deleted sessions of this number had.
    fn room_of_events(&self, id: SessionId) -> u64 {
        let retired = self.retired_events.get(&id).into_iter().flatten();
        retired.map(|events| events.memory.room).sum()
    }

    /// Deletes a session that nothing leads to any more: switches its cells off and keeps its memory
    /// from everything that a late writer could damage. Nobody may read its rings any more.
    ///
    /// Where the window cannot be written any more the cells stay as they are, and nobody gets that memory again.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub(super) fn delete(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        id: SessionId,
    ) -> Result<(), ApplyError> {
        let slot = self.slots.get_mut(usize::from(id.0));
        let session = slot
            .and_then(Option::take)
            .ok_or(ApplyError::NoSession(id.0))?;
        let name = &session.config.name;
        let mut left = |place: &SessionMemory, has_heads| match switch_off(memory, place) {
            Ok(heads) => past(place.geometry, if has_heads { heads } else { Vec::new() }),
            Err(error) => {
                log::warn!(
                    "session {name}: its rings cannot be used again, for its cells cannot be reached: {error}"
                );
                None
            }
        };
        // Counters have no heads.
        let first = left(&session.memory, session.profile.is_none());
        if let Some(mut events) = session.events
            && let Some(first) = left(&events.memory, true)
        {
            events.memory.first = first;
            self.retired_events.entry(id).or_default().push(events);
        }
        let place = first.map(|first| {
            let memory = SessionMemory {
                first,
                halts_left: None,
                awaited: None,
                ..session.memory
            };
            Allotment {
                memory,
                recorder: session.recorder,
                profile: session.profile,
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
    pub fn get(&self, id: SessionId) -> Result<&Session, ApplyError> {
        let slot = self.slots.get(usize::from(id.0));
        slot.and_then(Option::as_ref)
            .ok_or(ApplyError::NoSession(id.0))
    }

    /// The session of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<SessionId> {
        let is_named = |slot: &Option<Session>| {
            slot.as_ref()
                .is_some_and(|session| session.config.name == name)
        };
        let index = self.slots.iter().position(is_named)?;
        u8::try_from(index).ok().map(SessionId)
    }

    pub(super) fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, ApplyError> {
        let slot = self.slots.get_mut(usize::from(id.0));
        let session = slot.and_then(Option::as_mut);
        session.ok_or(ApplyError::NoSession(id.0))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slots.iter().flatten()
    }

    /// Notes what a session is asked to trace, once that has been applied.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub fn set_selection(&mut self, id: SessionId, selection: Selection) -> Result<(), ApplyError> {
        self.get_mut(id)?.selection = selection;
        Ok(())
    }

    /// Has values of calls captured for a session, which has event rings, from its next plan on.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub fn capture_calls(&mut self, id: SessionId, moments: CallMoments) -> Result<(), ApplyError> {
        self.get_mut(id)?.captures = moments;
        Ok(())
    }

    /// The cells of all sessions are elsewhere from now on. What deleted sessions have left goes with the old cells.
    pub(super) fn move_cells(&mut self, moved: &CellsMoved) {
        self.retired.clear();
        self.retired_events.clear();
        for (id, session) in self.each_mut() {
            let (place, cells) = moved.of(id.0);
            if let Some(recorder) = &mut session.recorder {
                recorder.cell = place;
            }
            if let Some(events) = &mut session.events {
                let event_cell = |cell: &Gpa| cell.wrapping_add(EVENT_CELL);
                events.memory.cells = cells.iter().map(event_cell).collect();
                events.recorder.recorder.cell = place.events();
            }
            session.memory.cells = cells;
        }
    }

    /// Each session, by its number.
    pub(super) fn each_mut(&mut self) -> impl Iterator<Item = (SessionId, &mut Session)> {
        let slots = (0..).map(SessionId).zip(&mut self.slots);
        slots.filter_map(|(id, slot)| Some((id, slot.as_mut()?)))
    }

    /// What stubs of a session do is something else from its next plan on, or is what sites lead to now.
    pub fn set_anew(&mut self, id: SessionId, is_anew: bool) {
        self.anew = match is_anew {
            true => self.anew.with(id.0),
            false => self.anew.without(id.0),
        };
    }

    /// Those of which stubs do something else than those do that sites lead to.
    pub(super) const fn anew(&self) -> SessionSet {
        self.anew
    }

    /// Whether what a session records follows forks, from the next plan on.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`].
    pub fn follow_forks(&mut self, id: SessionId, follows: bool) -> Result<(), ApplyError> {
        self.get_mut(id)?.follows = follows;
        Ok(())
    }

    /// What is asked for each task that begins, by those that follow forks.
    pub(super) fn followers(&self) -> Vec<TaskCheck> {
        let following = self.iter().filter(|session| session.follows);
        following.filter_map(|session| session.tasks).collect()
    }

    /// Whether any session has values of calls captured.
    pub(super) fn capture_any(&self) -> bool {
        self.iter().any(|one| !one.captures.is_empty())
    }

    /// Whether a session has event rings.
    #[must_use]
    pub fn has_event_rings(&self, id: SessionId) -> bool {
        self.get(id).is_ok_and(|session| session.events.is_some())
    }

    /// Gives a session its event rings, if it has none, in which a record holds at least `payload_bytes`. A reader has
    /// to set their cells.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub(super) fn make_event_rings(
        &mut self,
        foothold: Option<&mut Foothold>,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        payload_bytes: u64,
    ) -> Result<(), AttachError> {
        let none = AttachError::NoSession(id.0);
        let slot = self.slots.get_mut(usize::from(id.0));
        let (Some(Some(session)), Some(foothold)) = (slot, foothold) else {
            return Err(none);
        };
        if session.events.is_none() {
            let retired = self.retired_events.entry(id).or_default();
            let config = &session.config;
            let events = foothold.event_rings(target, id, config, payload_bytes, retired)?;
            session.events = Some(events);
        }
        if let Some(events) = &mut session.events {
            events.memory.halts_left = session.memory.halts_left;
            events.recorder.recorder.tasks = session.tasks;
        }
        Ok(())
    }

    /// What ends recording at a function that these sessions trace.
    pub(super) fn halts_of(&self, set: SessionSet, function: Option<&Function>) -> HaltSet {
        let of = |id: u8| Some((id, self.get(SessionId(id)).ok()?.halts_of(function?)));
        let all = set.iter().filter_map(of);
        HaltSet(all.filter(|(_, bits)| *bits != 0).collect())
    }

    /// What the stub of functions does at whose sites this is done; `hook` is how returns are hooked, if they can be.
    pub(super) fn stub_spec(&self, recording: &Recording, hook: Option<Hook>) -> StubSpec {
        let (shape, captures) = (recording.shape, recording.captures);
        let set = recording.sessions;
        let of = |id: u8| self.get(SessionId(id)).ok();
        let traced_by: Vec<&Session> = set.iter().filter_map(of).collect();
        let graph = traced_by
            .iter()
            .find(|session| session.config.tracer.hooks_returns());
        let variant = graph.map(|session| session.config.return_hook);
        let variant = variant.or_else(|| captures.exit.map(|_| ReturnHook::default()));
        let hook = variant
            .zip(hook)
            .map(|(variant, hook)| Hook { variant, ..hook });
        let recorders = self.recorders(recording);
        let asks_who_calls = recorders.iter().any(|one| one.format.has_details());
        let shape = match shape {
            _ if shape.keeps_all() => shape,
            _ if hook.is_some() || asks_who_calls => shape,
            _ => SiteShape::Entry,
        };
        StubSpec {
            recorders,
            profiles: traced_by.iter().filter_map(|one| one.profile).collect(),
            shape,
            hook,
            captures_entry: captures.entry.is_some(),
            captures_exit: captures.exit.is_some(),
        }
    }
}

impl Sessions {
    /// The recorder of each session, with what ends its recording there.
    fn recorders(&self, of: &Recording) -> Vec<Recorder> {
        let recorder = |id: u8| {
            let session = self.get(SessionId(id)).ok()?;
            Some(Recorder {
                halts: session.halts(of.halts.bits(id)),
                ..session.recorder?
            })
        };
        of.sessions.iter().filter_map(recorder).collect()
    }
}

/// Refuses to leave functions by an indirect jump where a vCPU may want a landing pad at its end: return addresses have none. Whether
/// it wants one in ring 0 says a register that is not asked for (`IA32_S_CET`); the others do without CR4.CET.
fn check_hook(vcpus: &[VcpuRegisters], config: &SessionConfig) -> Result<(), AttachError> {
    const CET: u64 = 1 << 23;
    let leaves_by_jump = config.tracer.hooks_returns() && config.return_hook == ReturnHook::Jmp;
    let mut vcpus = vcpus.iter().enumerate();
    let tracks = |(_, vcpu): &(usize, &VcpuRegisters)| vcpu.online && vcpu.cr4 & CET != 0;
    match vcpus.find(tracks).filter(|_| leaves_by_jump) {
        None => Ok(()),
        Some((vcpu, registers)) => Err(AttachError::BranchesTracked {
            name: config.name.clone(),
            vcpu,
            cr4: registers.cr4,
        }),
    }
}

/// The first positions of rings with these heads for their next user: a lap past all that is reserved. None
/// when a head is the guest's doing.
fn past(geometry: Geometry, heads: Vec<u64>) -> Option<Vec<Position>> {
    let past = |(ring, head)| {
        let head = Position::of_word(head, ring).filter(|head| *head < REUSE_MAX);
        head.map(|head| head.after(geometry.slots()))
    };
    (0u16..).zip(heads).map(past).collect()
}

/// Keeps stubs from recording into the rings at `place`. Returns their heads.
fn switch_off(
    memory: &mut (impl WindowMemory + ?Sized),
    place: &SessionMemory,
) -> Result<Vec<u64>, MemoryError> {
    let word = |cell: Gpa, offset: i32| cell.wrapping_add(offset.unsigned_abs().into());
    let mut heads = Vec::with_capacity(place.cells.len());
    for cell in &place.cells {
        memory.write_window(word(*cell, LIMIT), &0u64.to_le_bytes())?;
        let mut head = [0; 8];
        memory.read_physical(word(*cell, HEAD), &mut head)?;
        heads.push(u64::from_le_bytes(head));
    }
    Ok(heads)
}
