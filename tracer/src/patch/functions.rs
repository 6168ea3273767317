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
use insn::relocate::{RelocateError, decode, relocate};
use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::session_set::SessionSet;
use terms::site::SITE_LENGTH;
use terms::site::SiteBytes;

use crate::stub::arena::{Arena, ArenaFull};
use crate::stub::graph::SiteShape;
use crate::stub::template::{Captures, StubError, StubSpec, TEMPLATE_MAX, Template};
use crate::text::edit::Edit;
use crate::text::poke::{Poke, PokeError};

/// Where our jump at a site leads, and what is done there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// The sessions whose recorders run.
    pub sessions: SessionSet,
    /// What its stub calls.
    pub captures: Captures,
    /// Where the jump leads.
    pub stub: Gva,
    /// The stub of the sessions: what the jump leads to, or the probes at this site that it leads to.
    pub own: Option<Gva>,
    /// The sessions that record those probes.
    pub probed_by: SessionSet,
}

/// What is known of one function's site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FunctionState {
    /// The nop stands there.
    Nop,
    /// Our jump stands there, and leads there.
    Patched(Lead),
    /// It was not what it should have been when it was to be patched: left as it is.
    Skipped(PokeError),
    /// The guest has given its memory back: nothing is written there any more.
    Gone,
}

impl FunctionState {
    /// Whether our jump stands there for a user: not if its stub only tells of modules.
    #[must_use]
    pub fn is_patched(&self) -> bool {
        let Some(lead) = self.lead() else {
            return false;
        };
        let tells_only = lead.captures.entry.is_some() && lead.captures.exit.is_none();
        !(lead.sessions.is_empty() && tells_only && Some(lead.stub) == lead.own)
    }

    /// Where our jump leads, if it stands there.
    #[must_use]
    pub fn lead(&self) -> Option<Lead> {
        match self {
            Self::Patched(lead) => Some(*lead),
            Self::Nop | Self::Skipped(_) | Self::Gone => None,
        }
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
    /// Where our jump leads now; none where the nop stands.
    pub before: Option<Lead>,
    /// Where it leads afterwards.
    pub after: Option<Lead>,
}

impl Change {
    /// The change that takes this one back.
    #[must_use]
    pub const fn reverse(self) -> Self {
        Self {
            poke: self.poke.reverse(),
            before: self.after,
            after: self.before,
        }
    }

    /// The write, with what has to be found out before it.
    #[must_use]
    pub fn edit(&self, image: &Image) -> Edit {
        let form = image.site_of(self.poke.function).map(|site| site.form);
        let displaced = form.and_then(|form| form.displaced().copied());
        match (displaced, self.before, self.after) {
            (Some(_), None, Some(_)) => Edit::displacing(self.poke, inner(form, self.poke.at)),
            (Some(_), Some(_), None) => {
                Edit::displacing(self.poke.reverse(), inner(form, self.poke.at)).reverse()
            }
            _ => Edit::new(self.poke, self.before.is_some(), self.after.is_some()),
        }
    }
}

/// Where the instructions begin that are displaced at a site, after the first.
fn inner(form: Option<SiteForm>, at: Gva) -> Vec<Gva> {
    let Some(SiteForm::Several(bytes)) = form else {
        return Vec::new();
    };
    let all = decode(bytes.as_slice(), at).unwrap_or_default();
    all.iter().skip(1).map(|one| Gva(one.ip())).collect()
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
    /// How often memory of a function was given back.
    gone: u64,
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
            gone: 0,
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
        let lead = self.state(function).lead();
        lead.map_or_else(SessionSet::default, |lead| lead.sessions)
    }

    /// What a function's stub calls.
    #[must_use]
    pub fn captures(&self, function: FunctionId) -> Captures {
        let lead = self.state(function).lead();
        lead.map_or_else(Captures::default, |lead| lead.captures)
    }

    /// Whether the function's memory was given back.
    #[must_use]
    pub fn is_gone(&self, function: FunctionId) -> bool {
        matches!(self.state(function), FunctionState::Gone)
    }

    /// Notes that the function's memory was given back, with whatever stood there.
    pub fn gone(&mut self, function: FunctionId) {
        self.set(function, FunctionState::Gone);
        self.gone += 1;
    }

    /// How often memory of a function was given back: if it is no more than it was, all that was there is.
    #[must_use]
    pub fn gone_so_far(&self) -> u64 {
        self.gone
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
    ) -> Result<Vec<Change>, PlanError> {
        let mut changes = Vec::new();
        let mut templates = Templates::new();
        for site in &image.sites {
            let wanted = wanted(site.function);
            let change = self.plan_site((image, site), wanted, &spec, arena, &mut templates)?;
            changes.extend(change);
        }
        Ok(changes)
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
        let lead = stub.map(|stub| Lead {
            sessions,
            captures,
            stub,
            own: Some(stub),
            probed_by: SessionSet::default(),
        });
        Ok(Some(self.change(site, lead)?))
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
        let own = self.state(site.function).lead().and_then(|lead| lead.own);
        own.map_or_else(|| self.behind(site, arena), Ok)
    }

    /// Plans that the jump at `site` leads to the probes at `head`, which these sessions record, or to none any more.
    ///
    /// # Errors
    /// A [`PlanError`].
    pub fn plan_probes(
        &self,
        site: &Site,
        head: Option<Gva>,
        probed_by: SessionSet,
    ) -> Result<Change, PlanError> {
        let own = self.state(site.function).lead().and_then(|lead| lead.own);
        let lead = head.or(own).map(|stub| Lead {
            sessions: self.sessions(site.function),
            captures: self.captures(site.function),
            stub,
            own,
            probed_by,
        });
        Ok(self.change(site, lead)?)
    }

    /// Has a planned change lead to the stub of its sessions through the probes at `head`, which these sessions record.
    ///
    /// # Errors
    /// A [`PlanError`].
    pub fn lead_through(
        site: &Site,
        change: &mut Change,
        head: Gva,
        probed_by: SessionSet,
    ) -> Result<(), PlanError> {
        change.poke.new = site_bytes(site, Some(head))?;
        let own = change.after;
        change.after = Some(Lead {
            sessions: own.map(|lead| lead.sessions).unwrap_or_default(),
            captures: own.map(|lead| lead.captures).unwrap_or_default(),
            stub: head,
            own: own.and_then(|lead| lead.own),
            probed_by,
        });
        Ok(())
    }

    fn change(&self, site: &Site, after: Option<Lead>) -> Result<Change, StubError> {
        let before = self.state(site.function).lead();
        let bytes = |lead: Option<Lead>| site_bytes(site, lead.map(|lead| lead.stub));
        Ok(Change {
            poke: Poke {
                function: site.function,
                at: site.address,
                expected: bytes(before)?,
                new: bytes(after)?,
            },
            before,
            after,
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
    pub fn is_current(&self, change: &Change) -> bool {
        let state = self.state(change.poke.function);
        *state != FunctionState::Gone && state.lead() == change.before
    }

    /// Notes that `change` has been written.
    pub fn applied(&mut self, change: &Change) {
        let state = change
            .after
            .map_or(FunctionState::Nop, FunctionState::Patched);
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
