//! Probes: what is captured at places that a user has named.
//!
//! A probe is registered once, and recorded by a session for as long as that wants it. The probes at one place are
//! a chain of stubs, each of which goes on at the next; the last one goes on at the stub of the function's own
//! sessions, or in the function. Stubs stay, so a chain that was there before is found again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ApplyError, Engine};
use crate::addr::Gva;
use crate::capture::Capture;
use crate::event::FunctionId;
use crate::event_formats::EventFormats;
use crate::image::points::{EventFormat, EventId};
use crate::image::{Image, Site, SiteKind};
use crate::patch::functions::{Change, FunctionTable, Plan, PlanError};
use crate::patch::poke::{self, Poke};
use crate::session::SessionId;
use crate::stub::capture::{CapturePart, CaptureStub};
use crate::stub::event::{EventRecorder, Tail};
use crate::target::{PhysicalMemory, StoppedTarget};

/// A probe, by the order in which they were added, from 1 on. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u32);

/// What a probe is made of.
#[derive(Debug, Clone)]
pub struct NewProbe {
    /// What its event is called.
    pub name: Arc<str>,
    /// The instruction that it is hit before.
    pub address: Gva,
    /// What it captures.
    pub capture: Capture,
}

/// A probe.
#[derive(Debug)]
pub struct Probe {
    /// Its number.
    pub id: ProbeId,
    /// The number of its event.
    pub event: EventId,
    /// What its event is called.
    pub name: Arc<str>,
    /// The instruction that it is hit before.
    pub address: Gva,
    /// The function that lies in.
    pub function: FunctionId,
    /// What it captures.
    pub capture: Arc<Capture>,
    /// The session that records it now.
    pub session: Option<SessionId>,
    /// Whether the text that it was in is gone: then it is never hit again.
    pub is_gone: bool,
    /// Its stubs: for this recorder, going on there, it is here.
    stubs: Vec<(EventRecorder, Gva, Gva)>,
}

/// Why there is no such probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No such number.
    #[error("there is no probe {0}: `probe list` shows them")]
    NoSuchProbe(u32),
    /// Its address is in no function.
    #[error("there is no function at {0}: a probe needs an instruction of a function")]
    NoFunction(Gva),
    /// There is no place for it.
    #[error("a probe cannot sit at {symbol}+{offset:#x}: {why}")]
    NoPlace {
        /// The function.
        symbol: String,
        /// How far in it.
        offset: u64,
        /// Why not.
        why: String,
    },
    /// The function's text is gone.
    #[error("the text of {symbol} is not there (any more)")]
    Gone {
        /// The function.
        symbol: String,
    },
    /// Records cannot number more events.
    #[error("there have been too many probes in this run")]
    TooMany,
    /// A record would have no room for it.
    #[error(
        "probe {name} captures {wanted} bytes, a record of its session has room for {room}: capture less, or \
         make a session with a larger --record-bytes"
    )]
    TooLarge {
        /// What it is called.
        name: String,
        /// What it needs.
        wanted: usize,
        /// What there is.
        room: usize,
    },
}

/// Everything that has to be written for a change of which probes are recorded.
#[derive(Debug, Clone, Default)]
pub struct ProbePlan {
    /// Who records them: before and afterwards.
    recorded: Vec<(ProbeId, Option<SessionId>, Option<SessionId>)>,
    /// Changed sites of functions.
    sites: Vec<Change>,
}

impl ProbePlan {
    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.recorded.is_empty()
    }
}

impl Engine {
    /// Every probe that has not been forgotten.
    pub fn probes(&self) -> impl Iterator<Item = &Probe> {
        self.probes.values()
    }

