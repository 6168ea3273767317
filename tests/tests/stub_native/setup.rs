//! What a ground is made for: which sessions there are, and where.

use tracer::record::Format;
use tracer::stub::recorder::Clock;
use tracer::stub::spec::ReturnHook;

/// Where the GS base of a vCPU lies, seen from its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Within the reach of a displacement, above the cells.
    GsBelow,
    /// Within the reach of a displacement, below the cells.
    GsAbove,
    /// Farther than that.
    GsFar,
    /// GS is not used.
    Shared,
    /// As [`Self::GsBelow`], but the window and all of the text lie where no displacement alone names an
    /// address: in neither the lowest nor the highest 2 GiB.
    GsElsewhere,
}

/// All of them.
pub const PLACES: [Place; 5] = [
    Place::GsBelow,
    Place::GsAbove,
    Place::GsFar,
    Place::Shared,
    Place::GsElsewhere,
];

/// What a session records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// Entries.
    Calls,
    /// The same, and where calls were made.
    Callers,
    /// Entries and exits.
    Graph,
}

impl Records {
    /// What its records say.
    pub fn format(self, clock: Clock) -> Format {
        match (self, clock) {
            (Self::Calls, _) => Format::Calls,
            (Self::Callers, _) => Format::Callers,
            (Self::Graph, Clock::None) => Format::GraphUntimed,
            (Self::Graph, _) => Format::Graph,
        }
    }
}

/// Where a call was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MadeAt {
    /// Nothing is known of it.
    Unknown,
    /// In the code that calls functions of the ground.
    Outside,
    /// In the body of this function.
    In(u32),
    /// In the stub of one whose return is hooked: the call is a jump.
    Stub,
    /// Nowhere that a call could have been made.
    Elsewhere(u64),
}

/// Which sessions there are, and how returns are hooked for those that want it.
#[derive(Debug, Clone)]
pub struct Setup {
    pub place: Place,
    /// What each session records.
    pub sessions: Vec<Records>,
    /// How many profile sessions there are beside those.
    pub profiles: u64,
    pub ring_bytes: u64,
    pub clock: Clock,
    pub variant: ReturnHook,
    pub mirror_log2: u32,
    /// Whether stubs call routines that note what they find ([`Ground::captured`](crate::ground::Ground::captured)).
    pub captures: bool,
    /// Whether sites stand in all kinds of places, also where no return is hooked.
    pub has_all_shapes: bool,
    /// What ends the recording of each session, if anything does.
    pub halt: Option<HaltWhen>,
    /// How stubs know the task that runs, if they ask whether it is recorded.
    pub tasks: Option<Asked>,
}

/// When that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HaltWhen {
    /// A function is entered.
    Entered,
    /// A call returns that took longer than so many ticks.
    Longer(u64),
}

/// How stubs know the task that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// A word of the vCPU is its number.
    Number,
    /// A word of the vCPU leads to it.
    Task,
    /// The same, and a routine looks at its name.
    Name,
    /// Its number is how often the body of this function was run: another one when that ends than when it began.
    Calls(u32),
}

impl Setup {
    /// Whether returns are hooked at all.
    pub fn has_hooks(&self) -> bool {
        self.profiles > 0 || self.sessions.contains(&Records::Graph)
    }
}
