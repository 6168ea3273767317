//! Probes: what a session captures at places that a user has named.

use crate::engine::ApplyError;
use crate::engine::probes::{NewProbe, Probe, ProbeError, ProbeId};
use crate::session::SessionId;
use log::Level;
use trace::export::probes::{ProbeNote, ValueNote};

use super::carry_out::Carried;
use super::status::{FieldStatus, ProbeList, ProbeStatus, ProbesChanged, microseconds};
use super::{Tracing, TracingError};
use crate::guest::Guest;

/// How often a change is tried while a vCPU stands where text is to be replaced.
const TRIES: u32 = 50;

/// A probe as its user sees it.
#[derive(Debug, Clone)]
pub(super) struct SetProbe {
    pub id: ProbeId,
    /// The session that records it while it is started.
    pub session: String,
    /// As the user wrote it.
    pub text: String,
    pub enabled: bool,
}

/// Which probes an operation is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SomeProbes {
    /// By their numbers.
    pub ids: Vec<u32>,
    /// All of this session, instead.
    pub all_of: Option<String>,
}

impl Tracing {
    /// Every probe.
    #[must_use]
    pub fn probes(&self, guest: &impl Guest) -> ProbeList {
        let probes = self.probes.iter().map(|set| self.show_probe(set));
        ProbeList {
            probes: probes.collect(),
            exits: guest.detours(),
        }
    }

    fn show_probe(&self, set: &SetProbe) -> ProbeStatus {
        let Ok(probe) = self.engine.probe(set.id) else {
            return ProbeStatus::default();
        };
        let session = self
            .sessions
            .iter()
            .find(|session| session.name == set.session);
        let state = match (probe.is_gone, set.enabled, probe.session) {
            (true, ..) => "gone",
            (_, false, _) => "disabled",
            (_, true, Some(_)) => "on",
            (_, true, None) => "off",
        };
        let values = probe.capture.values.iter().map(|value| FieldStatus {
            name: value.name.to_string(),
            r#type: value.kind.name().to_owned(),
        });
        ProbeStatus {
            id: set.id.0,
            name: probe.name.to_string(),
            session: set.session.clone(),
            probe: set.text.clone(),
            address: probe.address.to_string(),
            place: self.probe_place(probe),
            tactic: probe.place.tactic.to_string(),
            state: state.to_owned(),
            hits: session.and_then(|session| session.hits(probe.event)),
            values: values.collect(),
        }
    }

    /// Where a probe is, as function and offset.
    fn probe_place(&self, probe: &Probe) -> String {
        let image = &self.shared.image;
        match image.function(probe.place.function) {
            Some(function) => match probe.address.0.wrapping_sub(function.address.0) {
                0 => function.display.to_string(),
                offset => format!("{}+{offset:#x}", function.display),
            },
            None => probe.address.to_string(),
        }
    }

    /// What the trace says of a probe.
    fn note(&self, set: &SetProbe) -> ProbeNote {
        let ProbeStatus {
            id,
            name,
            probe,
            address,
            place,
            tactic,
            values,
            ..
        } = self.show_probe(set);
        let values = values.into_iter().map(|value| ValueNote {
            name: value.name,
            r#type: value.r#type,
        });
        ProbeNote {
            id,
            name,
            probe,
            address,
            place,
            tactic,
            values: values.collect(),
        }
    }

    /// Has a session that is started record these probes: all of them or none. A `tactic` says how they are to be
    /// put into the text.
    ///
    /// # Errors
    /// A [`TracingError`] that names the probe, the place or the session.
    pub fn add_probes(
        &mut self,
        guest: &impl Guest,
        session: &str,
        probes: &[String],
        tactic: Option<u8>,
    ) -> Result<ProbesChanged, TracingError> {
        let index = self.find(session)?;
        self.at(index)?.recording()?;
        let set = self.register_probes(index, probes, tactic)?;
        let ids: Vec<ProbeId> = set.iter().map(|set| set.id).collect();
        self.probes.extend(set);
        match self.record_probes(guest, index, &ids, true) {
            Ok(carried) => Ok(self.changed(&ids, &carried)),
            Err(error) => {
                self.forget(&ids);
                Err(error)
            }
        }
    }