    /// A probe.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn probe(&self, id: ProbeId) -> Result<&Probe, ProbeError> {
        let found = self.probes.get(&id);
        found.ok_or(ProbeError::NoSuchProbe(id.0))
    }

    /// The formats of all events, probes too.
    #[must_use]
    pub fn event_formats(&self) -> &Arc<EventFormats> {
        &self.formats
    }

    /// Registers a probe, which nobody records yet.
    ///
    /// # Errors
    /// A [`ProbeError`].
    pub fn add_probe(&mut self, new: NewProbe) -> Result<ProbeId, ProbeError> {
        let function = self.image.function_at(new.address);
        let function = function.ok_or(ProbeError::NoFunction(new.address))?;
        if self.table.is_gone(function) {
            let symbol = self.image.name_at(new.address);
            return Err(ProbeError::Gone { symbol });
        }
        if site_at(&self.image, function, new.address).is_none() {
            let start = self.image.function(function).map(|of| of.address);
            return Err(ProbeError::NoPlace {
                symbol: self.image.name_at(start.unwrap_or_default()),
                offset: start.map_or(0, |start| new.address.0.wrapping_sub(start.0)),
                why: "only the patch sites of functions are known".to_owned(),
            });
        }
        let format = new.capture.format(Arc::clone(&new.name));
        let formats = Arc::make_mut(&mut self.formats);
        let event = formats.add(Arc::new(format)).ok_or(ProbeError::TooMany)?;
        let number = event.index() + 1 - formats.declared();
        let id = ProbeId(u32::try_from(number).map_err(|_| ProbeError::TooMany)?);
        let probe = Probe {
            id,
            event,
            name: new.name,
            address: new.address,
            function,
            capture: Arc::new(new.capture),
            session: None,
            is_gone: false,
            stubs: Vec::new(),
        };
        self.probes.insert(id, probe);
        Ok(id)
    }

    /// Forgets probes that nobody records.
    pub fn forget_probes(&mut self, ids: &[ProbeId]) {
        for id in ids {
            if self.probes.get(id).is_some_and(|one| one.session.is_none()) {
                self.probes.remove(id);
            }
        }
    }

    /// Notes which probes were in text that is gone. Says which are so since the last time.
    pub fn take_lost_probes(&mut self) -> Vec<ProbeId> {
        let mut lost = Vec::new();
        for probe in self.probes.values_mut().filter(|probe| !probe.is_gone) {
            if self.table.is_gone(probe.function) {
                probe.is_gone = true;
                probe.session = None;
                lost.push(probe.id);
            }
        }
        lost
    }

    /// Plans who records these probes: a session, which has event rings, or nobody. Writes the stubs that this needs,
    /// which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub fn plan_probes(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        wanted: &[(ProbeId, Option<SessionId>)],
    ) -> Result<ProbePlan, ApplyError> {
        let mut plan = ProbePlan::default();
        let mut recorded = BTreeMap::new();
        for (id, session) in wanted {
            let probe = self.probe(*id)?;
            if let Some(session) = session {
                self.check_room(probe, *session)?;
            }
            recorded.insert(*id, *session);
        }
        let mut functions = Vec::new();
        for (id, after) in &recorded {
            let probe = self.probe(*id)?;
            if probe.session != *after && !probe.is_gone {
                plan.recorded.push((*id, probe.session, *after));
                functions.push(probe.function);
            }
        }
        functions.sort_unstable();
        functions.dedup();
        let image = Arc::clone(&self.image);
        for function in functions {
            let Some(site) = image.site_of(function) else {
                continue;
            };
            let go_on = self.table.resume(site);
            let chain = self.chain(function, |probe| match recorded.get(&probe.id) {
                Some(after) => *after,
                None => probe.session,
            });
            let head = self.place_chain(memory, &chain, go_on)?;
            plan.sites.push(self.table.plan_probes(site, head)?);
        }
        Ok(plan)
    }

    /// The probes at a function's site that are recorded, in their order, and by whom.
    fn chain(
        &self,
        function: FunctionId,
        session: impl Fn(&Probe) -> Option<SessionId>,
    ) -> Vec<(ProbeId, SessionId)> {
        let here = self.probes.values();
        let here = here.filter(|probe| probe.function == function && !probe.is_gone);
        here.filter_map(|probe| Some((probe.id, session(probe)?)))
            .collect()
    }

    fn check_room(&self, probe: &Probe, session: SessionId) -> Result<(), ApplyError> {
        let events = self.session(session)?.events.as_ref();
        let events = events.ok_or(ApplyError::NotAttached)?;
        let format = self.formats.get(probe.event);
        let wanted = format.map_or(0, EventFormat::words) * 8;
        let room = 1 << events.recorder.payload_log2;
        if wanted > room {
            let too_large = ProbeError::TooLarge {
                name: probe.name.to_string(),
                wanted,
                room,
            };
            return Err(too_large.into());
        }
        Ok(())
    }

    /// Where the first of these probes is; each goes on at the next, the last one at `go_on`.
    fn place_chain(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        chain: &[(ProbeId, SessionId)],
        go_on: Gva,
    ) -> Result<Option<Gva>, ApplyError> {
        let mut next = go_on;
        for (id, session) in chain.iter().rev() {
            next = self.place_probe(memory, *id, *session, next)?;
        }
        Ok((!chain.is_empty()).then_some(next))
    }

    fn place_probe(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        id: ProbeId,
        session: SessionId,
        go_on: Gva,
    ) -> Result<Gva, ApplyError> {
        let events = self.session(session)?.events.as_ref();
        let recorder = events.ok_or(ApplyError::NotAttached)?.recorder;
        let probe = self.probe(id)?;
        let is_it = |stub: &&(EventRecorder, Gva, Gva)| (stub.0, stub.1) == (recorder, go_on);
        if let Some((_, _, at)) = probe.stubs.iter().find(is_it) {
            return Ok(*at);
        }
        let (event, capture) = (probe.event, Arc::clone(&probe.capture));
        let at = self.write_probe(memory, event, &capture, recorder, go_on)?;
        if let Some(probe) = self.probes.get_mut(&id) {
            probe.stubs.push((recorder, go_on, at));
        }
        Ok(at)
    }

    /// Brings the guest's text to what `plan` says, all of it or nothing.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing was changed.
    pub fn apply_probes(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        plan: &ProbePlan,
    ) -> Result<(), ApplyError> {
        self.check_frozen()?;
        self.look(target);
        let ground = self.ground.as_ref().ok_or(ApplyError::NotAttached)?;
        let vcpus = target.vcpus().to_vec();
        let is_seen = ground.window.verify_seen_by(target, &vcpus);
        if plan.sites.iter().any(|change| change.stub.is_some()) {
            is_seen?;
        }
        let is_gone = |change: &&Change| self.table.is_gone(change.poke.function);
        if let Some(change) = plan.sites.iter().find(is_gone) {
            let symbol = self.image.name_at(change.poke.at);
            return Err(ProbeError::Gone { symbol }.into());
        }
        let is_current = |id: &ProbeId, before| {
            let probe = self.probes.get(id);
            probe.is_some_and(|probe| probe.session == before && !probe.is_gone)
        };
        let mut recorded = plan.recorded.iter();
        let mut sites = plan.sites.iter();
        if !recorded.all(|(id, before, _)| is_current(id, *before))
            || !sites.all(|change| self.table.is_current(&self.image, change))
        {
            return Err(ApplyError::Stale);
        }
        for change in plan.sites.iter().filter(|change| change.is_ours) {
            if let Err(error) = self.look_at(target, &change.poke) {
                return Err(self.freeze(error));
            }
        }
        let pokes = plan.sites.iter().map(|change| change.poke);
        let pokes: Vec<Poke> = pokes.filter(|poke| poke.expected != poke.new).collect();
        let written = poke::apply(target, &self.image, &pokes);
        self.note(written)?;
        plan.sites
            .iter()
            .for_each(|change| self.table.applied(change));
        for (id, _, after) in &plan.recorded {
            if let Some(probe) = self.probes.get_mut(id) {
                probe.session = *after;
            }
        }
        Ok(())
    }

    /// Has the jumps of a plan for functions lead through the probes at their sites.
    pub(super) fn lead_through_probes(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        plan: &mut Plan,
    ) -> Result<(), ApplyError> {
        if self.probes.values().all(|probe| probe.session.is_none()) {
            return Ok(());
        }
        let image = Arc::clone(&self.image);
        for change in &mut plan.changes {
            let Some(site) = image.site_of(change.poke.function) else {
                continue;
            };
            let chain = self.chain(site.function, |probe| probe.session);
            let go_on = change.own.unwrap_or(crate::patch::functions::behind(site));
            if let Some(head) = self.place_chain(memory, &chain, go_on)? {
                FunctionTable::lead_through(site, change, head)?;
            }
        }
        Ok(())
    }

    /// How a probe is put into the text.
    #[must_use]
    pub fn probe_tactic(&self, _probe: &Probe) -> &'static str {
        "patch site"
    }

    /// The probes that a session records.
    pub fn probes_of(&self, session: SessionId) -> impl Iterator<Item = &Probe> {
        let probes = self.probes.values();
        probes.filter(move |probe| probe.session == Some(session))
    }

    fn write_probe(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        event: EventId,
        capture: &Arc<Capture>,
        recorder: EventRecorder,
        go_on: Gva,
    ) -> Result<Gva, ApplyError> {
        let stub = CaptureStub {
            parts: vec![CapturePart {
                recorder,
                event,
                capture: Arc::clone(capture),
            }],
            tail: Tail::Continue,
            lowered: 0,
            is_between: true,
            reach: None,
        };
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let start = ground.arena.start().0;
        let near = Gva(start.wrapping_sub(crate::stub::template::TEMPLATE_MAX));
        let template = stub.template(near).map_err(PlanError::from)?;
        let room = ground.arena.allocate(template.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        let bytes = template.stamp(at, FunctionId(event.0), go_on);
        let bytes = bytes.map_err(PlanError::from)?;
        memory
            .write_physical(physical, &bytes)
            .map_err(ApplyError::Stub)?;
        Ok(at)
    }
}

/// The function's own patch site, when a probe at `address` is hit there as well: nothing but what does
/// nothing lies between.
fn site_at(image: &Image, function: FunctionId, address: Gva) -> Option<&Site> {
    let site = image.site_of(function)?;
    let start = image.function(function)?.address;
    let is_entry = site.kind != SiteKind::Mcount && site.address.0.wrapping_sub(start.0) <= 4;
    (address == site.address || is_entry && address == start).then_some(site)
}
