//! Probes: what a session captures at places that a user has named.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::capture::Capture;
use crate::engine::ApplyError;
use crate::engine::Foothold;
use crate::engine::probes::{Probe, ProbeError, ProbeId};
use crate::session::SessionId;
use image::Image;
use log::Level;
use trace::export::probes::{ProbeNote, ValueNote};

use super::attachment::Attachment;
use super::stops::Stops;
use super::{Tracing, TracingError};
use crate::guest::Guest;
use status::{FieldStatus, ProbeList, ProbeStatus, ProbesChanged, microseconds};

/// How often a change is tried while a vCPU stands where text is to be replaced.
const TRIES: u32 = 50;

/// A probe as its user sees it.
#[derive(Debug, Clone)]
pub(super) struct SetProbe {
    /// The number that its user knows it by.
    pub id: ProbeId,
    /// The same in the engine; none as long as its module has not come.
    pub now: Option<ProbeId>,
    /// What its event is called.
    pub name: Arc<str>,
    /// The module that it waits for whenever that is not there.
    pub module: Option<Arc<str>>,
    /// Why it could not be set, or be recorded, when its module came last.
    pub obstacle: Option<String>,
    /// The session that records it while it is started.
    pub session: String,
    /// As the user wrote it.
    pub text: String,
    /// How it is to be put into the text.
    pub tactic: Option<u8>,
    pub enabled: bool,
}