    /// Registers what was written down in `texts`, for a session; nobody records it yet.
    fn register_probes(
        &mut self,
        index: usize,
        texts: &[String],
        tactic: Option<u8>,
    ) -> Result<Vec<SetProbe>, TracingError> {
        let session = self.at(index)?.name.clone();
        let new = texts
            .iter()
            .map(|text| self.shared.read_probe(text, tactic));
        let mut new: Vec<Vec<NewProbe>> = new.collect::<Result<_, _>>()?;
        if let Some(room) = self.room_of_records(index)? {
            let all = new.iter_mut().flatten();
            all.for_each(|one| one.capture.shorten(room));
        }
        let mut set: Vec<SetProbe> = Vec::with_capacity(new.len());
        let each = new.into_iter().zip(texts);
        for (new, text) in each.flat_map(|(new, text)| new.into_iter().map(move |one| (one, text)))
        {
            match self.engine.add_probe(new) {
                Ok(id) => set.push(SetProbe {
                    id,
                    session: session.clone(),
                    text: text.clone(),
                    enabled: true,
                }),
                Err(error) => {
                    let ids: Vec<ProbeId> = set.iter().map(|set| set.id).collect();
                    self.engine.forget_probes(&ids);
                    return Err(error.into());
                }
            }
        }
        Ok(set)
    }

    /// Bytes that a record of a session has for what probes say; none while they can still be as many as
    /// its first probes need.
    fn room_of_records(&mut self, index: usize) -> Result<Option<u64>, TracingError> {
        let session = self.at(index)?;
        let asked = session.options.record_bytes;
        let Ok(id) = session.recording() else {
            return Ok(asked);
        };
        let events = self.engine.session(id)?.events.as_ref();
        let room = events.map(|events| 1 << events.recorder.payload_log2);
        Ok(room.or(asked))
    }

    fn forget(&mut self, ids: &[ProbeId]) {
        self.probes.retain(|set| !ids.contains(&set.id));
        self.engine.forget_probes(ids);
    }

    fn changed(&self, ids: &[ProbeId], carried: &Carried) -> ProbesChanged {
        let changed = self.probes.iter().filter(|set| ids.contains(&set.id));
        ProbesChanged {
            probes: changed.map(|set| self.show_probe(set)).collect(),
            pauses: carried.pauses,
            pause_us: microseconds(carried.longest),
        }
    }

