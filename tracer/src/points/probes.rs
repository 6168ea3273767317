//! The places in the text where probes sit, outside the functions' own patch sites.
//!
//! A place is made for the first probe at its address: a *detour* for what the jump displaces, which stays, for a
//! thread can be in it for as long as it likes. Afterwards the jump leads to the stub of all probes at that address,
//! or the original bytes stand there.

use std::collections::{BTreeMap, BTreeSet};

use terms::addr::Gva;
use terms::session_set::SessionSet;

use crate::points::tactic::{JumpPlace, Tactic};
use crate::text::edit::{Edit, Lead, Point, Wanted};
use crate::text::poke::Poke;
use crate::text::sites::Sites;
use crate::text::word::WordWrite;

/// What is known of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceState {
    /// How it is changed.
    pub place: JumpPlace,
    /// Where its stubs continue: the detour.
    pub resume: Gva,
}

/// The write of the word by which the guest finds the breakpoints that it serves, at `at`.
#[must_use]
pub fn table_word(sites: &Sites, at: Gva, table: Gva) -> WordWrite {
    let what = "the guest's table of breakpoints".into();
    let (old, new) = (sites.word(at).unwrap_or(0), table.0);
    WordWrite { what, at, old, new }
}

/// A stub is more than 2 GiB away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the probe at {from} cannot lead to its stub at {to}: it is more than 2 GiB away")]
pub struct StubTooFar {
    /// The place.
    pub from: Gva,
    /// The stub.
    pub to: Gva,
}

/// All places.
#[derive(Debug, Default)]
pub struct Places {
    all: BTreeMap<Gva, PlaceState>,
}

impl Places {
    /// The place at this address, if it was made.
    #[must_use]
    pub fn get(&self, at: Gva) -> Option<&PlaceState> {
        self.all.get(&at)
    }

    /// Adds a place, whose original bytes stand there.
    pub fn add(&mut self, place: JumpPlace, resume: Gva) {
        self.all.insert(place.at, PlaceState { place, resume });
    }

    /// Forgets the places in text that is gone.
    pub fn forget(&mut self, is_gone: impl Fn(&JumpPlace) -> bool) {
        self.all.retain(|_, state| !is_gone(&state.place));
    }

    /// The padding that is in use, or was: what is displaced there can be jumped to from places that come back.
    #[must_use]
    pub fn padding(&self) -> BTreeSet<Gva> {
        let places = self.all.values();
        let padding = places.filter_map(|state| state.place.padding);
        padding.map(|padding| padding.at).collect()
    }

    /// The breakpoints that stand in the text after `changes`, and where each leads.
    #[must_use]
    pub fn breakpoints(&self, sites: &Sites, changes: &[&Edit]) -> Vec<(Gva, Gva)> {
        let places = self.all.values().map(|state| &state.place);
        let places = places.filter(|place| place.tactic == Tactic::Breakpoint);
        let after = |at: Gva| {
            let change = changes.iter().find(|change| change.poke.at == at);
            let now = sites.lead(Point::Probe, at).copied();
            change.map_or(now, |change| change.after)
        };
        places
            .filter_map(|place| Some((place.at, after(place.at)?.to)))
            .collect()
    }
}

/// Plans that a place leads to `stub`, which these sessions record, or nowhere; none when it does so already.
///
/// # Errors
/// [`StubTooFar`].
pub fn plan(
    sites: &mut Sites,
    place: &JumpPlace,
    stub: Option<Gva>,
    recorded_by: SessionSet,
) -> Result<Vec<Edit>, StubTooFar> {
    let now = sites.lead(Point::Probe, place.at);
    // The original bytes are the same wherever it leads.
    let Some(to) = stub.or(now.map(|lead| lead.to)) else {
        return Ok(Vec::new());
    };
    let from = place.at;
    let pokes = place.pokes(to).ok_or(StubTooFar { from, to })?;
    let lead = Lead {
        to,
        recorded_by,
        ..Lead::default()
    };
    let edit = |poke: Poke| {
        let ours = stub.map(|_| (poke.new, lead));
        let at_place = Wanted::new(Point::Probe, poke.function, poke.at, poke.expected, ours);
        sites.edit(match poke.at == place.at {
            true => Wanted {
                displaces: true,
                inner: place.inner.clone(),
                ..at_place
            },
            false => Wanted {
                added: vec![poke.at],
                ..at_place
            },
        })
    };
    let mut edits: Vec<Edit> = pokes.into_iter().filter_map(edit).collect();
    if stub.is_none() {
        // What becomes padding again, nobody may be about to execute.
        edits.reverse();
    }
    Ok(edits)
}
