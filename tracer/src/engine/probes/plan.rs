//! Which probes are recorded: the plan, made while the guest runs, with the stubs that it needs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use image::Site;
use terms::addr::Gva;
use terms::event_format::EventFormat;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::{Probe, ProbeError, ProbeId, Probes};
use crate::engine::ApplyError;
use crate::engine::plan::{Plan, PlanStep, Recorded, What};
use crate::engine::planning::Planning;
use crate::engine::points::Points;
use crate::event_formats::EventFormats;
use crate::points::breakpoints::{self, Server};
use crate::points::functions::{self, Recording, after};
use crate::points::probes;
use crate::points::tactic::{JumpPlace, Tactic};
use crate::session::SessionId;
use crate::stub::capture::CapturePart;
use crate::stub::store::{Piece, StoreError, StubStore};
use crate::target::WindowMemory;
use crate::text::edit::{Edit, Lead};

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
            let is_anew = after.is_some_and(|id| with.sessions.anew().has(id.0));
            if is_anew && !probe.is_lost {
                changed.insert(probe.place.at, probe.place.clone());
            }
            if probe.session != *after && !probe.is_lost {
                let what = What::Recorded(Recorded {
                    probe: *id,
                    before: probe.session,
                    after: *after,
                });
                recorded.push(PlanStep::of(what, Vec::new()));
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
                sites.extend(self.plan_site(with, place.function, &chain, returns)?);
            } else {
                let resume = self.probes.resume(with, &place)?;
                let stub = self.probes.place_chain(with, &chain, resume)?;
                let edits = probes::plan(with.sites, &place, stub, sessions_of(&chain));
                let edits = edits.map_err(ProbeError::from)?;
                if !edits.is_empty() {
                    let is_breakpoint = place.tactic == Tactic::Breakpoint;
                    places.push(PlanStep::of(What::Place { is_breakpoint }, edits));
                }
            }
        }
        let breakpoints = self.probes.plan_breakpoints(with, &places)?;
        let steps = sites.into_iter().chain(places).chain(breakpoints);
        Ok(Plan::whole(steps.chain(recorded).collect()))
    }

    /// Plans the probes at a function's own site, and at its returns, which its stub hooks.
    fn plan_site<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        function: FunctionId,
        chain: &[(ProbeId, SessionId)],
        returns: Vec<CapturePart>,
    ) -> Result<Option<PlanStep>, ApplyError> {
        let image = with.image;
        let Some(site) = image.site_of(function) else {
            return Ok(None);
        };
        let traced_by = with.sites.sessions(function);
        let captures = self.captures(with, function, traced_by, returns)?;
        let sessions = with.sessions;
        let foothold = with.foothold.as_deref_mut();
        let foothold = foothold.ok_or(ApplyError::NotAttached)?;
        let hook = foothold.hook();
        if captures.exit.is_some() && hook.is_none() {
            return Err(ApplyError::NotAttached);
        }
        let template = |wanted: Recording, store: &mut StubStore| {
            store.template(sessions.stub_spec(&wanted, hook))
        };
        let halts = sessions.halts_of(traced_by, image.function(function));
        let (sites, store) = (&*with.sites, &mut foothold.stubs);
        let is_anew = traced_by.iter().any(|id| sessions.anew().has(id));
        let wanted = ((traced_by, captures, halts), is_anew);
        let own = functions::lead((image, site), sites, wanted, template, store, with.memory)?;
        let own = own.unwrap_or_else(|| {
            let now = *sites.state(function).lead()?;
            // Without the probes that it leads to now.
            Some(Lead {
                to: now.own?,
                recorded_by: SessionSet::default(),
                ..now
            })
        });
        let lead = self.probes.lead_through(with, site, own, chain)?;
        let wanted = functions::wanted(site, with.sites, lead).map_err(StoreError::from)?;
        let edit = with.sites.edit(wanted);
        Ok(edit.map(|edit| PlanStep::one(What::Function(function), edit)))
    }

    /// Where a function's site leads that has to lead to `own`: to there through the probes at it.
    pub fn through_probes<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        site: &Site,
        own: Option<Lead>,
    ) -> Result<Option<Lead>, ApplyError> {
        let here = self
            .probes
            .iter()
            .filter(|probe| probe.place.at == site.address)
            .filter(|probe| !probe.is_lost && !probe.is_return);
        let chain: Vec<_> = here
            .filter_map(|probe| Some((probe.id, probe.session?)))
            .collect();
        self.probes.lead_through(with, site, own, &chain)
    }
}

impl Probes {
    /// Where a function's site leads that has to lead to `own`: to there through these probes.
    fn lead_through<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        site: &Site,
        own: Option<Lead>,
        chain: &[(ProbeId, SessionId)],
    ) -> Result<Option<Lead>, ApplyError> {
        if chain.is_empty() {
            return Ok(own);
        }
        let go_on = match own {
            Some(own) => own.to,
            None => {
                let (foothold, memory) = with.foothold()?;
                after(site, &mut foothold.stubs, memory)?
            }
        };
        let head = self.place_chain(with, chain, go_on)?;
        Ok(head.map(|to| Lead {
            to,
            recorded_by: sessions_of(chain),
            ..own.unwrap_or_default()
        }))
    }

    /// Whether what is displaced at these places can be so at the same time.
    pub(super) fn check_overlaps<'a>(
        &self,
        places: impl Iterator<Item = &'a Gva>,
    ) -> Result<(), ProbeError> {
        let set: BTreeSet<&Gva> = places.collect();
        let probes = self.all.values().filter(|probe| !probe.is_lost);
        let places: BTreeMap<Gva, &JumpPlace> = probes
            .filter(|probe| set.contains(&probe.place.at))
            .map(|probe| (probe.place.at, &probe.place))
            .collect();
        let mut before: Option<&JumpPlace> = None;
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
        places: &[PlanStep],
    ) -> Result<Option<PlanStep>, ApplyError> {
        if !places.iter().any(|step| step.what.is_breakpoint()) {
            return Ok(None);
        }
        let Some(Server::Guest(word)) = self.server(with.image, with.foothold.as_deref()) else {
            return Ok(None);
        };
        let changes: Vec<&Edit> = places.iter().flat_map(|step| &step.edits).collect();
        let all = self.places.breakpoints(with.sites, &changes);
        let table = match all.is_empty() {
            true => Gva(0),
            false => with.place(Piece::Bytes(breakpoints::table(&all).into()))?,
        };
        Ok(Some(PlanStep {
            what: What::Breakpoints,
            edits: Vec::new(),
            word: Some(probes::table_word(with.sites, word, table)),
        }))
    }

    /// The probes at each place, but those of returns, which `session` says are recorded.
    fn chains(
        &self,
        session: impl Fn(&Probe) -> Option<SessionId>,
    ) -> BTreeMap<Gva, Vec<(ProbeId, SessionId)>> {
        let mut chains: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let probes = self.all.values();
        for probe in probes.filter(|probe| !probe.is_lost && !probe.is_return) {
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
        for probe in probes.filter(|probe| probe.is_return && !probe.is_lost) {
            let recorder = session(probe).and_then(|id| with.event_recorder(id, &probe.name).ok());
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
    let recorder = with.event_recorder(session, &probe.name)?;
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
