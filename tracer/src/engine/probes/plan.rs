//! Changing which probes are recorded: a plan, made while the guest runs, and its writes, all of them or none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::function::FunctionId;

use super::{Probe, ProbeError, ProbeId};
use crate::engine::change::stub_spec;
use crate::engine::{ApplyError, Engine};
use crate::patch::breakpoints::{self, Server};
use crate::patch::functions::{Change, FunctionTable, Plan, PlanError, Templates};
use crate::patch::poke::{self, Poke, PokeError, TransactionError};
use crate::patch::probes::PlaceChange;
use crate::patch::tactic::{Place, Tactic};
use crate::session::SessionId;
use crate::stub::capture::CapturePart;
use crate::target::{PhysicalMemory, StoppedTarget, VcpuRegisters};

/// Everything that has to be written for a change of which probes are recorded.
#[derive(Debug, Clone, Default)]
pub struct ProbePlan {
    /// Who records them: before and afterwards.
    recorded: Vec<(ProbeId, Option<SessionId>, Option<SessionId>)>,
    /// Changed sites of functions.
    sites: Vec<Change>,
    /// Changed places elsewhere.
    places: Vec<PlaceChange>,
    /// The word that leads to the table of breakpoints, and that table.
    breakpoints: Option<(Gva, Gva)>,
}

impl ProbePlan {
    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.recorded.is_empty()
    }

    /// Every write, and whether it is about a jump of our own.
    fn pokes(&self) -> impl Iterator<Item = (Poke, bool)> {
        let sites = self.sites.iter();
        let sites = sites.map(|change| (change.poke, change.is_ours));
        let places = self.places.iter().flat_map(|change| &change.pokes);
        let all = sites.chain(places.map(|own| (own.poke, own.is_ours)));
        all.filter(|(poke, _)| poke.expected != poke.new)
    }

    /// Whether anything leads into the window afterwards.
    fn leads_somewhere(&self) -> bool {
        let sites = self.sites.iter().any(|change| change.stub.is_some());
        sites || self.places.iter().any(|change| change.after.is_some())
    }
}

/// A change that was not begun.
const fn untouched(cause: PokeError) -> ApplyError {
    ApplyError::Transaction(TransactionError {
        cause,
        undone: 0,
        stuck: Vec::new(),
    })
}

