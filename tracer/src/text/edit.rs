//! What is wanted at one site, and the change that brings it about, with what has to be true before that is made.

use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;
use terms::site::SiteBytes;

use super::atomic;
use super::poke::Poke;
use crate::stub::template::Captures;

/// What a site is changed for. Two kinds that want the same bytes have a site each: the second finds foreign bytes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// The function's own patch site.
    Function,
    /// Where a tracepoint is passed, or leads to its callbacks.
    Tracepoint,
    /// Where a marker is passed.
    Marker,
    /// Where a probe sits, outside a function's patch site.
    Probe,
    /// Where a dynamic function leads.
    Dynamic,
    /// The prefix of a locked instruction.
    Lock,
}

/// Where a site of ours leads, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lead {
    /// Where: to a stub, or to what a session or the guest has there; 0 for a byte that leads nowhere.
    pub to: Gva,
    /// The sessions that trace the function.
    pub traced_by: SessionSet,
    /// The sessions that record an event or probes here.
    pub recorded_by: SessionSet,
    /// The stub of the function's sessions: what the site leads to, or the probes that it leads to.
    pub own: Option<Gva>,
    /// What that stub calls.
    pub captures: Captures,
}

impl Lead {
    /// Everybody who wants it.
    #[must_use]
    pub fn sessions(&self) -> SessionSet {
        self.traced_by.and(self.recorded_by)
    }

    /// Whether it leads there for a user: not if its stub only tells of modules.
    #[must_use]
    pub fn is_for_users(&self) -> bool {
        let tells_only = self.captures.entry.is_some() && self.captures.exit.is_none();
        !(self.traced_by.is_empty() && tells_only && Some(self.to) == self.own)
    }
}

/// What somebody wants at a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What for.
    pub point: Point,
    /// The function whose text it is.
    pub function: FunctionId,
    /// Where.
    pub at: Gva,
    /// What stands there while nobody wants anything.
    pub original: SiteBytes,
    /// What is to stand there, and why; nothing any more without it.
    pub ours: Option<(SiteBytes, Lead)>,
    /// Whether instructions stand there that run in the window instead while bytes of ours do.
    pub displaces: bool,
    /// Where instructions begin, after the first, while nobody wants anything.
    pub inner: Vec<Gva>,
    /// Where instructions begin while somebody does.
    pub added: Vec<Gva>,
}

impl Wanted {
    /// A single instruction before and after, in the place of one that does nothing or leads elsewhere.
    #[must_use]
    pub const fn new(
        point: Point,
        function: FunctionId,
        at: Gva,
        original: SiteBytes,
        ours: Option<(SiteBytes, Lead)>,
    ) -> Self {
        Self {
            point,
            function,
            at,
            original,
            ours,
            displaces: false,
            inner: Vec::new(),
            added: Vec::new(),
        }
    }
}

/// The number of a site in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SiteId(pub(super) u32);

/// A change of one site, with what the commit has to find out first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The site.
    pub site: SiteId,
    /// What for.
    pub point: Point,
    /// The write.
    pub poke: Poke,
    /// Where it leads now, if what stands there is ours: if other bytes are found then, something is badly wrong.
    pub before: Option<Lead>,
    /// Where it leads afterwards, if what stands there then is ours.
    pub after: Option<Lead>,
    /// Whether the instructions that stand here begin to run in the window instead, or end to.
    pub displacement: Displacement,
    /// Where instructions begin, after the first, that do so no more afterwards: no thread may go on there.
    pub closes: Vec<Gva>,
    /// Where instructions begin afterwards that did not before: what taking this back closes.
    pub opens: Vec<Gva>,
}

/// What an edit does to the instructions that stand at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Displacement {
    /// There are none that do anything, or they stay as they are.
    #[default]
    None,
    /// They run in the window from now on: nobody else may have put something among them, and they must run in the ring
    /// that the window is for.
    Begins,
    /// They run here again.
    Ends,
}

impl Edit {
    /// The edit that takes this one back.
    #[must_use]
    pub fn reverse(&self) -> Self {
        Self {
            displacement: match self.displacement {
                Displacement::None => Displacement::None,
                Displacement::Begins => Displacement::Ends,
                Displacement::Ends => Displacement::Begins,
            },
            poke: self.poke.reverse(),
            before: self.after,
            after: self.before,
            closes: self.opens.clone(),
            opens: self.closes.clone(),
            ..*self
        }
    }

    /// Whether any byte changes: who wants it can change alone.
    #[must_use]
    pub fn is_write(&self) -> bool {
        self.poke.expected != self.poke.new
    }

    /// Whether a jump of ours stands there. Another byte than ours before a locked instruction is refused as the guest's
    /// own would be.
    #[must_use]
    pub fn is_at_jump_of_ours(&self) -> bool {
        self.before.is_some() && self.point != Point::Lock
    }

    /// Whether it is one instruction before and after, in one aligned word, and nothing is displaced: then one exchange
    /// of that word makes it, while every vCPU runs.
    #[must_use]
    pub fn is_of_one_word(&self) -> bool {
        let is_one = self.closes.is_empty() && self.opens.is_empty();
        let displaces = self.displacement != Displacement::None;
        is_one && !displaces && atomic::holds(&self.poke)
    }

    /// Whether several instructions become one: then all vCPUs must be stopped, and threads be looked for.
    #[must_use]
    pub fn joins_instructions(&self) -> bool {
        !self.closes.is_empty()
    }
}
