//! Which probes are recorded: the plan, made while the guest runs, with the stubs that it needs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::{Probe, ProbeError, ProbeId, Probes};
use crate::engine::ApplyError;
use crate::engine::plan::{Plan, Recorded, Step};
use crate::engine::planning::Planning;
use crate::engine::points::Points;
use crate::event_formats::EventFormats;
use crate::patch::breakpoints::{self, Server};
use crate::patch::functions::{Change, FunctionTable, Wanted, after};
use crate::patch::probes::{BreakpointTable, PlaceChange};
use crate::patch::tactic::{Place, Tactic};
use crate::session::SessionId;
use crate::stub::capture::CapturePart;
use crate::stub::store::{Piece, StubStore};
use crate::target::WindowMemory;

impl Points {
    /// Plans who records these probes: a session, which has event rings, or nobody. Writes the stubs that this needs,
    /// which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub fn plan_probes<M: WindowMemory + ?Sized>(
        &mut self,
        with: &mut Planning<'_, M>,
        wanted: &[(ProbeId, Option<SessionId>)],
    ) -> Result<Plan, ApplyError> {
        let mut recorded = Vec::new();
        let wanted: BTreeMap<_, _> = wanted.iter().copied().collect();
        let mut changed = BTreeMap::new();
        for (id, after) in &wanted {
            let probe = self.probes.get(*id)?;
            if let Some(session) = after {
                check_room(with, &self.formats, probe, *session)?;
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
        let returns = self.probes.return_parts(with, after);
        let mut chains = self.probes.chains(after);
        self.probes.check_overlaps(chains.keys())?;
        let (mut sites, mut places) = (Vec::new(), Vec::new());
        for (at, place) in changed {
            let chain = chains.remove(&at).unwrap_or_default();
            if place.tactic == Tactic::Site {
                let returns = returns.get(&place.function).cloned();
                let returns = returns.unwrap_or_default();
                let change = self.plan_site(with, place.function, &chain, returns)?;
                sites.extend(change);
            } else {
                let resume = self.probes.resume(with, &place)?;
                let stub = self.probes.place_chain(with, &chain, resume)?;
                let change = self
                    .probes
                    .places
                    .plan(at, stub)
                    .map_err(ProbeError::from)?;
                places.extend(change.map(|change| PlaceChange {
                    sessions: sessions_of(&chain),
                    ..change
                }));
            }
        }
        let breakpoints = self.probes.plan_breakpoints(with, &places)?;
        let sites = sites.into_iter().map(Step::Function);
        let places = places.into_iter().map(Step::Place);
        let steps = sites
            .chain(places)
            .chain(breakpoints.map(Step::Breakpoints));
        Ok(Plan::whole(steps.chain(recorded).collect()))
    }

    /// Plans the probes at a function's own site, and at its returns, which its stub hooks.
    fn plan_site<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        function: FunctionId,
        chain: &[(ProbeId, SessionId)],
        returns: Vec<CapturePart>,
    ) -> Result<Option<Change>, ApplyError> {
        let image = with.image;
        let Some(site) = image.site_of(function) else {
            return Ok(None);
        };
        let traced_by = self.functions.sessions(function);
        let captures = self.captures(with, function, traced_by, returns)?;
        let sessions = with.sessions;
        let (foothold, memory) = with.foothold()?;
        let hook = foothold.hook();
        if captures.exit.is_some() && hook.is_none() {
            return Err(ApplyError::NotAttached);
        }
        let template = |wanted: Wanted, store: &mut StubStore| {
            store.template(sessions.stub_spec(wanted.sessions, wanted.shape, wanted.captures, hook))
        };
        let (wanted, store) = ((traced_by, captures), &mut foothold.stubs);
        let table = &self.functions;
        let own = table.plan_site((image, site), wanted, template, store, memory)?;
        let lead = own.as_ref().and_then(|change| change.after);
        let go_on = match lead.and_then(|lead| lead.own) {
            Some(stub) => stub,
            None => match table.own(function).filter(|_| own.is_none()) {
                Some(stub) => stub,
                None => after(site, store, memory)?,
            },
        };
        let head = self.probes.place_chain(with, chain, go_on)?;
        let change = match own {
            None => table.plan_probes(site, head, sessions_of(chain))?,
            Some(mut change) => {
                if let Some(head) = head {
                    FunctionTable::lead_through(site, &mut change, head, sessions_of(chain))?;
                }
                change
            }
        };
        Ok(Some(change))
    }

    /// Has the jumps of a plan for functions lead through the probes at their sites.
    pub fn lead_through_probes<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        changes: &mut [Change],
    ) -> Result<(), ApplyError> {
        if self.probes.iter().all(|probe| probe.session.is_none()) {
            return Ok(());
        }
        let image = with.image;
        for change in changes {
            let Some(site) = image.site_of(change.poke.function) else {
                continue;
            };
            let here = self
                .probes
                .iter()
                .filter(|probe| probe.place.at == site.address)
                .filter(|probe| !probe.is_gone && !probe.is_return);
            let chain: Vec<_> = here
                .filter_map(|probe| Some((probe.id, probe.session?)))
                .collect();
            let go_on = match change.after.and_then(|lead| lead.own) {
                Some(own) => own,
                None => {
                    let (foothold, memory) = with.foothold()?;
                    after(site, &mut foothold.stubs, memory)?
                }
            };
            if let Some(head) = self.probes.place_chain(with, &chain, go_on)? {
                FunctionTable::lead_through(site, change, head, sessions_of(&chain))?;
            }
        }
        Ok(())
    }
}

