//! Probes that come: what was written for them is registered, as long as there is room.

use std::sync::Arc;

use crate::engine::probes::{ProbeError, ProbeId};
use terms::quantity::plain;

use super::TracingError;
use super::attachment::Attachment;
use super::options::PROBES_MAX;
use super::probe_text::{Read, module_of};
use super::probes::{SetProbe, SetProbes, room_of_records};

impl SetProbes {
    /// Whether there can be so many more.
    fn check_room(&self, more: usize) -> Result<(), TracingError> {
        let there = self.0.len();
        match there + more <= PROBES_MAX {
            true => Ok(()),
            false => Err(TracingError::TooManyProbes {
                wanted: plain(more as u64, "probe"),
                there,
            }),
        }
    }

    /// Registers what was written down in `texts`, if there is room for all of it. One text can be several probes.
    pub(super) fn register(
        &self,
        on: &mut Attachment,
        index: usize,
        texts: &[String],
        tactic: Option<u8>,
    ) -> Result<Vec<SetProbe>, TracingError> {
        self.check_room(texts.len())?;
        let set = register(on, index, texts, tactic)?;
        if let Err(error) = self.check_room(set.len()) {
            let now: Vec<ProbeId> = set.iter().filter_map(|set| set.now).collect();
            on.engine.points_mut().forget_probes(&now);
            return Err(error);
        }
        Ok(set)
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
    let is_gone = |id| on.engine.sites().is_gone(id);
    let read = texts
        .iter()
        .map(|text| on.shared.read_probe(text, tactic, is_gone));
    let read: Vec<Read> = read.collect::<Result<_, _>>()?;
    let room = room_of_records(on, index)?;
    let mut set: Vec<SetProbe> = Vec::with_capacity(read.len());
    let mut add = |read: Read, text: &String| {
        let probe = |id, now, name| SetProbe {
            id,
            now,
            name,
            module: module_of(text),
            obstacle: None,
            session: session.clone(),
            text: text.clone(),
            tactic,
            enabled: true,
        };
        match read {
            Read::Waits { name, .. } => {
                let id = on.engine.points_mut().reserve_probe(Arc::clone(&name))?;
                set.push(probe(id, None, name));
            }
            Read::Here(new) => {
                for mut new in new {
                    if let Some(room) = room {
                        new.capture.shorten(room);
                    }
                    let name = Arc::clone(&new.name);
                    let id = on.engine.add_probe(new)?;
                    set.push(probe(id, Some(id), name));
                }
            }
        }
        Ok::<_, ProbeError>(())
    };
    let mut each = read.into_iter().zip(texts);
    match each.try_for_each(|(read, text)| add(read, text)) {
        Ok(()) => Ok(set),
        Err(error) => {
            let ids: Vec<ProbeId> = set.iter().filter_map(|set| set.now).collect();
            on.engine.points_mut().forget_probes(&ids);
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_probes_and_no_more() {
        let one = |number| SetProbe {
            id: ProbeId(number),
            now: None,
            name: "f".into(),
            module: None,
            obstacle: None,
            session: "default".to_owned(),
            text: "m:f".to_owned(),
            tactic: None,
            enabled: true,
        };
        let probes = SetProbes((1..u32::try_from(PROBES_MAX).unwrap()).map(one).collect());
        probes.check_room(1).unwrap();
        let refused = probes.check_room(2).unwrap_err().to_string();
        assert_eq!(
            refused,
            "2 probes cannot be added to the 4095 that there are: there is room for 4096 of all sessions, remove some"
        );
    }
}
