//! Who records each marker, and the plan that changes it: as with functions, the nop of each place becomes a
//! jump to a stub that has the recorders of all sessions, and goes on after it.

use image::{Image, Marker};
use insn::jump::jump;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use crate::patch::events::OutOfReach;
use crate::text::edit::Edit;
use crate::text::poke::Poke;

/// The state of one marker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MarkerState {
    /// The sessions that record it.
    pub sessions: SessionSet,
    /// The stub of each of its places; none while nobody records it.
    pub stubs: Vec<Gva>,
}

/// What one marker is to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerChange {
    /// Which one.
    pub event: EventId,
    /// Its state when this was planned.
    pub before: MarkerState,
    /// Its state afterwards.
    pub after: MarkerState,
    /// The writes.
    pub edits: Vec<Edit>,
}

impl MarkerChange {
    /// The change that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            event: self.event,
            before: self.after.clone(),
            after: self.before.clone(),
            edits: self.edits.iter().rev().map(Edit::reverse).collect(),
        }
    }
}

/// The states of all markers.
#[derive(Debug)]
pub struct MarkerTable {
    states: Vec<MarkerState>,
    /// The number of the first.
    first: u32,
}

impl MarkerTable {
    /// Nobody records anything.
    #[must_use]
    pub fn new(image: &Image) -> Self {
        Self {
            states: vec![MarkerState::default(); image.markers.len()],
            first: u32::try_from(image.tracepoints.len()).unwrap_or(u32::MAX),
        }
    }

    fn index(&self, event: EventId) -> Option<usize> {
        event.0.checked_sub(self.first)?.try_into().ok()
    }

    /// The state of a marker; none of an event that is no marker.
    #[must_use]
    pub fn state(&self, event: EventId) -> Option<&MarkerState> {
        self.states.get(self.index(event)?)
    }

    /// The markers that a session records.
    pub fn of(&self, session: u8) -> impl Iterator<Item = EventId> {
        let numbered = (self.first..).map(EventId).zip(&self.states);
        numbered.filter_map(move |(event, state)| state.sessions.has(session).then_some(event))
    }

    /// Plans what `after` says for `marker`; none when it is so already.
    ///
    /// # Errors
    /// [`OutOfReach`].
    pub fn plan(
        &self,
        event: EventId,
        marker: &Marker,
        after: MarkerState,
    ) -> Result<Option<MarkerChange>, OutOfReach> {
        let Some(before) = self.state(event).filter(|before| **before != after) else {
            return Ok(None);
        };
        let bytes = |at: Gva, nop, stub: Option<&Gva>| match stub {
            None => Ok(SiteBytes::new(nop)),
            Some(stub) => jump(at, *stub)
                .map(SiteBytes::new)
                .ok_or_else(|| OutOfReach {
                    event: marker.format.name.to_string(),
                    from: at,
                    to: *stub,
                }),
        };
        let mut edits = Vec::new();
        for (index, site) in marker.sites.iter().enumerate() {
            let [stub, next] = [before, &after].map(|state| state.stubs.get(index));
            let poke = Poke {
                function: site.function,
                at: site.at,
                expected: bytes(site.at, site.nop, stub)?,
                new: bytes(site.at, site.nop, next)?,
            };
            edits.push(Edit::new(poke, stub.is_some(), next.is_some()));
        }
        Ok(Some(MarkerChange {
            event,
            before: before.clone(),
            after,
            edits,
        }))
    }

    /// Whether the marker is still as it was when `change` was planned.
    #[must_use]
    pub fn is_current(&self, change: &MarkerChange) -> bool {
        self.state(change.event) == Some(&change.before)
    }

    /// Notes that `change` has been written.
    pub fn applied(&mut self, change: &MarkerChange) {
        let index = self.index(change.event);
        if let Some(state) = index.and_then(|index| self.states.get_mut(index)) {
            state.clone_from(&change.after);
        }
    }
}

#[cfg(test)]
mod tests {
    use image::marker::MarkerSite;
    use insn::nop::NOP5;
    use terms::event_format::EventFormat;
    use terms::function::FunctionId;

    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);
    const STUB: Gva = Gva(0xffff_ffff_8200_0000);

    fn image() -> Image {
        let site = |at| MarkerSite {
            at,
            nop: NOP5,
            operands: Vec::new(),
            function: FunctionId(0),
        };
        let sites = [AT, AT.wrapping_add(64)].map(site).to_vec();
        let format = EventFormat::new("a:b".into(), Vec::new());
        Image {
            markers: vec![Marker { format, sites }],
            ..Image::default()
        }
    }

    fn recorded_by(session: u8) -> MarkerState {
        MarkerState {
            sessions: SessionSet::default().with(session),
            stubs: vec![STUB, STUB.wrapping_add(64)],
        }
    }

    #[test]
    fn a_marker_is_changed_once_and_by_a_plan_that_is_current() {
        let image = image();
        let marker = &image.markers[0];
        let mut table = MarkerTable::new(&image);
        let plan = |table: &MarkerTable, after| table.plan(EventId(0), marker, after).unwrap();
        let on = plan(&table, recorded_by(1)).unwrap();
        let other = plan(&table, recorded_by(2)).unwrap();
        let written: Vec<bool> = on.edits.iter().map(|edit| edit.is_ours).collect();
        assert_eq!(written, [false, false]);
        assert!(table.is_current(&on) && table.is_current(&other));
        table.applied(&on);
        assert!(!table.is_current(&other));
        assert_eq!(plan(&table, recorded_by(1)), None);
        let off = plan(&table, MarkerState::default()).unwrap();
        assert!(off.edits.iter().all(|edit| edit.is_ours));
        assert!(
            off.edits
                .iter()
                .zip(&on.edits)
                .all(|(off, on)| *off == on.reverse())
        );
        assert_eq!(off.reverse().reverse(), off);
    }
}
