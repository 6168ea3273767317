//! The state of each traceable function, and the plan that changes it.
//!
//! ```text
//!            one session            a second session
//!     nop ───────────────> direct ──────────────────> list
//!      ^  <───────────────   ^    <──────────────────
//!      |     none is left    |       one is left
//!      └─────────────────────┴── every change is one verified poke of the site
//! ```
//!
//! *Direct* and *list* differ only in the stub: it has the recorder of one session, or those of
//! several. A site whose bytes are not what the table says is never written.

use std::collections::HashMap;

use image::{Image, Site, SiteForm, SiteKind};
use insn::jump::jump;
use insn::nop::NOP5;
use insn::relocate::{RelocateError, relocate};
use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::site::SITE_LENGTH;
use terms::site::SiteBytes;

use crate::patch::poke::{Poke, PokeError};
use crate::stub::arena::{Arena, ArenaFull};
use crate::stub::graph::SiteShape;
use crate::stub::template::{Captures, StubError, StubSpec, TEMPLATE_MAX, Template};

/// A set of sessions, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SessionSet(u16);

impl SessionSet {
    /// The set with `session` in it.
    #[must_use]
    pub const fn with(self, session: u8) -> Self {
        Self(self.0 | 1 << (session & 15))
    }

    /// The set without `session`.
    #[must_use]
    pub const fn without(self, session: u8) -> Self {
        Self(self.0 & !(1 << (session & 15)))
    }

    /// Whether `session` is in it.
    #[must_use]
    pub const fn has(self, session: u8) -> bool {
        self.0 & 1 << (session & 15) != 0
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The sessions in it, ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..16).filter(move |session| self.has(*session))
    }
}

/// What is known of one function's site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FunctionState {
    /// The nop stands there.
    Nop,
    /// Our jump stands there.
    Patched {
        /// The sessions whose recorders run.
        sessions: SessionSet,
        /// What its stub calls.
        captures: Captures,
        /// Where the jump leads.
        stub: Gva,
        /// The stub of the sessions: what the jump leads to, or the probes at this site that it leads to.
        own: Option<Gva>,
    },
    /// It was not what it should have been when it was to be patched: left as it is.
    Skipped(PokeError),
    /// The guest has given its memory back: nothing is written there any more.
    Gone,
}

impl FunctionState {
    /// Whether our jump stands there for a user: not if its stub only tells of modules.
    #[must_use]
    pub fn is_patched(&self) -> bool {
        let Self::Patched {
            sessions,
            captures,
            stub,
            own,
        } = self
        else {
            return false;
        };
        let tells_only = captures.entry.is_some() && captures.exit.is_none();
        !(sessions.is_empty() && tells_only && Some(*stub) == *own)
    }
}

/// Why no plan could be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No stub could be made.
    #[error(transparent)]
    Stub(#[from] StubError),
    /// No room for more stubs.
    #[error(transparent)]
    Arena(#[from] ArenaFull),
    /// No detour could be made.
    #[error(transparent)]
    Detour(#[from] RelocateError),
}

/// A stub that has to be in guest memory before the pokes are applied. Nothing leads to it yet, so
/// it can be written while the guest runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubWrite {
    /// Where to.
    pub physical: Gpa,
    /// The code.
    pub bytes: Vec<u8>,
}

/// A change of one site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The write.
    pub poke: Poke,
    /// The sessions that the function is traced by afterwards.
    pub sessions: SessionSet,
    /// What its stub calls then.
    pub captures: Captures,
    /// The stub that it leads to afterwards; none for the nop.
    pub stub: Option<Gva>,
    /// The stub of those sessions: the same one, unless there are probes at the site.
    pub own: Option<Gva>,
    /// Whether our own jump stands there now: if other bytes do, something is badly wrong.
    pub is_ours: bool,
}

impl Change {
    /// Whether a jump comes where there was none of ours.
    #[must_use]
    pub const fn displaces(&self) -> bool {
        !self.is_ours && self.stub.is_some()
    }
}

/// Everything that has to be written for a change of what is traced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changed sites, by address.
    pub changes: Vec<Change>,
}

/// The templates that a plan has used, by whom functions are traced, where their sites stand, and what they call.
pub type Templates = HashMap<(SessionSet, SiteShape, bool, bool), usize>;