impl Probes {
    /// Whether what is displaced at these places can be so at the same time.
    pub(super) fn check_overlaps<'a>(
        &self,
        places: impl Iterator<Item = &'a Gva>,
    ) -> Result<(), ProbeError> {
        let set: BTreeSet<&Gva> = places.collect();
        let probes = self.all.values().filter(|probe| !probe.is_gone);
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
    fn plan_breakpoints<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        places: &[PlaceChange],
    ) -> Result<Option<BreakpointTable>, ApplyError> {
        if !places.iter().any(|change| self.is_breakpoint(change)) {
            return Ok(None);
        }
        let Some(Server::Guest(word)) = self.server(with.image, with.foothold.as_deref()) else {
            return Ok(None);
        };
        let now = self.places.table();
        let all = self.places.breakpoints(places);
        if all.is_empty() {
            return Ok(Some(BreakpointTable::leading(word, now, Gva(0))));
        }
        let at = with.place(Piece::Bytes(breakpoints::table(&all).into()))?;
        Ok(Some(BreakpointTable::leading(word, now, at)))
    }

    /// Whether a place is a breakpoint.
    pub fn is_breakpoint(&self, change: &PlaceChange) -> bool {
        let state = self.places.place(change.at);
        state.is_some_and(|state| state.place.tactic == Tactic::Breakpoint)
    }

    /// The probes at each place, but those of returns, which `session` says are recorded.
    fn chains(
        &self,
        session: impl Fn(&Probe) -> Option<SessionId>,
    ) -> BTreeMap<Gva, Vec<(ProbeId, SessionId)>> {
        let mut chains: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let probes = self.all.values();
        for probe in probes.filter(|probe| !probe.is_gone && !probe.is_return) {
            if let Some(session) = session(probe) {
                let here = chains.entry(probe.place.at).or_default();
                here.push((probe.id, session));
            }
        }
        chains
    }

    /// What probes capture at the returns of functions, when `session` records them.
    pub fn return_parts<M: WindowMemory + ?Sized>(
        &self,
        with: &Planning<'_, M>,
        session: impl Fn(&Probe) -> Option<SessionId>,
    ) -> HashMap<FunctionId, Vec<CapturePart>> {
        let mut parts: HashMap<FunctionId, Vec<CapturePart>> = HashMap::new();
        let probes = self.iter();
        for probe in probes.filter(|probe| probe.is_return && !probe.is_gone) {
            let recorder = session(probe).and_then(|id| with.event_recorder(id).ok());
            if let Some(recorder) = recorder {
                let here = parts.entry(probe.place.function).or_default();
                here.push(CapturePart {
                    recorder,
                    event: probe.event,
                    capture: Arc::clone(&probe.capture),
                });
            }
        }
        parts
    }
}

/// Whether a record of the session has room for what a probe says.
fn check_room<M: WindowMemory + ?Sized>(
    with: &Planning<'_, M>,
    formats: &EventFormats,
    probe: &Probe,
    session: SessionId,
) -> Result<(), ApplyError> {
    let recorder = with.event_recorder(session)?;
    let format = formats.get(probe.event);
    let wanted = 8 * format.map_or(0, EventFormat::words);
    let room = 1 << recorder.payload_log2;
    if wanted > room {
        let too_large = ProbeError::TooLarge {
            name: probe.name.to_string(),
            wanted,
            room,
        };
        return Err(too_large.into());
    }
    if probe.capture.needs_memory() && with.reach().is_none() {
        let name = probe.name.to_string();
        return Err(ProbeError::NoReach { name }.into());
    }
    Ok(())
}

/// The sessions that record these probes.
fn sessions_of(chain: &[(ProbeId, SessionId)]) -> SessionSet {
    let sessions = chain.iter().map(|(_, session)| session.0);
    sessions.fold(SessionSet::default(), SessionSet::with)
}
