//! What is wanted at the functions' own sites.
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
//! several.

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
use crate::stub::spec::{SiteShape, StubSpec};
use crate::stub::store::{Piece, StoreError, StubStore, TemplateId};
use crate::stub::template::{Captures, StubError};
use crate::target::WindowMemory;
use crate::text::edit::{Lead, Point, Wanted};
use crate::text::sites::Sites;

/// What ends recording at a site: bits for each session that has any there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct HaltSet(pub Vec<(u8, u8)>);

impl HaltSet {
    /// Those of a session.
    #[must_use]
    pub fn bits(&self, session: u8) -> u8 {
        let of = self.0.iter().find(|(id, _)| *id == session);
        of.map_or(0, |(_, bits)| *bits)
    }
}

/// What is to be done at a site.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The sessions that record it.
    pub sessions: SessionSet,
    /// Where it stands.
    pub shape: SiteShape,
    /// What its stub calls.
    pub captures: Captures,
    /// What ends recording there.
    pub halts: HaltSet,
}

/// What decides the template of a site: by whom it is traced, where it stands, whether something is captured, and what
/// ends recording.
type TemplateKey = (SessionSet, SiteShape, bool, bool, HaltSet);

impl Recording {
    fn key(&self) -> TemplateKey {
        let (entry, exit) = (self.captures.entry.is_some(), self.captures.exit.is_some());
        let halts = self.halts.clone();
        (self.sessions, self.shape, entry, exit, halts)
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

/// Where the sites have to lead so that `wanted(function)` is done in each: by whom it is traced, and what
/// is captured of it, and what ends recording there. `spec` says what the stub of a site does. A function whose return is not hooked has its
/// entry captured only. Sites of which nothing else is wanted than now are left out, but not those of the sessions `anew`, of
/// which stubs do something else than before.
///
/// # Errors
/// A [`StoreError`]; then nothing has changed but that some stubs are ready for another time.
pub fn leads<'i>(
    image: &'i Image,
    sites: &Sites,
    anew: SessionSet,
    wanted: impl Fn(FunctionId) -> (SessionSet, Captures, HaltSet),
    spec: impl Fn(&Recording) -> StubSpec,
    store: &mut StubStore,
    memory: &mut (impl WindowMemory + ?Sized),
) -> Result<Vec<(&'i Site, Option<Lead>)>, StoreError> {
    let mut leads = Vec::new();
    let mut templates: HashMap<TemplateKey, TemplateId> = HashMap::new();
    for site in &image.sites {
        let wanted = wanted(site.function);
        let template =
            |wanted: Recording, store: &mut StubStore| match templates.entry(wanted.key()) {
                Entry::Occupied(known) => Ok(*known.get()),
                Entry::Vacant(free) => Ok(*free.insert(store.template(spec(&wanted))?)),
            };
        let is_anew = wanted.0.iter().any(|id| anew.has(id));
        let lead = lead(
            (image, site),
            sites,
            (wanted, is_anew),
            template,
            store,
            memory,
        )?;
        leads.extend(lead.map(|lead| (site, lead)));
    }
    Ok(leads)
}

/// The same of one site; nothing when it is so already, and its stub is not to be another one. `template` is that of its stub.
///
/// # Errors
/// As [`leads`].
pub fn lead(
    (image, site): (&Image, &Site),
    sites: &Sites,
    ((sessions, mut captures, halts), is_anew): ((SessionSet, Captures, HaltSet), bool),
    template: impl FnOnce(Recording, &mut StubStore) -> Result<TemplateId, StoreError>,
    store: &mut StubStore,
    memory: &mut (impl WindowMemory + ?Sized),
) -> Result<Option<Option<Lead>>, StoreError> {
    let shape = shape(image, site);
    if shape == SiteShape::EntryOnly {
        captures.exit = None;
    }
    let now = (sites.sessions(site.function), sites.captures(site.function));
    let is_so = now == (sessions, captures) && !is_anew;
    if sites.is_gone(site.function) || is_so {
        return Ok(None);
    }
    if sessions.is_empty() && captures.is_empty() {
        return Ok(Some(None));
    }
    let wanted = Recording {
        sessions,
        shape,
        captures,
        halts,
    };
    let piece = Piece::Function {
        template: template(wanted, store)?,
        function: site.function,
        go_on: after(site, store, memory)?,
        captures,
    };
    let stub = store.place(memory, piece)?;
    Ok(Some(Some(Lead {
        to: stub,
        traced_by: sessions,
        recorded_by: SessionSet::default(),
        own: Some(stub),
        captures,
    })))
}

/// What is wanted at a site that leads there, or nowhere; `sites` know what stands there.
///
/// # Errors
/// A [`StubError`] when its jump does not reach.
pub fn wanted(site: &Site, sites: &Sites, lead: Option<Lead>) -> Result<Wanted, StubError> {
    let displaced = site.form.displaced();
    let original = displaced.copied();
    let is_as_linked = sites.is_as_linked(site.function);
    let original = original.unwrap_or_else(|| match is_as_linked {
        true => SiteBytes::new(site.original),
        false => SiteBytes::new(untraced(site)),
    });
    let ours = match lead {
        Some(lead) => {
            let jump = jump(site.address, lead.to).ok_or(StubError::OutOfReach {
                stub: lead.to,
                what: "its function",
            })?;
            Some((original.with_start(&jump), lead))
        }
        None => None,
    };
    Ok(Wanted {
        displaces: displaced.is_some(),
        inner: inner(site, is_as_linked),
        ..Wanted::new(Point::Function, site.function, site.address, original, ours)
    })
}

/// Where the instructions begin that stand at a site, after the first.
fn inner(site: &Site, is_as_linked: bool) -> Vec<Gva> {
    let bytes = match &site.form {
        SiteForm::Several(bytes) => bytes.as_slice(),
        SiteForm::MultiNop if is_as_linked => &site.original,
        _ => return Vec::new(),
    };
    let all = decode(bytes, site.address).unwrap_or_default();
    all.iter().skip(1).map(|one| Gva(one.ip())).collect()
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

/// What stands at a site that is not traced: the compiler's own nop, the one that normalising put there, or a call that the guest has
/// left.
pub(super) fn untraced(site: &Site) -> [u8; SITE_LENGTH] {
    match site.form {
        SiteForm::Nop5 | SiteForm::LeftCall | SiteForm::One(_) | SiteForm::Several(_) => {
            site.original
        }
        SiteForm::RawCall { .. } | SiteForm::MultiNop => NOP5,
    }
}

#[cfg(test)]
mod tests;