/// The states of all functions of an image.
#[derive(Debug)]
pub struct FunctionTable {
    states: Vec<FunctionState>,
    templates: Vec<(StubSpec, Template)>,
    stubs: HashMap<(FunctionId, usize, Captures), Gva>,
    /// Where functions go on whose first instructions are displaced.
    detours: HashMap<FunctionId, Gva>,
    unwritten: Vec<StubWrite>,
}

impl FunctionTable {
    /// All functions untraced.
    #[must_use]
    pub fn new(image: &Image) -> Self {
        let mut states = vec![FunctionState::Nop; image.functions.len()];
        for part in image.parts.iter().filter(|part| !part.at_start) {
            for function in image.functions_of(part) {
                if let Some(state) = states.get_mut(function.index()) {
                    *state = FunctionState::Gone;
                }
            }
        }
        Self {
            states,
            templates: Vec::new(),
            stubs: HashMap::new(),
            detours: HashMap::new(),
            unwritten: Vec::new(),
        }
    }

    /// Makes room for functions that have come since.
    pub fn extend(&mut self, image: &Image) {
        let count = image.functions.len().max(self.states.len());
        self.states.resize(count, FunctionState::Nop);
    }

    /// The state of one function.
    #[must_use]
    pub fn state(&self, function: FunctionId) -> &FunctionState {
        self.states
            .get(function.index())
            .unwrap_or(&FunctionState::Nop)
    }

    /// The sessions that trace a function.
    #[must_use]
    pub fn sessions(&self, function: FunctionId) -> SessionSet {
        match self.state(function) {
            FunctionState::Patched { sessions, .. } => *sessions,
            FunctionState::Nop | FunctionState::Skipped(_) | FunctionState::Gone => {
                SessionSet::default()
            }
        }
    }

    /// What a function's stub calls.
    #[must_use]
    pub fn captures(&self, function: FunctionId) -> Captures {
        match self.state(function) {
            FunctionState::Patched { captures, .. } => *captures,
            FunctionState::Nop | FunctionState::Skipped(_) | FunctionState::Gone => {
                Captures::default()
            }
        }
    }

    /// Whether the function's memory was given back.
    #[must_use]
    pub fn is_gone(&self, function: FunctionId) -> bool {
        matches!(self.state(function), FunctionState::Gone)
    }

    /// Notes that the function's memory was given back, with whatever stood there.
    pub fn gone(&mut self, function: FunctionId) {
        self.set(function, FunctionState::Gone);
    }

    /// Notes that the function's memory is there, with its nop.
    pub fn came(&mut self, function: FunctionId) {
        self.set(function, FunctionState::Nop);
    }

    /// How many functions have our jump in them.
    #[must_use]
    pub fn patched(&self) -> usize {
        let states = self.states.iter();
        states.filter(|state| state.is_patched()).count()
    }

    /// Plans the change from what is traced to `wanted(function)` for each function with a site: by whom, and what
    /// is captured of it. `spec` says what the stub of some sessions does; stubs come from `arena`. A function whose
    /// return is not hooked has its entry captured only.
    ///
    /// # Errors
    /// A [`PlanError`]; then nothing has changed but that some stubs are ready for another time.
    pub fn plan(
        &mut self,
        image: &Image,
        wanted: impl Fn(FunctionId) -> (SessionSet, Captures),
        spec: impl Fn(SessionSet, SiteShape, Captures) -> StubSpec,
        arena: &mut Arena,
    ) -> Result<Plan, PlanError> {
        let mut plan = Plan::default();
        let mut templates = Templates::new();
        for site in &image.sites {
            let wanted = wanted(site.function);
            let change = self.plan_site((image, site), wanted, &spec, arena, &mut templates)?;
            plan.changes.extend(change);
        }
        Ok(plan)
    }

