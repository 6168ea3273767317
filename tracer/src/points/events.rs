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
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use crate::text::edit::{Edit, Lead, Point, Wanted};
use crate::text::sites::Sites;
use crate::text::word::WordWrite;
use terms::choice::choices;

/// Somebody who is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Callback {
    /// A function of the guest.
    Guest(Gva),
    /// The stub of a session, by its number.
    Session(u8),
}

/// Who is called, in order, and where that is.
pub type Callbacks = Vec<(Callback, Gva)>;

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

impl Dispatch {
    /// What stands at the sites where so many are called: `nop`, `direct` or `iterator`.
    #[must_use]
    pub const fn state(self, callbacks: usize) -> &'static str {
        match (callbacks, self) {
            (0, _) => "nop",
            (1, Self::Direct) => "direct",
            _ => "iterator",
        }
    }

    /// Where dispatch leads.
    fn target(self, tracepoint: &Tracepoint, callbacks: &[(Callback, Gva)]) -> Gva {
        match (callbacks, self) {
            ([(_, only)], Self::Direct) => *only,
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

/// The write of the word by which a tracepoint finds the list of its callbacks, if that changes; with nobody to call it
/// finds the guest's own.
#[must_use]
pub fn list_word(sites: &Sites, tracepoint: &Tracepoint, list: Option<Gva>) -> Option<WordWrite> {
    let old = sites.word(tracepoint.list).unwrap_or(tracepoint.nobody);
    let new = list.map_or(tracepoint.nobody, |at| at.0);
    (old != new).then(|| WordWrite {
        what: format!("the list of callbacks of {}", tracepoint.format.name).into(),
        at: tracepoint.list,
        old,
        new,
    })
}

/// The changes of text that have exactly these called at a tracepoint.
///
/// # Errors
/// [`OutOfReach`].
pub fn edits(
    sites: &mut Sites,
    tracepoint: &Tracepoint,
    dispatch: Dispatch,
    callbacks: &[(Callback, Gva)],
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
    let called = callbacks.iter();
    let recorded_by = called.fold(SessionSet::default(), |set, (callback, _)| match callback {
        Callback::Session(id) => set.with(*id),
        Callback::Guest(_) => set,
    });
    let ours = |from: Gva, to: Gva| {
        let lead = Lead {
            to,
            recorded_by,
            ..Lead::default()
        };
        leads(from, to).map(|bytes| (bytes, lead))
    };
    let (at, to) = (tracepoint.dispatch, dispatch.target(tracepoint, callbacks));
    let leads_to_one = (to != tracepoint.iterate)
        .then(|| ours(at, to))
        .transpose()?;
    let (function, iterates) = (tracepoint.function, leads(at, tracepoint.iterate)?);
    let mut wanted = vec![Wanted::new(
        Point::Tracepoint,
        function,
        at,
        iterates,
        leads_to_one,
    )];
    for site in &tracepoint.sites {
        let on = (!callbacks.is_empty()).then(|| ours(site.at, site.on));
        let nop = SiteBytes::new(site.nop);
        let (function, at) = (site.function, site.at);
        wanted.push(Wanted::new(
            Point::Tracepoint,
            function,
            at,
            nop,
            on.transpose()?,
        ));
    }
    Ok(wanted
        .into_iter()
        .filter_map(|one| sites.edit(one))
        .collect())
}