impl Engine {
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
        let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
        let mut changed = BTreeMap::new();
        for (id, after) in &wanted {
            let probe = self.probe(*id)?;
            if let Some(session) = after {
                self.check_room(probe, *session)?;
            }
            if probe.session != *after && !probe.is_gone {
                plan.recorded.push((*id, probe.session, *after));
                changed.insert(probe.place.at, probe.place.clone());
            }
        }
        let after = |probe: &Probe| wanted.get(&probe.id).copied().unwrap_or(probe.session);
        let returns = self.return_parts(after);
        let mut recorded: BTreeMap<Gva, Vec<(ProbeId, SessionId)>> = BTreeMap::new();
        let probes = self.probes.values();
        for probe in probes.filter(|probe| !probe.is_gone && !probe.is_return) {
            if let Some(session) = after(probe) {
                let here = recorded.entry(probe.place.at).or_default();
                here.push((probe.id, session));
            }
        }
        self.check_overlaps(recorded.keys())?;
        for (at, place) in changed {
            let chain = recorded.remove(&at).unwrap_or_default();
            if place.tactic == Tactic::Site {
                let returns = returns.get(&place.function).cloned();
                let returns = returns.unwrap_or_default();
                self.plan_site(memory, &mut plan, place.function, &chain, returns)?;
            } else {
                let resume = self.resume(memory, &place)?;
                let stub = self.place_chain(memory, &chain, resume)?;
                let change = self.places.plan(at, stub).map_err(ProbeError::from)?;
                plan.places.extend(change);
            }
        }
        self.plan_breakpoints(memory, &mut plan)?;
        Ok(plan)
    }

    /// Plans the probes at a function's own site, and at its returns, which its stub hooks.
    fn plan_site(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        plan: &mut ProbePlan,
        function: FunctionId,
        chain: &[(ProbeId, SessionId)],
        returns: Vec<CapturePart>,
    ) -> Result<(), ApplyError> {
        let image = Arc::clone(&self.image);
        let Some(site) = image.site_of(function) else {
            return Ok(());
        };
        let traced_by = self.table.sessions(function);
        let captures = self.captures(memory, function, traced_by, returns)?;
        let wanted = (traced_by, captures);
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        if captures.exit.is_some() && ground.mirror.is_none() {
            return Err(ApplyError::NotAttached);
        }
        let (sessions, mirror, arena) = (&self.sessions, ground.mirror, ground.arena);
        let spec = |set, shape, captures| stub_spec(sessions, set, shape, captures, mirror, &arena);
        let (arena, mut templates) = (&mut ground.arena, Templates::new());
        let at = (&*image, site);
        let table = &mut self.table;
        let own = table.plan_site(at, wanted, spec, arena, &mut templates)?;
        let after = own.as_ref().map(|change| change.own);
        let go_on = match after.flatten() {
            Some(stub) => stub,
            None if own.is_some() => table.behind(site, arena)?,
            None => table.resume(site, arena)?,
        };
        self.write_stubs(memory)?;
        let head = self.place_chain(memory, chain, go_on)?;
        let change = match own {
            None => self.table.plan_probes(site, head)?,
            Some(mut change) => {
                if let Some(head) = head {
                    FunctionTable::lead_through(site, &mut change, head)?;
                }
                change
            }
        };
        plan.sites.push(change);
        Ok(())
    }

    /// Whether what is displaced at these places can be so at the same time.
    fn check_overlaps<'a>(&self, places: impl Iterator<Item = &'a Gva>) -> Result<(), ProbeError> {
        let set: BTreeSet<&Gva> = places.collect();
        let probes = self.probes.values().filter(|probe| !probe.is_gone);
        let places: BTreeMap<Gva, &Place> = probes
            .filter(|probe| set.contains(&probe.place.at))
            .map(|probe| (probe.place.at, &probe.place))
            .collect();
        let mut before: Option<&Place> = None;
        for place in places.values() {
            if let Some(before) = before.filter(|before| before.end() > place.at) {
                return Err(ProbeError::Overlap {
                    one: before.at,
                    other: place.at,
                });
            }
            before = Some(place);
        }
        Ok(())
    }

    /// Plans the table of the breakpoints that stand there afterwards, and writes it.
    fn plan_breakpoints(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
        plan: &mut ProbePlan,
    ) -> Result<(), ApplyError> {
        let is_breakpoint = |change: &PlaceChange| {
            let state = self.places.place(change.at);
            state.is_some_and(|state| state.place.tactic == Tactic::Breakpoint)
        };
        if !plan.places.iter().any(is_breakpoint) {
            return Ok(());
        }
        let Some(Server::Guest(word)) = self.breakpoint_server() else {
            return Ok(());
        };
        let all = self.places.breakpoints(&plan.places);
        if all.is_empty() {
            plan.breakpoints = Some((word, Gva(0)));
            return Ok(());
        }
        let table = breakpoints::table(&all);
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let room = ground.arena.allocate(table.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        memory
            .write_physical(physical, &table)
            .map_err(ApplyError::Stub)?;
        plan.breakpoints = Some((word, at));
        Ok(())
    }

    fn check_room(&self, probe: &Probe, session: SessionId) -> Result<(), ApplyError> {
        let events = self.session(session)?.events.as_ref();
        let events = events.ok_or(ApplyError::NotAttached)?;
        let format = self.formats.get(probe.event);
        let wanted = 8 * format.map_or(0, EventFormat::words);
        let room = 1 << events.recorder.payload_log2;
        if wanted > room {
            let too_large = ProbeError::TooLarge {
                name: probe.name.to_string(),
                wanted,
                room,
            };
            return Err(too_large.into());
        }
        if probe.capture.needs_memory() && self.reach().is_none() {
            let name = probe.name.to_string();
            return Err(ProbeError::NoReach { name }.into());
        }
        Ok(())
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
        if plan.leads_somewhere() {
            is_seen?;
        }
        self.check_current(plan)?;
        self.check_ring(target, &vcpus, plan)?;
        for (poke, _) in plan.pokes().filter(|(_, is_ours)| *is_ours) {
            if let Err(error) = self.look_at(target, &poke) {
                return Err(self.freeze(error));
            }
        }
        // First what stays so: a thread that is in the way goes on and is looked for again.
        self.check_kprobes(target, plan)?;
        self.check_threads(target, plan)?;
        let pokes: Vec<Poke> = plan.pokes().map(|(poke, _)| poke).collect();
        let written = poke::apply(target, &self.image, &pokes);
        self.note(written)?;
        if let Some((word, table)) = plan.breakpoints
            && let Err(error) = target.write(word, &table.0.to_le_bytes())
        {
            let back: Vec<Poke> = pokes.iter().rev().map(|poke| poke.reverse()).collect();
            let written = poke::apply(target, &self.image, &back);
            self.note(written)?;
            return Err(ProbeError::Breakpoints(error).into());
        }
        for change in &plan.sites {
            self.table.applied(change);
        }
        for change in &plan.places {
            self.places.applied(change);
        }
        for (id, _, after) in &plan.recorded {
            if let Some(probe) = self.probes.get_mut(id) {
                probe.session = *after;
            }
        }
        Ok(())
    }

    /// Whether the text at new places is executed in the ring that the window is for.
    fn check_ring(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        vcpus: &[VcpuRegisters],
        plan: &ProbePlan,
    ) -> Result<(), ProbeError> {
        let Some(ground) = &self.ground else {
            return Ok(());
        };
        let new = plan.places.iter();
        let mut new = new.filter(|change| change.before.is_none() && change.after.is_some());
        let suits = |change: &&PlaceChange| ground.window.suits(memory, vcpus, change.at);
        match new.find(|change| !suits(change)) {
            None => Ok(()),
            Some(PlaceChange { at, .. }) => Err(ProbeError::OtherRing {
                at: *at,
                symbol: self.image.name_at(*at),
            }),
        }
    }

    /// Whether some thread may be where no instruction begins afterwards: inside of what is displaced, or at the jump
    /// in padding that becomes padding again.
    fn check_threads(
        &self,
        target: &(impl StoppedTarget + ?Sized),
        plan: &ProbePlan,
    ) -> Result<(), ApplyError> {
        let mut inner = Vec::new();
        for change in &plan.sites {
            inner.extend(self.inner(change));
        }
        for change in &plan.places {
            let Some(state) = self.places.place(change.at) else {
                continue;
            };
            let poke = change.pokes.first().map(|own| own.poke);
            let held = match (change.before, change.after) {
                (None, Some(_)) => state.place.inner.clone(),
                (Some(_), None) => state.place.padding.iter().map(|one| one.at).collect(),
                _ => Vec::new(),
            };
            inner.extend(held.into_iter().filter_map(|place| Some((place, poke?))));
        }
        let occupied = self.occupied(target, inner)?;
        match occupied.into_iter().next() {
            Some((_, cause)) => Err(untouched(cause)),
            None => Ok(()),
        }
    }

    /// Whether the guest has probes of its own where something is to be displaced.
    fn check_kprobes(
        &self,
        target: &(impl PhysicalMemory + ?Sized),
        plan: &ProbePlan,
    ) -> Result<(), ApplyError> {
        let new = plan.places.iter();
        let new = new.filter(|change| change.before.is_none() && change.after.is_some());
        let displaced = new.filter_map(|change| {
            let place = &self.places.place(change.at)?.place;
            Some((place.function, place.at, place.end()))
        });
        let displaced: Vec<_> = displaced.collect();
        let beside = self.beside_kprobes(target, &displaced);
        match beside.into_iter().next() {
            Some((_, cause)) => Err(untouched(cause)),
            None => Ok(()),
        }
    }

    /// Whether the text that is to be changed is there, and as it was when this was planned.
    fn check_current(&self, plan: &ProbePlan) -> Result<(), ApplyError> {
        for (poke, _) in plan.pokes() {
            if self.table.is_gone(poke.function) {
                let symbol = self.image.name_at(poke.at);
                return Err(ProbeError::Gone { symbol }.into());
            }
        }
        let is_current = |id: &ProbeId, before| {
            let probe = self.probes.get(id);
            probe.is_some_and(|probe: &Probe| probe.session == before && !probe.is_gone)
        };
        let mut recorded = plan.recorded.iter();
        let mut sites = plan.sites.iter();
        let mut places = plan.places.iter();
        let is_so = recorded.all(|(id, before, _)| is_current(id, *before))
            && sites.all(|change| self.table.is_current(&self.image, change))
            && places.all(|change| self.places.is_current(change));
        is_so.then_some(()).ok_or(ApplyError::Stale)
    }

    /// Has the jumps of a plan for functions lead through the probes at their sites.
    pub(in crate::engine) fn lead_through_probes(
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
            let here = self
                .probes
                .values()
                .filter(|probe| probe.place.at == site.address)
                .filter(|probe| !probe.is_gone && !probe.is_return);
            let chain: Vec<_> = here
                .filter_map(|probe| Some((probe.id, probe.session?)))
                .collect();
            let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
            let go_on = match change.own {
                Some(own) => own,
                None => self.table.behind(site, &mut ground.arena)?,
            };
            self.write_stubs(memory)?;
            if let Some(head) = self.place_chain(memory, &chain, go_on)? {
                FunctionTable::lead_through(site, change, head)?;
            }
        }
        Ok(())
    }
}
