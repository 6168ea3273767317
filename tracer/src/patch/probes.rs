//! The places in the text where probes sit, outside the functions' own patch sites.
//!
//! A place is made for the first probe at its address: a *detour* for what the jump displaces, which stays, for a
//! thread can be in it for as long as it likes. Afterwards the jump leads to the stub of all probes at that address,
//! or the original bytes stand there.

use std::collections::{BTreeMap, BTreeSet};

use terms::addr::Gva;
use terms::session_set::SessionSet;

use crate::patch::tactic::{Place, Tactic};
use crate::text::edit::Edit;
use crate::text::poke::Poke;
use crate::text::word::WordWrite;

/// What is known of one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceState {
    /// How it is changed.
    pub place: Place,
    /// Where its stubs continue: the detour.
    pub resume: Gva,
    /// The stub that it leads to; none while the original bytes stand there.
    pub stub: Option<Gva>,
}

/// What one place is to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceChange {
    /// Where it is.
    pub at: Gva,
    /// The stub that it leads to now.
    pub before: Option<Gva>,
    /// The stub that it leads to afterwards.
    pub after: Option<Gva>,
    /// The sessions that record the probes there afterwards.
    pub sessions: SessionSet,
    /// The writes, in their order.
    pub edits: Vec<Edit>,
}

impl PlaceChange {
    /// The change that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            at: self.at,
            before: self.after,
            after: self.before,
            sessions: self.sessions,
            edits: self.edits.iter().rev().map(Edit::reverse).collect(),
        }
    }
}

/// Which breakpoints the guest serves: the word that leads to its table of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakpointTable {
    /// The write of that word.
    pub word: WordWrite,
}

impl BreakpointTable {
    /// The word at `at` leads to another table.
    #[must_use]
    pub fn leading(at: Gva, old: Gva, new: Gva) -> Self {
        let what = "the guest's table of breakpoints".into();
        let (old, new) = (old.0, new.0);
        Self {
            word: WordWrite { what, at, old, new },
        }
    }

    /// The change that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            word: self.word.reverse(),
        }
    }
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
pub struct ProbeTable {
    places: BTreeMap<Gva, PlaceState>,
    /// The table of breakpoints that the guest has now.
    table: Gva,
}

impl ProbeTable {
    /// The place at this address, if it was made.
    #[must_use]
    pub fn place(&self, at: Gva) -> Option<&PlaceState> {
        self.places.get(&at)
    }

    /// The table of breakpoints that the guest has now; 0 for none.
    #[must_use]
    pub fn table(&self) -> Gva {
        self.table
    }

    /// Notes that the guest has another one.
    pub fn lead_to(&mut self, table: Gva) {
        self.table = table;
    }

    /// Adds a place, whose original bytes stand there.
    pub fn add(&mut self, place: Place, resume: Gva) {
        let state = PlaceState {
            place,
            resume,
            stub: None,
        };
        self.places.insert(state.place.at, state);
    }

    /// Forgets the places in text that is gone; whatever stood there is gone, too.
    pub fn forget(&mut self, is_gone: impl Fn(&Place) -> bool) {
        self.places.retain(|_, state| !is_gone(&state.place));
    }

    /// The padding that is in use, or was: what is displaced there can be jumped to from places that come back.
    #[must_use]
    pub fn padding(&self) -> BTreeSet<Gva> {
        let places = self.places.values();
        let padding = places.filter_map(|state| state.place.padding);
        padding.map(|padding| padding.at).collect()
    }

    /// The breakpoints that stand in the text after `changes`, and where each leads.
    #[must_use]
    pub fn breakpoints(&self, changes: &[PlaceChange]) -> Vec<(Gva, Gva)> {
        let after = |state: &PlaceState| {
            let change = changes.iter().find(|change| change.at == state.place.at);
            change.map_or(state.stub, |change| change.after)
        };
        let places = self.places.values();
        let places = places.filter(|state| state.place.tactic == Tactic::Breakpoint);
        places
            .filter_map(|state| Some((state.place.at, after(state)?)))
            .collect()
    }

    /// Plans that the place at `at` leads to `after`; none when it does so already.
    ///
    /// # Errors
    /// [`StubTooFar`].
    pub fn plan(&self, at: Gva, after: Option<Gva>) -> Result<Option<PlaceChange>, StubTooFar> {
        let Some(state) = self.place(at).filter(|state| state.stub != after) else {
            return Ok(None);
        };
        let leading = |stub: Gva| {
            let pokes = state.place.pokes(stub);
            pokes.ok_or(StubTooFar { from: at, to: stub })
        };
        let edits = match (state.stub, after) {
            (None, None) => Vec::new(),
            (None, Some(stub)) => displacing(&state.place, leading(stub)?),
            (Some(stub), None) => {
                let edits = displacing(&state.place, leading(stub)?);
                edits.iter().rev().map(Edit::reverse).collect()
            }
            (Some(old), Some(new)) => {
                let both = leading(old)?.into_iter().zip(leading(new)?);
                let changed = both.filter(|(old, new)| old.new != new.new);
                let poke = |(old, new): (Poke, Poke)| Poke {
                    expected: old.new,
                    ..new
                };
                changed
                    .map(|both| Edit::new(poke(both), true, true))
                    .collect()
            }
        };
        Ok(Some(PlaceChange {
            at,
            before: state.stub,
            after,
            sessions: SessionSet::default(),
            edits,
        }))
    }

    /// Whether the place is still as it was when `change` was planned.
    #[must_use]
    pub fn is_current(&self, change: &PlaceChange) -> bool {
        let state = self.place(change.at);
        state.is_some_and(|state| state.stub == change.before)
    }

    /// Notes that `change` has been written.
    pub fn applied(&mut self, change: &PlaceChange) {
        if let Some(state) = self.places.get_mut(&change.at) {
            state.stub = change.after;
        }
    }
}

/// The edits by which a place begins to lead somewhere. Those that put back what stood there are their reverse, in the
/// reverse order: what becomes padding again, nobody may be about to execute.
fn displacing(place: &Place, pokes: Vec<Poke>) -> Vec<Edit> {
    let edit = |poke: Poke| match poke.at == place.at {
        true => Edit::displacing(poke, place.inner.clone()),
        false => Edit {
            opens: vec![poke.at],
            ..Edit::new(poke, false, true)
        },
    };
    pokes.into_iter().map(edit).collect()
}
