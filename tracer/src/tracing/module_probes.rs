//! Probes of modules that come: each is set where its text is now, whenever its module has come.

use log::Level;

use super::TracingError;
use super::attachment::Attachment;
use super::patience::is_patching;
use super::probe_text::Read;
use super::probes::{SetProbe, SetProbes, room_of_records};
use super::stops::Stops;
use super::untraced::Came;
use crate::engine::probes::ProbeId;
use crate::guest::Guest;

impl SetProbe {
    /// Whether it is to be set when its module has come: it is not there, or could not be recorded there before.
    fn waits(&self, on: &Attachment) -> bool {
        self.there(on).is_none() || self.obstacle.is_some()
    }
}

impl SetProbes {
    /// These modules have come. Says whether all was done that can be, or the guest was changing its own text: then it is for a later
    /// look at the same modules.
    pub fn modules_came(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        came: &[Came],
        stops: &mut Stops,
    ) -> bool {
        let mut is_done = true;
        for index in 0..self.0.len() {
            let waiting = self.0.get(index).filter(|set| set.waits(on));
            let module = waiting.and_then(|set| set.module.clone());
            let came = module.and_then(|module| came.iter().find(|one| one.module == module));
            let Some(came) = came else {
                continue;
            };
            let set = self.set_again(on, guest, index, stops);
            is_done &= !set.as_ref().is_err_and(is_patching);
            let Some(probe) = self.0.get_mut(index) else {
                continue;
            };
            let said = format!("probe {} ({})", probe.id.0, probe.name);
            let module = &came.module;
            probe.obstacle = set.as_ref().err().map(TracingError::to_string);
            match set {
                Ok(()) => {
                    let late = came.late((on.shared.host.now)());
                    let late = late.map_or(String::new(), |late| {
                        format!(", at most {} ms after it came", late.as_millis())
                    });
                    let remark = format!("{said} is set in module {module}{late}");
                    on.remarks.say(Level::Info, remark);
                }
                Err(why) => {
                    let remark = format!("{said} is not set in module {module}: {why}");
                    on.remarks.say(Level::Warn, remark);
                }
            }
        }
        is_done
    }

    /// Puts a probe where its text is now, if it is not there, and has its session record it if that is started.
    fn set_again(
        &mut self,
        on: &mut Attachment,
        guest: &impl Guest,
        index: usize,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let Some(set) = self.0.get_mut(index) else {
            return Ok(());
        };
        if set.there(on).is_none() {
            set.now = Some(place(on, set)?);
        }
        let (id, enabled) = (set.id, set.enabled);
        let session = on.sessions.find(&set.session)?;
        let is_started = on.sessions.at(session)?.recording().is_ok();
        if !enabled || !is_started {
            return Ok(());
        }
        self.record(on, guest, session, &[id], stops)
    }
}

/// Registers a probe in its module that has come, or puts the one there that was in it before.
fn place(on: &mut Attachment, set: &SetProbe) -> Result<ProbeId, TracingError> {
    let is_gone = |id| on.engine.sites().is_gone(id);
    let read = on.shared.read_probe(&set.text, set.tactic, is_gone)?;
    let other = |what: &str| TracingError::ModuleProbe {
        what: what.to_owned(),
    };
    let Read::Here(new) = read else {
        return Err(other("none of its functions can be traced"));
    };
    let [mut new] = <[_; 1]>::try_from(new).map_err(|_| other("it has several such functions"))?;
    let session = on.sessions.find(&set.session)?;
    if let Some(room) = room_of_records(on, session)? {
        new.capture.shorten(room);
    }
    new.again = set.now;
    Ok(on.engine.add_probe(new)?)
}
