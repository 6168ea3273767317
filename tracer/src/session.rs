//! One trace session: what it traces, into which rings, with which clock.

use terms::addr::Gpa;

use crate::filter::Selection;
use crate::record::Format;
use crate::ring::geometry::{Geometry, Position};
use crate::stub::event::EventRecorder;
use crate::stub::halt::{Halt, Halts};
use crate::stub::profile::Profile;
use crate::stub::recorder::{Clock, Recorder};
use crate::stub::spec::ReturnHook;
use crate::stub::task::TaskCheck;
use terms::function::Function;
use trace::event::Moment;
use trace::live::Occasion;

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
    /// What ends its recording at once: at most [`HALTS_MAX`](crate::stub::halt::HALTS_MAX).
    pub halts: Vec<WantedHalt>,
    /// Whether a vCPU that finds a ring full waits for its reader.
    pub waits: bool,
    /// Whether calls are recorded with their return addresses (function).
    pub callers: bool,
}

/// Something at which a session records no more, at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedHalt {
    /// What.
    pub occasion: Occasion,
    /// For a call that takes long: after more than so many ticks.
    pub ticks: u64,
    /// How often.
    pub times: u64,
    /// Whether calls are counted as lost from then on.
    pub counts_lost: bool,
}

/// The same in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedHalt {
    /// What.
    pub occasion: Occasion,
    /// For stubs.
    pub halt: Halt,
}

impl SessionConfig {
    /// What its records say.
    #[must_use]
    pub fn format(&self) -> Format {
        match (self.tracer, self.clock) {
            (TracerKind::Graph, Clock::None) => Format::GraphUntimed,
            (TracerKind::Graph, Clock::Tsc | Clock::Page(_)) => Format::Graph,
            (TracerKind::Function, _) if self.callers => Format::Callers,
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
    /// How often each of its halts still does something, where it has any.
    pub halts_left: Option<Gpa>,
    /// The word that says whether somebody reads them, who is waited for at a full ring, if it has one.
    pub awaited: Option<Gpa>,
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
    /// What ends its recording at once.
    pub halts: Vec<PlacedHalt>,
    /// Whose calls it records; those of all tasks without it.
    pub tasks: Option<TaskCheck>,
    /// Whether tasks that begin are recorded as those that make them.
    pub follows: bool,
}

impl Session {
    /// Its stubs ask this from their next plan on.
    pub fn check_tasks(&mut self, tasks: Option<TaskCheck>) {
        self.tasks = tasks;
        if let Some(recorder) = &mut self.recorder {
            recorder.tasks = tasks;
        }
        if let Some(profile) = &mut self.profile {
            profile.tasks = tasks;
        }
        if let Some(events) = &mut self.events {
            events.recorder.recorder.tasks = tasks;
        }
    }

    /// Which of its halts are about calls of a function: a bit for each.
    #[must_use]
    pub fn halts_of(&self, function: &Function) -> u8 {
        self.halts_by(|occasion| match occasion {
            Occasion::Call(name) | Occasion::Longer(name, _) => name.matches(function),
            Occasion::Event(_) => false,
        })
    }

    /// The recorder of an event of this name; none without event rings.
    #[must_use]
    pub fn event_recorder(&self, event: &str) -> Option<EventRecorder> {
        let mut to = self.events.as_ref()?.recorder;
        let bits = self.halts_by(|occasion| match occasion {
            Occasion::Event(name) => name.matches_name(event),
            Occasion::Call(_) | Occasion::Longer(..) => false,
        });
        to.recorder.halts = self.halts(bits);
        Some(to)
    }

    /// Those whose bits are set.
    #[must_use]
    pub fn halts(&self, bits: u8) -> Halts {
        let all: Vec<Halt> = self.halts.iter().map(|one| one.halt).collect();
        Halts::of(&all, bits)
    }

    fn halts_by(&self, is_about: impl Fn(&Occasion) -> bool) -> u8 {
        let about = self
            .halts
            .iter()
            .zip(0..)
            .filter(|(one, _)| is_about(&one.occasion));
        about.fold(0, |bits, (_, number)| bits | 1 << number)
    }
}