/// The probes of all sessions, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct SetProbes(pub(super) Vec<SetProbe>);

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
    /// What of it is in the engine, in text that is there.
    pub fn there<'a>(&self, on: &'a Attachment) -> Option<&'a Probe> {
        self.known(on).filter(|probe| !probe.is_lost)
    }

    fn known<'a>(&self, on: &'a Attachment) -> Option<&'a Probe> {
        on.engine.points().probes().get(self.now?).ok()
    }

    /// What it does now.
    fn show(&self, on: &Attachment) -> ProbeStatus {
        let known = self.known(on);
        let there = self.there(on);
        let state = match (there, self.enabled) {
            (None, _) if self.module.is_some() => "waiting",
            (None, _) => "gone",
            (Some(_), false) => "disabled",
            (Some(probe), true) if probe.session.is_some() => "on",
            (Some(_), true) => "off",
        };
        let waits_for = self.module.clone().filter(|_| there.is_none());
        // What has gone for good says where it was.
        let shown = there.or(known.filter(|_| waits_for.is_none()));
        let session = on.sessions.named(&self.session);
        let is_started = session.is_some_and(|session| session.recording().is_ok());
        let is_kept_out = waits_for.is_some() || state == "off" && is_started;
        let values = known.into_iter().flat_map(|probe| &probe.capture.values);
        let values = values.map(|value| FieldStatus {
            name: value.name.to_string(),
            r#type: value.kind.name().to_owned(),
        });
        ProbeStatus {
            id: self.id.0,
            name: self.name.to_string(),
            session: self.session.clone(),
            probe: self.text.clone(),
            address: shown.map(|probe| probe.address.to_string()),
            place: shown.map(|probe| place(probe, &on.shared.image)),
            tactic: shown.map(|probe| probe.place.tactic.to_string()),
            state: state.to_owned(),
            waits_for: waits_for.as_deref().map(str::to_owned),
            reason: self.obstacle.clone().filter(|_| is_kept_out),
            hits: known.and_then(|probe| session?.hits(probe.event)),
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
            address: address.unwrap_or_default(),
            place: place.unwrap_or_default(),
            is_return: self.known(on).map(|probe| probe.is_return),
            tactic: tactic.unwrap_or_default(),
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
        let set = self.register(on, index, probes, tactic)?;
        let ids: Vec<ProbeId> = set.iter().map(|set| set.id).collect();
        self.0.extend(set);
        let stops = &mut Stops::default();
        match self.record(on, guest, index, &ids, stops) {
            Ok(()) => Ok(self.changed(on, &ids, *stops)),
            Err(error) => {
                self.forget(on, &ids);
                Err(error)
            }
        }
    }

    fn forget(&mut self, on: &mut Attachment, ids: &[ProbeId]) {
        let now = self.now(ids);
        self.0.retain(|set| !ids.contains(&set.id));
        on.engine.points_mut().forget_probes(&now);
    }

    /// What these are in the engine.
    fn now(&self, ids: &[ProbeId]) -> Vec<ProbeId> {
        let meant = self.0.iter().filter(|set| ids.contains(&set.id));
        meant.filter_map(|set| set.now).collect()
    }

    fn changed(&self, on: &Attachment, ids: &[ProbeId], stops: Stops) -> ProbesChanged {
        ProbesChanged {
            probes: self.show(|set| ids.contains(&set.id), on),
            pauses: stops.count,
            pause_us: microseconds(stops.longest),
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
            let mut all = self.0.iter();
            let found = all.find(|set| set.id.0 == *id).map(|set| set.id);
            found.ok_or(ProbeError::NoSuchProbe(*id))
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
        let stops = &mut Stops::default();
        self.record_none(on, guest, &ids, stops)?;
        let changed = self.changed(on, &ids, *stops);
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
        let stops = &mut Stops::default();
        match wants {
            true => self.record_each(on, guest, &ids, stops)?,
            false => self.record_none(on, guest, &ids, stops)?,
        }
        for set in self.0.iter_mut().filter(|set| ids.contains(&set.id)) {
            set.enabled = wants;
        }
        Ok(self.changed(on, &ids, *stops))
    }

    /// Has each session that is started record those of these probes that are its own, which nobody records: all of them or none.
    fn record_each(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        ids: &[ProbeId],
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let meant = self.0.iter().filter(|set| ids.contains(&set.id));
        let mut sessions: BTreeMap<&str, Vec<ProbeId>> = BTreeMap::new();
        for set in meant {
            sessions.entry(&set.session).or_default().push(set.id);
        }
        let mut recorded = Vec::new();
        for (session, own) in sessions {
            let index = on.sessions.find(session)?;
            if on.sessions.at(index)?.recording().is_err() {
                continue;
            }
            recorded.extend_from_slice(&own);
            if let Err(error) = self.record(on, guest, index, &own, stops) {
                self.record_none(on, guest, &recorded, stops)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has these probes recorded by nobody.
    fn record_none(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        ids: &[ProbeId],
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let now = self.now(ids).into_iter();
        let wanted: Vec<_> = now.map(|id| (id, None)).collect();
        switch(on, guest, &wanted, stops)
    }

    /// Has a session that is started record these probes.
    pub(super) fn record(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
        ids: &[ProbeId],
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let meant = self.0.iter().filter(|set| ids.contains(&set.id));
        let meant: Vec<&SetProbe> = meant.filter(|set| set.there(on).is_some()).collect();
        if meant.is_empty() {
            return Ok(());
        }
        let ids: Vec<ProbeId> = meant.iter().filter_map(|set| set.now).collect();
        let session = on.sessions.at(index)?.recording()?;
        let of = |id: &ProbeId| {
            let probe = on.engine.points().probes().get(*id);
            probe.map_or(0, |probe| probe.capture.payload_bytes())
        };
        let needed = ids.iter().map(of).max();
        let bytes = on.sessions.at(index)?.payload_bytes(needed);
        on.open_events(guest, index, session, bytes, stops)?;
        reach_memory(on, guest, &ids, stops)?;
        reach_stacks(on, guest, &ids, stops)?;
        let is_return = |id: &ProbeId| {
            on.engine
                .points()
                .probes()
                .get(*id)
                .is_ok_and(|one| one.is_return)
        };
        if ids.iter().any(is_return) {
            let foothold = on.engine.foothold_mut()?;
            stops.during(guest, |stopped| foothold.make_mirror(stopped))??;
        }
        let notes: Vec<ProbeNote> = meant.iter().map(|set| set.note(on)).collect();
        let formats = on.engine.points().formats();
        on.sessions.know_events(formats);
        on.sessions.at(index)?.note_probes(&notes);
        let wanted: Vec<_> = ids.iter().map(|id| (*id, Some(session))).collect();
        switch(on, guest, &wanted, stops)
    }

    /// A session begins: has it record the probes that it was made for, and those that it has.
    pub fn begin(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let wanted = std::mem::take(&mut on.sessions.at(index)?.options.probe);
        let tactic = on.sessions.at(index)?.options.probe_tactic;
        let registered = self.register(on, index, &wanted, tactic);
        if registered.is_err() {
            on.sessions.at(index)?.options.probe = wanted;
        }
        self.0.extend(registered?);
        let ids = self.ids_of(on, index)?;
        self.record(on, guest, index, &ids, stops)?;
        // Whatever was in the way of those that are there is not any more.
        for set in self.0.iter_mut().filter(|set| ids.contains(&set.id)) {
            set.obstacle = None;
        }
        Ok(())
    }

    /// The stubs of a session do something else from now on: has its probes lead to them.
    pub fn again(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let ids = self.ids_of(on, index)?;
        self.record(on, guest, index, &ids, stops)
    }

    /// A session ends: takes its probes out.
    pub fn end(
        &self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let ids = self.ids_of(on, index)?;
        self.record_none(on, guest, &ids, stops)
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
        let is_there =
            |set: &&SetProbe| set.session == name && set.enabled && set.there(on).is_some();
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
            let function = self.shared.image.function(probe.place.function);
            let module = function.and_then(|function| function.module.as_deref());
            let (level, why) = match (probe.waits_for_module, module) {
                (true, Some(module)) => (Level::Info, format!("waits for module {module} again")),
                _ => {
                    let why = "is gone: the guest has freed the text it was in";
                    (Level::Warn, why.to_owned())
                }
            };
            // The number that its user knows may be another one: it is older than its first place.
            let number = match probe.waits_for_module {
                true => String::new(),
                false => format!(" {}", id.0),
            };
            let remark = format!("probe{number} ({}) {why}", probe.name);
            self.remarks.say(level, remark);
        }
    }
}

/// Bytes that a record of a session has for what probes say; none while they can still be as many as
/// its first probes need.
pub(super) fn room_of_records(
    on: &mut Attachment,
    index: usize,
) -> Result<Option<u64>, TracingError> {
    let session = on.sessions.at(index)?;
    let asked = session.options.record_bytes;
    let Ok(id) = session.recording() else {
        return Ok(asked);
    };
    let events = on.engine.sessions().get(id)?.events.as_ref();
    let room = events.map(|events| 1 << events.recorder.payload_log2);
    Ok(room.or(asked))
}

/// Whether it is so of what any of these probes captures.
fn any_captures(on: &Attachment, ids: &[ProbeId], is_so: fn(&Capture) -> bool) -> bool {
    let probes = on.engine.points().probes();
    let mut captures = ids
        .iter()
        .filter_map(|id| Some(&probes.get(*id).ok()?.capture));
    captures.any(|capture| is_so(capture))
}

/// Makes what these probes need to capture values in memory.
fn reach_memory(
    on: &mut Attachment,
    guest: &impl Guest,
    ids: &[ProbeId],
    stops: &mut Stops,
) -> Result<(), TracingError> {
    let has_reach = on.engine.foothold().and_then(Foothold::reach).is_some();
    if !has_reach && any_captures(on, ids, Capture::needs_memory) {
        let foothold = on.engine.foothold_mut()?;
        stops.during(guest, |stopped| foothold.make_reach(stopped))??;
    }
    Ok(())
}

/// Makes what these probes need to copy stacks.
fn reach_stacks(
    on: &mut Attachment,
    guest: &impl Guest,
    ids: &[ProbeId],
    stops: &mut Stops,
) -> Result<(), TracingError> {
    if any_captures(on, ids, Capture::needs_stack) {
        on.name_stacks(guest.memory())?;
        let foothold = on.engine.foothold_mut()?;
        stops.during(guest, |stopped| foothold.make_stacks(stopped))??;
    }
    Ok(())
}

/// Has each of these probes recorded by that session, or by none.
fn switch(
    on: &mut Attachment,
    guest: &impl Guest,
    wanted: &[(ProbeId, Option<SessionId>)],
    stops: &mut Stops,
) -> Result<(), TracingError> {
    for left in (0..TRIES).rev() {
        on.engine.look(guest.memory());
        on.look_for_lost_probes();
        let memory = &mut guest.memory().clone();
        let plan = on.engine.plan_probes(memory, wanted)?;
        if plan.is_empty() {
            break;
        }
        match on.carry_out(guest, plan, stops) {
            Err(TracingError::Apply(error)) if left > 0 && is_passing(&error) => {}
            other => return other.map(drop),
        }
    }
    Ok(())
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
