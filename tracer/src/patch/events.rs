//! Who is called at each tracepoint, and the plan that changes it.
//!
//! ```text
//!   callbacks   nops              dispatch leads to   the list holds
//!   none        nop               the iterator        nobody
//!   one         jmp to the call   the callback        the callback
//!   several     jmp to the call   the iterator        all of them
//! ```
//!
//! A thread can have been preempted anywhere between the nop and the end of the iterator. Wherever it goes
//! on, it does what one of the two states says: *dispatch* is one jump; the iterator reads the word that
//! points at its list once, and a list is never changed, nor its memory given back.
//! A change brings a list of its own, or one that was there before with the same callbacks in it.

use image::{Image, Tracepoint};
use insn::jump::jump;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::site::SiteBytes;

use crate::choice::choices;
use crate::text::edit::Edit;
use crate::text::poke::Poke;
use crate::text::word::WordWrite;

/// Somebody who is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Callback {
    /// A function of the guest.
    Guest(Gva),
    /// The stub of a session, by its number.
    Session(u8),
}

/// The state of one tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracepointState {
    /// Who is called, in order, and where that is.
    pub callbacks: Vec<(Callback, Gva)>,
    /// What the word that points at the list holds.
    pub list: u64,
}

choices! {
    /// How a tracepoint leads to its only callback.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Dispatch {
        /// By a jump to it.
        #[default]
        Direct = "direct",
        // To measure what the jump saves.
        /// Through the iterator, as if there were several.
        Iterator = "iterator",
    }
}

impl TracepointState {
    /// What stands at the sites: `nop`, `direct` or `iterator`.
    #[must_use]
    pub fn name(&self, dispatch: Dispatch) -> &'static str {
        match (self.callbacks.len(), dispatch) {
            (0, _) => "nop",
            (1, Dispatch::Direct) => "direct",
            _ => "iterator",
        }
    }

    /// Where dispatch leads.
    fn target(&self, tracepoint: &Tracepoint, dispatch: Dispatch) -> Gva {
        match (self.callbacks.as_slice(), dispatch) {
            ([(_, only)], Dispatch::Direct) => *only,
            _ => tracepoint.iterate,
        }
    }
}

/// A jump does not reach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{event}: a jump at {from} does not reach {to}: it is more than 2 GiB away")]
pub struct OutOfReach {
    /// The tracepoint.
    pub event: String,
    /// Where it would stand.
    pub from: Gva,
    /// Where it would lead.
    pub to: Gva,
}

/// What one tracepoint is to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracepointChange {
    /// Which one.
    pub event: EventId,
    /// Its state afterwards.
    pub after: TracepointState,
    /// What it was when this was planned.
    pub before: TracepointState,
    /// The writes of text.
    pub edits: Vec<Edit>,
    /// The write of the word that points at the list.
    pub word: Option<WordWrite>,
}

impl TracepointChange {
    /// The change that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            event: self.event,
            before: self.after.clone(),
            after: self.before.clone(),
            edits: self.edits.iter().rev().map(Edit::reverse).collect(),
            word: self.word.as_ref().map(WordWrite::reverse),
        }
    }
}

/// What was asked of events is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSuchEvent {
    /// The image declares none.
    #[error("the image declares no events")]
    None,
    /// No event of that name.
    #[error("there is no event '{name}'; there are: {there}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// Nobody has declared that function as a callback.
    #[error("'{callback}' is no callback of {event}; these are: {callbacks}")]
    NotACallback {
        /// The event.
        event: String,
        /// The callback asked for.
        callback: String,
        /// Those that are possible.
        callbacks: String,
    },
    /// Markers have the code of no call.
    #[error(
        "{0} is a marker: only sessions can record it, no function of the guest can be called there"
    )]
    Marker(String),
    /// The callback takes other fields.
    #[error("'{callback}' takes the fields of {other}, not those of {event}")]
    Signature {
        /// The event.
        event: String,
        /// The callback asked for.
        callback: String,
        /// An event whose callback it is.
        other: String,
    },
}

/// The event of that name.
///
/// # Errors
/// [`NoSuchEvent`].
pub fn find_event(image: &Image, name: &str) -> Result<EventId, NoSuchEvent> {
    let mut events = image.events().peekable();
    if events.peek().is_none() {
        return Err(NoSuchEvent::None);
    }
    let found = events.find(|(_, format)| *format.name == *name);
    found
        .map(|(event, _)| event)
        .ok_or_else(|| NoSuchEvent::Unknown {
            name: name.escape_default().to_string(),
            there: join(image.events().map(|(_, format)| format.name.to_string())),
        })
}