    /// The same of one site; nothing when it is so already.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn plan_site(
        &mut self,
        (image, site): (&Image, &Site),
        (sessions, mut captures): (SessionSet, Captures),
        spec: impl Fn(SessionSet, SiteShape, Captures) -> StubSpec,
        arena: &mut Arena,
        templates: &mut Templates,
    ) -> Result<Option<Change>, PlanError> {
        let shape = shape(image, site);
        if shape == SiteShape::EntryOnly {
            captures.exit = None;
        }
        let now = (self.sessions(site.function), self.captures(site.function));
        if self.is_gone(site.function) || now == (sessions, captures) {
            return Ok(None);
        }
        let stub = if sessions.is_empty() && captures.is_empty() {
            None
        } else {
            let (at_entry, at_exit) = (captures.entry.is_some(), captures.exit.is_some());
            let key = (sessions, shape, at_entry, at_exit);
            let template = match templates.get(&key) {
                Some(index) => *index,
                None => self.template(spec(sessions, shape, captures), arena)?,
            };
            templates.insert(key, template);
            Some(self.stub(site, template, captures, arena)?)
        };
        let change = self.change(site, (sessions, captures), stub, stub)?;
        Ok(Some(change))
    }

    /// Where the function goes on behind its site: behind the nop, or in the detour, which is made if there is none.
    ///
    /// # Errors
    /// A [`PlanError`].
    pub fn behind(&mut self, site: &Site, arena: &mut Arena) -> Result<Gva, PlanError> {
        let Some(displaced) = site.form.displaced() else {
            return Ok(site.address.wrapping_add(SITE_LENGTH as u64));
        };
        if let Some(detour) = self.detours.get(&site.function) {
            return Ok(*detour);
        }
        let code = displaced.as_slice();
        // Anywhere in the arena it has the same length.
        let length = relocate(code, site.address, arena.start())?.len();
        let (at, physical) = arena.allocate(length as u64)?;
        let bytes = relocate(code, site.address, at)?;
        self.unwritten.push(StubWrite { physical, bytes });
        self.detours.insert(site.function, at);
        Ok(at)
    }

    /// Where probes at `site` go on: at the stub of the function's sessions, or behind the site.
    ///
    /// # Errors
    /// A [`PlanError`].
    pub fn resume(&mut self, site: &Site, arena: &mut Arena) -> Result<Gva, PlanError> {
        let own = match self.state(site.function) {
            FunctionState::Patched { own, .. } => *own,
            FunctionState::Nop | FunctionState::Skipped(_) | FunctionState::Gone => None,
        };
        own.map_or_else(|| self.behind(site, arena), Ok)
    }

    /// Plans that the jump at `site` leads to the probes at `head`, or to none any more.
    ///
    /// # Errors
    /// A [`PlanError`].
    pub fn plan_probes(&self, site: &Site, head: Option<Gva>) -> Result<Change, PlanError> {
        let own = match self.state(site.function) {
            FunctionState::Patched { own, .. } => *own,
            FunctionState::Nop | FunctionState::Skipped(_) | FunctionState::Gone => None,
        };
        let now = (self.sessions(site.function), self.captures(site.function));
        self.change(site, now, head.or(own), own)
    }

    /// Has a planned change lead to the stub of its sessions through the probes at `head`.
    ///
    /// # Errors
    /// A [`PlanError`].
    pub fn lead_through(site: &Site, change: &mut Change, head: Gva) -> Result<(), PlanError> {
        change.poke.new = site_bytes(site, Some(head))?;
        change.stub = Some(head);
        Ok(())
    }

    fn change(
        &self,
        site: &Site,
        (sessions, captures): (SessionSet, Captures),
        stub: Option<Gva>,
        own: Option<Gva>,
    ) -> Result<Change, PlanError> {
        let old = match self.state(site.function) {
            FunctionState::Patched { stub, .. } => Some(*stub),
            FunctionState::Nop | FunctionState::Skipped(_) | FunctionState::Gone => None,
        };
        let poke = Poke {
            function: site.function,
            at: site.address,
            expected: site_bytes(site, old)?,
            new: site_bytes(site, stub)?,
        };
        Ok(Change {
            poke,
            sessions,
            captures,
            stub,
            own,
            is_ours: old.is_some(),
        })
    }

    fn template(&mut self, spec: StubSpec, arena: &Arena) -> Result<usize, PlanError> {
        if let Some(index) = self.templates.iter().position(|(known, _)| *known == spec) {
            return Ok(index);
        }
        // Before the arena lies nothing that a stub refers to.
        let base = Gva(arena.start().0.wrapping_sub(TEMPLATE_MAX));
        let template = Template::new(&spec, base)?;
        self.templates.push((spec, template));
        Ok(self.templates.len() - 1)
    }

    /// The stub of this function and template: an earlier one when there is one, for stubs stay.
    fn stub(
        &mut self,
        site: &Site,
        template: usize,
        captures: Captures,
        arena: &mut Arena,
    ) -> Result<Gva, PlanError> {
        let key = (site.function, template, captures);
        if let Some(stub) = self.stubs.get(&key) {
            return Ok(*stub);
        }
        let Some((_, code)) = self.templates.get(template) else {
            return Err(StubError::Assemble("no such template".to_owned()).into());
        };
        let length = code.len() as u64;
        let continue_at = self.behind(site, arena)?;
        let (at, physical) = arena.allocate(length)?;
        let Some((_, code)) = self.templates.get(template) else {
            return Err(StubError::Assemble("no such template".to_owned()).into());
        };
        let bytes = code.stamp_capturing(at, site.function, continue_at, captures)?;
        self.unwritten.push(StubWrite { physical, bytes });
        self.stubs.insert(key, at);
        Ok(at)
    }

    /// The stubs that no one has written to guest memory yet. They must be there before a plan that
    /// was made before this call is applied.
    pub fn take_unwritten(&mut self) -> Vec<StubWrite> {
        std::mem::take(&mut self.unwritten)
    }

    /// Takes back stubs that could not be written, for the next [`Self::take_unwritten`].
    pub fn still_unwritten(&mut self, stubs: impl IntoIterator<Item = StubWrite>) {
        self.unwritten.extend(stubs);
    }

    /// Whether `change` was planned for the function's present state: another plan may have been
    /// applied since.
    #[must_use]
    pub fn is_current(&self, image: &Image, change: &Change) -> bool {
        let now = match self.state(change.poke.function) {
            FunctionState::Patched { stub, .. } => Some(*stub),
            FunctionState::Nop | FunctionState::Skipped(_) | FunctionState::Gone => None,
        };
        image
            .site_of(change.poke.function)
            .is_some_and(|site| site_bytes(site, now) == Ok(change.poke.expected))
    }

    /// Notes that `change` has been written.
    pub fn applied(&mut self, change: &Change) {
        let state = match change.stub {
            Some(stub) => FunctionState::Patched {
                sessions: change.sessions,
                captures: change.captures,
                stub,
                own: change.own,
            },
            None => FunctionState::Nop,
        };
        self.set(change.poke.function, state);
    }

    /// Notes that a site was left as it was found.
    pub fn skipped(&mut self, function: FunctionId, why: PokeError) {
        self.set(function, FunctionState::Skipped(why));
    }

    fn set(&mut self, function: FunctionId, state: FunctionState) {
        if let Some(slot) = self.states.get_mut(function.index()) {
            *slot = state;
        }
    }
}

