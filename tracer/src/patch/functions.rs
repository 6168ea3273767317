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
use std::collections::hash_map::Entry;

use image::{Image, Site, SiteForm, SiteKind};
use insn::jump::jump;
use insn::nop::NOP5;
use insn::relocate::decode;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;
use terms::site::SITE_LENGTH;
use terms::site::SiteBytes;

use crate::stub::detour::Detour;
use crate::stub::spec::SiteShape;
use crate::stub::spec::StubSpec;
use crate::stub::store::{Piece, StoreError, StubStore, TemplateId};
use crate::stub::template::{Captures, StubError};
use crate::target::{TargetMemory, WindowMemory};
use crate::text::edit::Edit;
use crate::text::poke::{Poke, PokeError};

/// Jumps that are looked at, to know whether any is still there.
const SAMPLE: usize = 64;

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

/// What is to be done at a site.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The sessions that record it.
    pub sessions: SessionSet,
    /// Where it stands.
    pub shape: SiteShape,
    /// What its stub calls.
    pub captures: Captures,
}

/// What decides the template of a site: by whom it is traced, where it stands, and whether something is captured.
type TemplateKey = (SessionSet, SiteShape, bool, bool);

impl Wanted {
    const fn key(&self) -> TemplateKey {
        let (entry, exit) = (self.captures.entry.is_some(), self.captures.exit.is_some());
        (self.sessions, self.shape, entry, exit)
    }
}

/// Where the function goes on after its site: after the nop, or in the detour of what is displaced there.
///
/// # Errors
/// A [`StoreError`].
pub fn after(
    site: &Site,
    store: &mut StubStore,
    memory: &mut (impl WindowMemory + ?Sized),
) -> Result<Gva, StoreError> {
    let Some(displaced) = site.form.displaced() else {
        return Ok(site.address.wrapping_add(SITE_LENGTH as u64));
    };
    let detour = Detour {
        from: site.address,
        code: displaced.as_slice().into(),
    };
    store.place(memory, Piece::Detour(detour))
}

/// The states of all functions of an image.
#[derive(Debug)]
pub struct FunctionTable {
    states: Vec<FunctionState>,
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
        Self { states, gone: 0 }
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

    /// The sessions that trace each function.
    pub fn all_sessions(&self) -> impl Iterator<Item = SessionSet> {
        let leads = self.states.iter().map(FunctionState::lead);
        leads.map(|lead| lead.map_or_else(SessionSet::default, |lead| lead.sessions))
    }

    /// How many functions lead to a session.
    #[must_use]
    pub fn traced_by(&self, session: u8) -> usize {
        self.all_sessions().filter(|set| set.has(session)).count()
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

    /// How many functions with a site are gone.
    #[must_use]
    pub fn gone_of(&self, image: &Image) -> usize {
        let sites = image.sites.iter();
        sites.filter(|site| self.is_gone(site.function)).count()
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

    /// Whether none of our jumps is where it was written, of some that are looked at. The guest may write over one or
    /// the other.
    #[must_use]
    pub fn has_lost_its_jumps(&self, image: &Image, memory: &(impl TargetMemory + ?Sized)) -> bool {
        let jump_at = |site: &Site| jump(site.address, self.state(site.function).lead()?.stub);
        let sites = image.sites.iter();
        let ours = sites.filter_map(|site| Some((site.address, jump_at(site)?)));
        let stands = |(at, jump)| {
            let mut found = [0; SITE_LENGTH];
            memory.read(at, &mut found).is_ok().then_some(found == jump)
        };
        let mut seen = ours.take(SAMPLE).filter_map(stands).peekable();
        seen.peek().is_some() && !seen.any(|stands| stands)
    }

    /// Plans the change from what is traced to `wanted(function)` for each function with a site: by whom, and what
    /// is captured of it. `spec` says what the stub of some sessions does. A function whose return is not hooked has its
    /// entry captured only.
    ///
    /// # Errors
    /// A [`StoreError`]; then nothing has changed but that some stubs are ready for another time.
    pub fn plan(
        &self,
        image: &Image,
        wanted: impl Fn(FunctionId) -> (SessionSet, Captures),
        spec: impl Fn(SessionSet, SiteShape, Captures) -> StubSpec,
        store: &mut StubStore,
        memory: &mut (impl WindowMemory + ?Sized),
    ) -> Result<Vec<Change>, StoreError> {
        let mut changes = Vec::new();
        let mut templates: HashMap<TemplateKey, TemplateId> = HashMap::new();
        for site in &image.sites {
            let wanted = wanted(site.function);
            let template =
                |wanted: Wanted, store: &mut StubStore| match templates.entry(wanted.key()) {
                    Entry::Occupied(known) => Ok(*known.get()),
                    Entry::Vacant(free) => {
                        let spec = spec(wanted.sessions, wanted.shape, wanted.captures);
                        Ok(*free.insert(store.template(spec)?))
                    }
                };
            let change = self.plan_site((image, site), wanted, template, store, memory)?;
            changes.extend(change);
        }
        Ok(changes)
    }

    /// The same of one site; nothing when it is so already. `template` is that of its stub.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub fn plan_site(
        &self,
        (image, site): (&Image, &Site),
        (sessions, mut captures): (SessionSet, Captures),
        template: impl FnOnce(Wanted, &mut StubStore) -> Result<TemplateId, StoreError>,
        store: &mut StubStore,
        memory: &mut (impl WindowMemory + ?Sized),
    ) -> Result<Option<Change>, StoreError> {
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
            let wanted = Wanted {
                sessions,
                shape,
                captures,
            };
            let piece = Piece::Function {
                template: template(wanted, store)?,
                function: site.function,
                go_on: after(site, store, memory)?,
                captures,
            };
            Some(store.place(memory, piece)?)
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

    /// The stub of the function's sessions, and of what is captured of it, if it has one.
    #[must_use]
    pub fn own(&self, function: FunctionId) -> Option<Gva> {
        self.state(function).lead()?.own
    }

    /// Plans that the jump at `site` leads to the probes at `head`, which these sessions record, or to none any more.
    ///
    /// # Errors
    /// A [`StoreError`].
    pub fn plan_probes(
        &self,
        site: &Site,
        head: Option<Gva>,
        probed_by: SessionSet,
    ) -> Result<Change, StoreError> {
        let own = self.own(site.function);
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
    /// A [`StoreError`].
    pub fn lead_through(
        site: &Site,
        change: &mut Change,
        head: Gva,
        probed_by: SessionSet,
    ) -> Result<(), StoreError> {
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