/// The function of the guest that is a callback called `name` of an event: one that the event declares, or that
/// another event with the same types of fields does.
///
/// # Errors
/// [`NoSuchEvent`].
pub fn find_callback(image: &Image, event: EventId, name: &str) -> Result<Gva, NoSuchEvent> {
    let is_named = |at: &Gva| {
        let there = image.function_at(*at).and_then(|id| image.function(id));
        there.is_some_and(|there| there.address == *at && there.names().any(|one| one == name))
    };
    if let Some(marker) = image.marker(event) {
        return Err(NoSuchEvent::Marker(marker.format.name.to_string()));
    }
    let Some(tracepoint) = image.tracepoints.get(event.index()) else {
        return Err(NoSuchEvent::None);
    };
    let named = |point: &Tracepoint| point.candidates.iter().copied().find(is_named);
    let same = |point: &&Tracepoint| point.signature == tracepoint.signature;
    if let Some(at) = image.tracepoints.iter().filter(same).find_map(named) {
        return Ok(at);
    }
    let event = tracepoint.format.name.to_string();
    let callback = name.escape_default().to_string();
    let other = image
        .tracepoints
        .iter()
        .find(|point| named(point).is_some());
    Err(match other {
        Some(other) => NoSuchEvent::Signature {
            event,
            callback,
            other: other.format.name.to_string(),
        },
        None => NoSuchEvent::NotACallback {
            event,
            callback,
            callbacks: join(tracepoint.candidates.iter().map(|at| image.name_at(*at))),
        },
    })
}

fn join(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// The states of all tracepoints.
#[derive(Debug)]
pub struct TracepointTable {
    dispatch: Dispatch,
    states: Vec<TracepointState>,
}

impl TracepointTable {
    /// Nobody is called anywhere.
    #[must_use]
    pub fn new(image: &Image, dispatch: Dispatch) -> Self {
        let off = |tracepoint: &Tracepoint| TracepointState {
            callbacks: Vec::new(),
            list: tracepoint.nobody,
        };
        Self {
            dispatch,
            states: image.tracepoints.iter().map(off).collect(),
        }
    }

    /// How a tracepoint leads to its only callback.
    #[must_use]
    pub fn dispatch(&self) -> Dispatch {
        self.dispatch
    }

    /// The state of a tracepoint.
    #[must_use]
    pub fn state(&self, event: EventId) -> Option<&TracepointState> {
        self.states.get(event.index())
    }

    /// The tracepoints at which `callback` is called.
    pub fn of(&self, callback: Callback) -> impl Iterator<Item = EventId> {
        let calls = move |state: &TracepointState| {
            state
                .callbacks
                .iter()
                .any(|(called, _)| *called == callback)
        };
        let numbered = (0..).map(EventId).zip(&self.states);
        numbered.filter_map(move |(event, state)| calls(state).then_some(event))
    }

    /// Plans that exactly `callbacks` are called at a tracepoint; `list` is where the guest has them.
    ///
    /// # Errors
    /// [`OutOfReach`].
    pub fn plan(
        &self,
        image: &Image,
        event: EventId,
        callbacks: Vec<(Callback, Gva)>,
        list: Option<Gva>,
    ) -> Result<Option<TracepointChange>, OutOfReach> {
        let tracepoint = image.tracepoints.get(event.index());
        let Some((tracepoint, before)) = tracepoint.zip(self.state(event)) else {
            return Ok(None);
        };
        let after = TracepointState {
            list: list.map_or(tracepoint.nobody, |at| at.0),
            callbacks,
        };
        let edits = edits(tracepoint, self.dispatch, before, &after)?;
        let word = (before.list != after.list).then(|| WordWrite {
            what: format!("the list of callbacks of {}", tracepoint.format.name).into(),
            at: tracepoint.list,
            old: before.list,
            new: after.list,
        });
        Ok((*before != after).then(|| TracepointChange {
            event,
            before: before.clone(),
            after,
            edits,
            word,
        }))
    }

    /// Whether the tracepoint is still as it was when `change` was planned.
    #[must_use]
    pub fn is_current(&self, change: &TracepointChange) -> bool {
        self.state(change.event) == Some(&change.before)
    }

    /// Notes that `change` has been written.
    pub fn applied(&mut self, change: &TracepointChange) {
        if let Some(state) = self.states.get_mut(change.event.index()) {
            state.clone_from(&change.after);
        }
    }
}

fn edits(
    tracepoint: &Tracepoint,
    dispatch: Dispatch,
    before: &TracepointState,
    after: &TracepointState,
) -> Result<Vec<Edit>, OutOfReach> {
    let leads = |from: Gva, to: Gva| {
        jump(from, to)
            .map(SiteBytes::new)
            .ok_or_else(|| OutOfReach {
                event: tracepoint.format.name.to_string(),
                from,
                to,
            })
    };
    let mut edits = Vec::new();
    let mut push = |poke: Poke, is_ours, becomes_ours| {
        if poke.expected != poke.new {
            edits.push(Edit::new(poke, is_ours, becomes_ours));
        }
    };
    let [old, new] = [before, after].map(|state| state.target(tracepoint, dispatch));
    let jump = Poke {
        function: tracepoint.function,
        at: tracepoint.dispatch,
        expected: leads(tracepoint.dispatch, old)?,
        new: leads(tracepoint.dispatch, new)?,
    };
    let is_ours = |to: Gva| to != tracepoint.iterate;
    push(jump, is_ours(old), is_ours(new));
    for site in &tracepoint.sites {
        let bytes = |state: &TracepointState| match state.callbacks.is_empty() {
            true => Ok(SiteBytes::new(site.nop)),
            false => leads(site.at, site.on),
        };
        let poke = Poke {
            function: site.function,
            at: site.at,
            expected: bytes(before)?,
            new: bytes(after)?,
        };
        let [is_ours, becomes_ours] = [before, after].map(|state| !state.callbacks.is_empty());
        push(poke, is_ours, becomes_ours);
    }
    Ok(edits)
}
