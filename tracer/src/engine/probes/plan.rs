//! Which probes are recorded: the plan, made while the guest runs, with the stubs that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::{Probe, ProbeError, ProbeId};
use crate::engine::plan::{Plan, Recorded, Step};
use crate::engine::stub_spec::stub_spec;
use crate::engine::{ApplyError, Engine};
use crate::patch::breakpoints::{self, Server};
use crate::patch::functions::{Change, FunctionTable, PlanError, Templates};
use crate::patch::probes::{BreakpointTable, PlaceChange};
use crate::patch::tactic::{Place, Tactic};
use crate::session::SessionId;
use crate::stub::capture::CapturePart;
use crate::target::WindowMemory;

impl Engine {
    /// Plans who records these probes: a session, which has event rings, or nobody. Writes the stubs that this needs,
    /// which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub fn plan_probes(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        wanted: &[(ProbeId, Option<SessionId>)],
    ) -> Result<Plan, ApplyError> {
        let mut recorded = Vec::new();
        let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
        let mut changed = BTreeMap::new();
        for (id, after) in &wanted {
            let probe = self.probe(*id)?;
            if let Some(session) = after {
                self.check_room(probe, *session)?;
            }
            if probe.session != *after && !probe.is_gone {
                recorded.push(Step::Recorded(Recorded {
                    probe: *id,
                    before: probe.session,
                    after: *after,
                }));
                changed.insert(probe.place.at, probe.place.clone());
            }
        }
        let after = |probe: &Probe| wanted.get(&probe.id).copied().unwrap_or(probe.session);
        let returns = self.return_parts(after);
        let mut chains: BTreeMap<Gva, Vec<(ProbeId, SessionId)>> = BTreeMap::new();
        let probes = self.probes.values();
        for probe in probes.filter(|probe| !probe.is_gone && !probe.is_return) {
            if let Some(session) = after(probe) {
                let here = chains.entry(probe.place.at).or_default();
                here.push((probe.id, session));
            }
        }
        self.check_overlaps(chains.keys())?;
        let (mut sites, mut places) = (Vec::new(), Vec::new());
        for (at, place) in changed {
            let chain = chains.remove(&at).unwrap_or_default();
            if place.tactic == Tactic::Site {
                let returns = returns.get(&place.function).cloned();
                let returns = returns.unwrap_or_default();
                let change = self.plan_site(memory, place.function, &chain, returns)?;
                sites.extend(change);
            } else {
                let resume = self.resume(memory, &place)?;
                let stub = self.place_chain(memory, &chain, resume)?;
                let change = self.places.plan(at, stub).map_err(ProbeError::from)?;
                places.extend(change.map(|change| PlaceChange {
                    sessions: sessions_of(&chain),
                    ..change
                }));
            }
        }
        let breakpoints = self.plan_breakpoints(memory, &places)?;
        let sites = sites.into_iter().map(Step::Function);
        let places = places.into_iter().map(Step::Place);
        let steps = sites
            .chain(places)
            .chain(breakpoints.map(Step::Breakpoints));
        Ok(Plan::whole(steps.chain(recorded).collect()))
    }

    /// Plans the probes at a function's own site, and at its returns, which its stub hooks.
    fn plan_site(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        function: FunctionId,
        chain: &[(ProbeId, SessionId)],
        returns: Vec<CapturePart>,
    ) -> Result<Option<Change>, ApplyError> {
        let image = Arc::clone(&self.image);
        let Some(site) = image.site_of(function) else {
            return Ok(None);
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
        let after = own.as_ref().and_then(|change| change.after);
        let go_on = match after.and_then(|lead| lead.own) {
            Some(stub) => stub,
            None if own.is_some() => table.behind(site, arena)?,
            None => table.resume(site, arena)?,
        };
        self.write_stubs(memory)?;
        let head = self.place_chain(memory, chain, go_on)?;
        let change = match own {
            None => self.table.plan_probes(site, head, sessions_of(chain))?,
            Some(mut change) => {
                if let Some(head) = head {
                    FunctionTable::lead_through(site, &mut change, head, sessions_of(chain))?;
                }
                change
            }
        };
        Ok(Some(change))
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

    /// Plans the table of the breakpoints that stand there after `places` have changed, and writes it.
    fn plan_breakpoints(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        places: &[PlaceChange],
    ) -> Result<Option<BreakpointTable>, ApplyError> {
        let is_breakpoint = |change: &PlaceChange| {
            let state = self.places.place(change.at);
            state.is_some_and(|state| state.place.tactic == Tactic::Breakpoint)
        };
        if !places.iter().any(is_breakpoint) {
            return Ok(None);
        }
        let Some(Server::Guest(word)) = self.breakpoint_server() else {
            return Ok(None);
        };
        let now = self.places.table();
        let all = self.places.breakpoints(places);
        if all.is_empty() {
            return Ok(Some(BreakpointTable::leading(word, now, Gva(0))));
        }
        let table = breakpoints::table(&all);
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let room = ground.arena.allocate(table.len() as u64);
        let (at, physical) = room.map_err(PlanError::from)?;
        memory
            .write_window(physical, &table)
            .map_err(ApplyError::Stub)?;
        Ok(Some(BreakpointTable::leading(word, now, at)))
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

    /// Has the jumps of a plan for functions lead through the probes at their sites.
    pub(in crate::engine) fn lead_through_probes(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        changes: &mut [Change],
    ) -> Result<(), ApplyError> {
        if self.probes.values().all(|probe| probe.session.is_none()) {
            return Ok(());
        }
        let image = Arc::clone(&self.image);
        for change in changes {
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
            let go_on = match change.after.and_then(|lead| lead.own) {
                Some(own) => own,
                None => self.table.behind(site, &mut ground.arena)?,
            };
            self.write_stubs(memory)?;
            if let Some(head) = self.place_chain(memory, &chain, go_on)? {
                FunctionTable::lead_through(site, change, head, sessions_of(&chain))?;
            }
        }
        Ok(())
    }
}

/// The sessions that record these probes.
fn sessions_of(chain: &[(ProbeId, SessionId)]) -> SessionSet {
    let sessions = chain.iter().map(|(_, session)| session.0);
    sessions.fold(SessionSet::default(), SessionSet::with)
}