    /// The probes that were named.
    fn some(&self, some: &SomeProbes) -> Result<Vec<ProbeId>, TracingError> {
        if let Some(session) = &some.all_of {
            let session = &self
                .sessions
                .get(self.find(session)?)
                .ok_or(TracingError::NoSuchIndex)?
                .name;
            let of = self.probes.iter().filter(|set| set.session == *session);
            return Ok(of.map(|set| set.id).collect());
        }
        let known = |id: &u32| {
            let id = ProbeId(*id);
            self.engine.probe(id).map(|_| id)
        };
        let mut ids: Vec<ProbeId> = some.ids.iter().map(known).collect::<Result<_, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Takes probes out and forgets them.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing has changed.
    pub fn remove_probes(
        &mut self,
        guest: &impl Guest,
        some: &SomeProbes,
    ) -> Result<ProbesChanged, TracingError> {
        let ids = self.some(some)?;
        let wanted: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
        let carried = self.switch_probes(guest, &wanted)?;
        let changed = self.changed(&ids, &carried);
        self.forget(&ids);
        Ok(changed)
    }

    /// Has probes recorded, or not recorded but kept.
    ///
    /// # Errors
    /// A [`TracingError`]; then nothing has changed.
    pub fn enable_probes(
        &mut self,
        guest: &impl Guest,
        some: &SomeProbes,
        on: bool,
    ) -> Result<ProbesChanged, TracingError> {
        let mut ids = self.some(some)?;
        let is_so = |id: &ProbeId| {
            self.probes
                .iter()
                .any(|set| set.id == *id && set.enabled == on)
        };
        ids.retain(|id| !is_so(id));
        let wanted: Vec<_> = ids
            .iter()
            .map(|id| (*id, self.recorder_of(*id).filter(|_| on)))
            .collect();
        let carried = self.switch_probes(guest, &wanted)?;
        for set in self.probes.iter_mut().filter(|set| ids.contains(&set.id)) {
            set.enabled = on;
        }
        Ok(self.changed(&ids, &carried))
    }

    /// The session of a probe, if it is started.
    fn recorder_of(&self, id: ProbeId) -> Option<SessionId> {
        let set = self.probes.iter().find(|set| set.id == id)?;
        let session = self.sessions.iter();
        let session = session.clone().find(|one| one.name == set.session)?;
        session.started().ok()
    }

    /// Has a session that is started record these probes, or not record them any more.
    fn record_probes(
        &mut self,
        guest: &impl Guest,
        index: usize,
        ids: &[ProbeId],
        on: bool,
    ) -> Result<Carried, TracingError> {
        if ids.is_empty() {
            return Ok(Carried::default());
        }
        let session = self.at(index)?.recording()?;
        if on {
            let of = |id: &ProbeId| {
                let probe = self.engine.probe(*id);
                probe.map_or(0, |probe| probe.capture.payload_bytes())
            };
            let needed = ids.iter().map(of).max();
            let bytes = self.at(index)?.payload_bytes(needed);
            self.open_events(guest, index, session, bytes)?;
            self.reach_memory(guest, ids)?;
            let is_return = |id: &ProbeId| self.engine.probe(*id).is_ok_and(|one| one.is_return);
            if ids.iter().any(is_return) {
                let mut stopped = guest.stop()?;
                self.engine.hook_returns(&mut stopped)?;
            }
            let notes: Vec<ProbeNote> = self
                .probes
                .iter()
                .filter(|set| ids.contains(&set.id))
                .map(|set| self.note(set))
                .collect();
            let formats = self.engine.event_formats();
            for session in &self.sessions {
                session.know_events(formats);
            }
            self.at(index)?.note_probes(&notes);
        }
        let wanted: Vec<_> = ids.iter().map(|id| (*id, on.then_some(session))).collect();
        self.switch_probes(guest, &wanted)
    }

    /// Makes what these probes need to capture values in memory.
    fn reach_memory(&mut self, guest: &impl Guest, ids: &[ProbeId]) -> Result<(), TracingError> {
        let needs_memory = |id: &ProbeId| {
            let probe = self.engine.probe(*id);
            probe.is_ok_and(|probe| probe.capture.needs_memory())
        };
        if self.engine.reach().is_none() && ids.iter().any(needs_memory) {
            let mut stopped = guest.stop()?;
            self.engine.make_reach(&mut stopped)?;
        }
        Ok(())
    }

    /// A session begins: has it record the probes that it was made for, and those that it has.
    pub(super) fn begin_probes(
        &mut self,
        guest: &impl Guest,
        index: usize,
    ) -> Result<(), TracingError> {
        let wanted = std::mem::take(&mut self.at(index)?.options.probe);
        let tactic = self.at(index)?.options.probe_tactic;
        let registered = self.register_probes(index, &wanted, tactic);
        if registered.is_err() {
            self.at(index)?.options.probe = wanted;
        }
        self.probes.extend(registered?);
        let ids = self.probes_of(index)?;
        self.record_probes(guest, index, &ids, true).map(drop)
    }

    /// A session ends: takes its probes out.
    pub(super) fn end_probes(
        &mut self,
        guest: &impl Guest,
        index: usize,
    ) -> Result<(), TracingError> {
        let ids = self.probes_of(index)?;
        let wanted: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
        self.switch_probes(guest, &wanted).map(drop)
    }

    /// A session is gone, and its probes with it.
    pub(super) fn forget_probes_of(&mut self, session: &str) {
        let of = self.probes.iter().filter(|set| set.session == session);
        let ids: Vec<ProbeId> = of.map(|set| set.id).collect();
        self.forget(&ids);
    }

    /// The enabled probes of a session whose text is there.
    fn probes_of(&mut self, index: usize) -> Result<Vec<ProbeId>, TracingError> {
        let name = self.at(index)?.name.clone();
        let is_there = |set: &&SetProbe| {
            let probe = self.engine.probe(set.id);
            set.session == name && set.enabled && probe.is_ok_and(|probe| !probe.is_gone)
        };
        let ids = self.probes.iter().filter(is_there).map(|set| set.id);
        Ok(ids.collect())
    }

    /// Says which probes have gone with their text.
    pub(super) fn look_for_lost_probes(&mut self) {
        for id in self.engine.take_lost_probes() {
            let Ok(probe) = self.engine.probe(id) else {
                continue;
            };
            let remark = format!(
                "probe {} ({}) is gone: the guest has freed the text it was in",
                id.0, probe.name
            );
            self.remarks.say(Level::Warn, remark);
        }
    }

    fn switch_probes(
        &mut self,
        guest: &impl Guest,
        wanted: &[(ProbeId, Option<SessionId>)],
    ) -> Result<Carried, TracingError> {
        let mut carried = Carried::default();
        for left in (0..TRIES).rev() {
            self.engine.look(guest.memory());
            self.look_for_lost_probes();
            let memory = &mut guest.memory().clone();
            let plan = self.engine.plan_probes(memory, wanted)?;
            if plan.is_empty() {
                break;
            }
            match self.carry_out(guest, plan, &mut carried) {
                Err(TracingError::Apply(error)) if left > 0 && is_passing(&error) => {}
                other => return other.map(|()| carried),
            }
        }
        Ok(carried)
    }
}

/// Whether some thread just stood in the way.
fn is_passing(error: &ApplyError) -> bool {
    match error {
        ApplyError::Transaction(error) => error.stuck.is_empty() && error.cause.passes(),
        // Text has gone since: there is less to be done now.
        ApplyError::Stale | ApplyError::Probe(ProbeError::Gone { .. }) => true,
        _ => false,
    }
}