/// Where in its function a site stands, and whether the function's return can be hooked.
#[must_use]
pub fn shape(image: &Image, site: &Site) -> SiteShape {
    match site.kind {
        _ if image.unhookable(site.function).is_some() => SiteShape::EntryOnly,
        SiteKind::Mcount => SiteShape::AfterPrologue,
        SiteKind::Fentry | SiteKind::Patchable => SiteShape::Entry,
        SiteKind::Displaced => SiteShape::Bare,
    }
}

/// What stands at a site that leads to `stub`, or to none.
fn site_bytes(site: &Site, stub: Option<Gva>) -> Result<SiteBytes, StubError> {
    let old = match site.form.displaced() {
        Some(displaced) => *displaced,
        None => SiteBytes::new(untraced(site)),
    };
    let Some(stub) = stub else { return Ok(old) };
    let jump = jump(site.address, stub).ok_or(StubError::OutOfReach {
        stub,
        what: "its function",
    })?;
    Ok(old.with_start(&jump))
}

/// The nop at a site that is not traced: the compiler's own, or the one that normalising put there.
pub(super) fn untraced(site: &Site) -> [u8; SITE_LENGTH] {
    match site.form {
        SiteForm::Nop5 | SiteForm::One(_) | SiteForm::Several(_) => site.original,
        _ => NOP5,
    }
}

#[cfg(test)]
mod tests;
