//! One trace session: what it traces, into which rings, with which clock.

use terms::addr::Gpa;

use crate::filter::Selection;
use crate::record::Format;
use crate::ring::geometry::{Geometry, Position};
use crate::stub::event::EventRecorder;
use crate::stub::profile::Profile;
use crate::stub::recorder::{Clock, Recorder};
use crate::stub::spec::ReturnHook;
use trace::event::Moment;

/// The number of a session, below [`SESSIONS_MAX`](crate::stub::cell::SESSIONS_MAX).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u8);

/// What a session records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TracerKind {
    /// Entries of functions.
    Function,
    /// Entries and exits.
    Graph,
    /// How often and how long, in counters instead of records.
    Profile,
}

impl TracerKind {
    /// The name that ftrace and our options have for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Graph => "graph",
            Self::Profile => "profile",
        }
    }

    /// Whether it needs to know when functions return.
    #[must_use]
    pub const fn hooks_returns(self) -> bool {
        matches!(self, Self::Graph | Self::Profile)
    }
}

/// What a session is made of.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Its name.
    pub name: String,
    /// What it records.
    pub tracer: TracerKind,
    /// How hooked functions are left (graph).
    pub return_hook: ReturnHook,
    /// The size of each of its rings.
    pub geometry: Geometry,
    /// Where its times come from.
    pub clock: Clock,
}

impl SessionConfig {
    /// What its records say.
    #[must_use]
    pub fn format(&self) -> Format {
        match (self.tracer, self.clock) {
            (TracerKind::Graph, Clock::None) => Format::GraphUntimed,
            (TracerKind::Graph, Clock::Tsc | Clock::Page(_)) => Format::Graph,
            (TracerKind::Function | TracerKind::Profile, _) => Format::Calls,
        }
    }
}

/// Where the host finds the memory of a session's rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionMemory {
    /// The cell of each ring.
    pub cells: Vec<Gpa>,
    /// Ring 0; the others follow at the distance of a ring's size.
    pub rings: Gpa,
    /// What records say.
    pub format: Format,
    /// The second words of ring 0's records, and likewise for the others, if they have such.
    pub details: Option<Gpa>,
    /// The directory of the mirror and its bytes, where records have only a part of the stack slot.
    pub directory: Option<(Gpa, u64)>,
    /// Bytes that it was given, from `rings` on.
    pub room: u64,
    /// The size of each ring.
    pub geometry: Geometry,
    /// The position of the first record of each ring: after all that an earlier session's writers
    /// can still store.
    pub first: Vec<Position>,
}

/// When values of calls are captured for a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallMoments {
    /// The arguments, at the entry.
    pub entry: bool,
    /// What is returned.
    pub exit: bool,
}

impl CallMoments {
    /// Whether they are captured then.
    #[must_use]
    pub const fn has(self, moment: Moment) -> bool {
        match moment {
            Moment::Entry => self.entry,
            Moment::Exit => self.exit,
        }
    }

    /// Whether nothing is captured.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !self.entry && !self.exit
    }
}

/// Where a session's events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEvents {
    /// Its event rings, for the host.
    pub memory: SessionMemory,
    /// For stubs.
    pub recorder: EventRecorder,
    /// The payload of the first slot of ring 0; the others follow slot by slot, ring by ring.
    pub payload: Gpa,
}

/// A session as the engine keeps it.
#[derive(Debug)]
pub struct Session {
    /// What it was made of.
    pub config: SessionConfig,
    /// Its rings, for the host. In a profile session the table of counters lies where the rings
    /// would, and there are none.
    pub memory: SessionMemory,
    /// Its code, for stubs; none in a profile session.
    pub recorder: Option<Recorder>,
    /// Its counters; only in a profile session.
    pub profile: Option<Profile>,
    /// Its event rings, from its first event on.
    pub events: Option<SessionEvents>,
    /// What that selects; empty while the session is stopped.
    pub selection: Selection,
    /// When values of calls are captured for it; only in a graph session that has event rings.
    pub captures: CallMoments,
}
