//! Probes: what a session captures at places that a user has named.

use crate::engine::ApplyError;
use crate::engine::Foothold;
use crate::engine::probes::{NewProbe, Probe, ProbeError, ProbeId};
use crate::session::SessionId;
use image::Image;
use log::Level;
use trace::export::probes::{ProbeNote, ValueNote};

use super::attachment::Attachment;
use super::carry_out::Carried;
use super::{Tracing, TracingError};
use crate::guest::Guest;
use status::{FieldStatus, ProbeList, ProbeStatus, ProbesChanged, microseconds};

/// How often a change is tried while a vCPU stands where text is to be replaced.
const TRIES: u32 = 50;

/// A probe as its user sees it.
#[derive(Debug, Clone)]
struct SetProbe {
    id: ProbeId,
    /// The session that records it while it is started.
    session: String,
    /// As the user wrote it.
    text: String,
    enabled: bool,
}

/// The probes of all sessions, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct SetProbes(Vec<SetProbe>);

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
        ProbeList {
            probes: self.probes.show(|_| true, &self.attachment),
            exits: guest.detours(),
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
        let on = &mut self.attachment;
        self.probes.add(on, guest, session, probes, tactic)
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
        self.probes.remove(&mut self.attachment, guest, some)
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
        self.probes.enable(&mut self.attachment, guest, some, on)
    }
}

impl SetProbe {
    /// What it does now.
    fn show(&self, on: &Attachment) -> ProbeStatus {
        let Ok(probe) = on.engine.points().probes().get(self.id) else {
            return ProbeStatus::default();
        };
        let session = on.sessions.named(&self.session);
        let state = match (probe.is_lost, self.enabled, probe.session) {
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
            id: self.id.0,
            name: probe.name.to_string(),
            session: self.session.clone(),
            probe: self.text.clone(),
            address: probe.address.to_string(),
            place: place(probe, &on.shared.image),
            tactic: probe.place.tactic.to_string(),
            state: state.to_owned(),
            hits: session.and_then(|session| session.hits(probe.event)),
            values: values.collect(),
        }
    }

    /// What the trace says of it.
    fn note(&self, on: &Attachment) -> ProbeNote {
        let ProbeStatus {
            id,
            name,
            probe,
            address,
            place,
            tactic,
            values,
            ..
        } = self.show(on);
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
}

/// Where a probe is, as function and offset.
fn place(probe: &Probe, image: &Image) -> String {
    match image.function(probe.place.function) {
        Some(function) => match probe.address.0.wrapping_sub(function.address.0) {
            0 => function.display.to_string(),
            offset => format!("{}+{offset:#x}", function.display),
        },
        None => probe.address.to_string(),
    }
}

impl SetProbes {
    /// Those that `is_meant` says, as they are now.
    fn show(&self, is_meant: impl Fn(&SetProbe) -> bool, on: &Attachment) -> Vec<ProbeStatus> {
        let meant = self.0.iter().filter(|set| is_meant(set));
        meant.map(|set| set.show(on)).collect()
    }

    /// How many a session has.
    pub fn count_of(&self, session: &str) -> usize {
        let of = self.0.iter().filter(|set| set.session == session);
        of.count()
    }

    /// Adds probes to a session that is started.
    fn add(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        session: &str,
        probes: &[String],
        tactic: Option<u8>,
    ) -> Result<ProbesChanged, TracingError> {
        let index = on.sessions.find(session)?;
        on.sessions.at(index)?.recording()?;
        let set = register(on, index, probes, tactic)?;
        let ids: Vec<ProbeId> = set.iter().map(|set| set.id).collect();
        self.0.extend(set);
        match self.record(on, guest, index, &ids) {
            Ok(carried) => Ok(self.changed(on, &ids, &carried)),
            Err(error) => {
                self.forget(on, &ids);
                Err(error)
            }
        }
    }

    fn forget(&mut self, on: &mut Attachment, ids: &[ProbeId]) {
        self.0.retain(|set| !ids.contains(&set.id));
        on.engine.points_mut().forget_probes(ids);
    }

    fn changed(&self, on: &Attachment, ids: &[ProbeId], carried: &Carried) -> ProbesChanged {
        ProbesChanged {
            probes: self.show(|set| ids.contains(&set.id), on),
            pauses: carried.pauses,
            pause_us: microseconds(carried.longest),
        }
    }

    /// The probes that were named.
    fn some(&self, on: &Attachment, some: &SomeProbes) -> Result<Vec<ProbeId>, TracingError> {
        if let Some(session) = &some.all_of {
            let session = &on.sessions.get(session)?.name;
            let of = self.0.iter().filter(|set| set.session == *session);
            return Ok(of.map(|set| set.id).collect());
        }
        let known = |id: &u32| {
            let id = ProbeId(*id);
            on.engine.points().probes().get(id).map(|_| id)
        };
        let mut ids: Vec<ProbeId> = some.ids.iter().map(known).collect::<Result<_, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    fn remove(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        some: &SomeProbes,
    ) -> Result<ProbesChanged, TracingError> {
        let ids = self.some(on, some)?;
        let wanted: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
        let carried = switch(on, guest, &wanted)?;
        let changed = self.changed(on, &ids, &carried);
        self.forget(on, &ids);
        Ok(changed)
    }

    fn enable(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        some: &SomeProbes,
        wants: bool,
    ) -> Result<ProbesChanged, TracingError> {
        let mut ids = self.some(on, some)?;
        let is_so = |id: &ProbeId| {
            self.0
                .iter()
                .any(|set| set.id == *id && set.enabled == wants)
        };
        ids.retain(|id| !is_so(id));
        let wanted: Vec<_> = ids
            .iter()
            .map(|id| (*id, self.recorder_of(on, *id).filter(|_| wants)))
            .collect();
        let carried = switch(on, guest, &wanted)?;
        for set in self.0.iter_mut().filter(|set| ids.contains(&set.id)) {
            set.enabled = wants;
        }
        Ok(self.changed(on, &ids, &carried))
    }

    /// The session of a probe, if it is started.
    fn recorder_of(&self, on: &Attachment, id: ProbeId) -> Option<SessionId> {
        let set = self.0.iter().find(|set| set.id == id)?;
        on.sessions.named(&set.session)?.started().ok()
    }

    /// Has a session that is started record these probes.
    fn record(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
        ids: &[ProbeId],
    ) -> Result<Carried, TracingError> {
        if ids.is_empty() {
            return Ok(Carried::default());
        }
        let session = on.sessions.at(index)?.recording()?;
        let of = |id: &ProbeId| {
            let probe = on.engine.points().probes().get(*id);
            probe.map_or(0, |probe| probe.capture.payload_bytes())
        };
        let needed = ids.iter().map(of).max();
        let bytes = on.sessions.at(index)?.payload_bytes(needed);
        on.open_events(guest, index, session, bytes)?;
        reach_memory(on, guest, ids)?;
        let is_return = |id: &ProbeId| {
            on.engine
                .points()
                .probes()
                .get(*id)
                .is_ok_and(|one| one.is_return)
        };
        if ids.iter().any(is_return) {
            let mut stopped = guest.stop()?;
            on.engine.foothold_mut()?.make_mirror(&mut stopped)?;
        }
        let notes: Vec<ProbeNote> = self
            .0
            .iter()
            .filter(|set| ids.contains(&set.id))
            .map(|set| set.note(on))
            .collect();
        let formats = on.engine.points().formats();
        on.sessions.know_events(formats);
        on.sessions.at(index)?.note_probes(&notes);
        let wanted: Vec<_> = ids.iter().map(|id| (*id, Some(session))).collect();
        switch(on, guest, &wanted)
    }

    /// A session begins: has it record the probes that it was made for, and those that it has.
    pub fn begin(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
    ) -> Result<(), TracingError> {
        let wanted = std::mem::take(&mut on.sessions.at(index)?.options.probe);
        let tactic = on.sessions.at(index)?.options.probe_tactic;
        let registered = register(on, index, &wanted, tactic);
        if registered.is_err() {
            on.sessions.at(index)?.options.probe = wanted;
        }
        self.0.extend(registered?);
        let ids = self.ids_of(on, index)?;
        self.record(on, guest, index, &ids).map(drop)
    }

    /// The stubs of a session do something else from now on: has its probes lead to them.
    pub fn again(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
    ) -> Result<(), TracingError> {
        let ids = self.ids_of(on, index)?;
        self.record(on, guest, index, &ids).map(drop)
    }

    /// A session ends: takes its probes out.
    pub fn end(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
    ) -> Result<(), TracingError> {
        let ids = self.ids_of(on, index)?;
        let wanted: Vec<_> = ids.iter().map(|id| (*id, None)).collect();
        switch(on, guest, &wanted).map(drop)
    }

    /// A session is gone, and its probes with it.
    pub fn forget_of(&mut self, on: &mut Attachment, session: &str) {
        let of = self.0.iter().filter(|set| set.session == session);
        let ids: Vec<ProbeId> = of.map(|set| set.id).collect();
        self.forget(on, &ids);
    }

    /// The enabled probes of a session whose text is there.
    fn ids_of(&self, on: &mut Attachment, index: usize) -> Result<Vec<ProbeId>, TracingError> {
        let name = on.sessions.at(index)?.name.clone();
        let is_there = |set: &&SetProbe| {
            let probe = on.engine.points().probes().get(set.id);
            set.session == name && set.enabled && probe.is_ok_and(|probe| !probe.is_lost)
        };
        let ids = self.0.iter().filter(is_there).map(|set| set.id);
        Ok(ids.collect())
    }
}

impl Attachment {
    /// Says which probes have gone with their text.
    pub fn look_for_lost_probes(&mut self) {
        for id in self.engine.take_lost_probes() {
            let Ok(probe) = self.engine.points().probes().get(id) else {
                continue;
            };
            let remark = format!(
                "probe {} ({}) is gone: the guest has freed the text it was in",
                id.0, probe.name
            );
            self.remarks.say(Level::Warn, remark);
        }
    }
}

/// Registers what was written down in `texts`, for a session; nobody records it yet.
fn register(
    on: &mut Attachment,
    index: usize,
    texts: &[String],
    tactic: Option<u8>,
) -> Result<Vec<SetProbe>, TracingError> {
    let session = on.sessions.at(index)?.name.clone();
    let new = texts.iter().map(|text| on.shared.read_probe(text, tactic));
    let mut new: Vec<Vec<NewProbe>> = new.collect::<Result<_, _>>()?;
    if let Some(room) = room_of_records(on, index)? {
        let all = new.iter_mut().flatten();
        all.for_each(|one| one.capture.shorten(room));
    }
    let mut set: Vec<SetProbe> = Vec::with_capacity(new.len());
    let each = new.into_iter().zip(texts);
    for (new, text) in each.flat_map(|(new, text)| new.into_iter().map(move |one| (one, text))) {
        match on.engine.add_probe(new) {
            Ok(id) => set.push(SetProbe {
                id,
                session: session.clone(),
                text: text.clone(),
                enabled: true,
            }),
            Err(error) => {
                let ids: Vec<ProbeId> = set.iter().map(|set| set.id).collect();
                on.engine.points_mut().forget_probes(&ids);
                return Err(error.into());
            }
        }
    }
    Ok(set)
}

/// Bytes that a record of a session has for what probes say; none while they can still be as many as
/// its first probes need.
fn room_of_records(on: &mut Attachment, index: usize) -> Result<Option<u64>, TracingError> {
    let session = on.sessions.at(index)?;
    let asked = session.options.record_bytes;
    let Ok(id) = session.recording() else {
        return Ok(asked);
    };
    let events = on.engine.sessions().get(id)?.events.as_ref();
    let room = events.map(|events| 1 << events.recorder.payload_log2);
    Ok(room.or(asked))
}

/// Makes what these probes need to capture values in memory.
fn reach_memory(
    on: &mut Attachment,
    guest: &impl Guest,
    ids: &[ProbeId],
) -> Result<(), TracingError> {
    let needs_memory = |id: &ProbeId| {
        let probe = on.engine.points().probes().get(*id);
        probe.is_ok_and(|probe| probe.capture.needs_memory())
    };
    if on.engine.foothold().and_then(Foothold::reach).is_none() && ids.iter().any(needs_memory) {
        let mut stopped = guest.stop()?;
        on.engine.foothold_mut()?.make_reach(&mut stopped)?;
    }
    Ok(())
}

/// Has each of these probes recorded by that session, or by none.
fn switch(
    on: &mut Attachment,
    guest: &impl Guest,
    wanted: &[(ProbeId, Option<SessionId>)],
) -> Result<Carried, TracingError> {
    let mut carried = Carried::default();
    for left in (0..TRIES).rev() {
        on.engine.look(guest.memory());
        on.look_for_lost_probes();
        let memory = &mut guest.memory().clone();
        let plan = on.engine.plan_probes(memory, wanted)?;
        if plan.is_empty() {
            break;
        }
        match on.carry_out(guest, plan, &mut carried) {
            Err(TracingError::Apply(error)) if left > 0 && is_passing(&error) => {}
            other => return other.map(|()| carried),
        }
    }
    Ok(carried)
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
