//! Probes: what is captured at places that a user has named.
//!
//! A probe is registered once, and recorded by a session for as long as that wants it. The probes at one place are
//! a chain of stubs, each of which continues at the next; the last one continues at the stub of the function's own
//! sessions, or in the function. Stubs stay, so a chain that was there before is found again.

pub mod error;
pub mod id;
mod place;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use self::error::ProbeError;
pub use self::id::ProbeId;
use image::Image;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::function::FunctionId;

use super::Foothold;
use super::plan::Recorded;
use super::transient::Transient;
use crate::capture::Capture;
use crate::event_formats::EventFormats;
use crate::points::probes::Places;
use crate::points::tactic::JumpPlace;
use crate::probe::Point;
use crate::session::SessionId;
use crate::text::sites::Sites;

/// What a probe is made of.
#[derive(Debug, Clone)]
pub struct NewProbe {
    /// What its event is called.
    pub name: Arc<str>,
    /// When it is hit.
    pub point: Point,
    /// What it captures.
    pub capture: Capture,
    /// The number of the tactic that is to be used; the best one without it.
    pub tactic: Option<u8>,
    /// Whether it waits for the module that it is in, whenever that is not there.
    pub waits_for_module: bool,
    /// The probe that it was before its text went, which it is again.
    pub again: Option<ProbeId>,
}

/// A probe.
#[derive(Debug)]
pub struct Probe {
    /// Its number.
    pub id: ProbeId,
    /// The number of its event.
    pub event: EventId,
    /// What its event is called.
    pub name: Arc<str>,
    /// The instruction that it is hit before.
    pub address: Gva,
    /// Whether it is hit when the function has returned instead.
    pub is_return: bool,
    /// Where the text is changed for it, and how.
    pub place: JumpPlace,
    /// What it captures.
    pub capture: Arc<Capture>,
    /// The session that records it now.
    pub session: Option<SessionId>,
    /// Whether its text went while it was set: then it is not hit, whatever comes to the same place, until somebody has
    /// put it where its text is now.
    pub is_lost: bool,
    /// Whether it waits for the module that it is in, whenever that is not there.
    pub waits_for_module: bool,
}

/// All probes, and the places where they sit.
#[derive(Debug, Default)]
pub struct Probes {
    all: BTreeMap<ProbeId, Probe>,
    pub(super) places: Places,
    /// The port by which vCPUs leave the guest at probes, if the host sees to them: [`Self::detours`] says where they
    /// continue.
    pub(super) trap_port: Option<u8>,
}

impl Probes {
    /// Every probe that has not been forgotten.
    pub fn iter(&self) -> impl Iterator<Item = &Probe> {
        self.all.values()
    }

    /// A probe.
    ///
    /// # Errors
    /// [`ProbeError::NoSuchProbe`].
    pub fn get(&self, id: ProbeId) -> Result<&Probe, ProbeError> {
        let found = self.all.get(&id);
        found.ok_or(ProbeError::NoSuchProbe(id.0))
    }

    /// Whether these probes can be set, all of them at once, as far as the image says: who serves breakpoints may be
    /// known at the attach only.
    ///
    /// # Errors
    /// A [`ProbeError`] about the first that cannot.
    pub(super) fn check(
        &self,
        image: &Image,
        foothold: Option<&Foothold>,
        all: &[NewProbe],
    ) -> Result<(), ProbeError> {
        let mut beside = Vec::new();
        for new in all {
            let (function, address) = where_is(image, new.point)?;
            match self.choose_place(image, foothold, function, address, new.tactic, &beside) {
                Ok(place) => beside.push(place),
                Err(ProbeError::NoPlace { why, .. })
                    if foothold.is_none() && why.may_be_served() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Registers a probe, which nobody records yet.
    ///
    /// # Errors
    /// A [`ProbeError`].
    pub(super) fn add(
        &mut self,
        image: &Image,
        foothold: Option<&Foothold>,
        sites: &Sites,
        formats: &mut EventFormats,
        new: NewProbe,
    ) -> Result<ProbeId, ProbeError> {
        let (function, address) = where_is(image, new.point)?;
        if sites.is_gone(function) {
            let symbol = image.name_at(address);
            return Err(ProbeError::Gone { symbol });
        }
        let place = self.choose_place(image, foothold, function, address, new.tactic, &[])?;
        if let Some(id) = new.again {
            return self.revive(id, new, (address, place), formats);
        }
        let (id, event) = numbered(formats, &new.name, &new.capture)?;
        let probe = Probe {
            id,
            event,
            name: new.name,
            address,
            is_return: matches!(new.point, Point::Return(_)),
            place,
            capture: Arc::new(new.capture),
            session: None,
            is_lost: false,
            waits_for_module: new.waits_for_module,
        };
        self.all.insert(id, probe);
        Ok(id)
    }

    /// Keeps a number for a probe that cannot be anywhere yet.
    ///
    /// # Errors
    /// [`ProbeError::TooMany`].
    pub(super) fn reserve(
        formats: &mut EventFormats,
        name: Arc<str>,
    ) -> Result<ProbeId, ProbeError> {
        numbered(formats, &name, &Capture::default()).map(|(id, _)| id)
    }

    /// Puts a probe whose text has gone where its text is now. Records of it may still lie in a ring, so its values must have the types that they
    /// had.
    fn revive(
        &mut self,
        id: ProbeId,
        new: NewProbe,
        (address, place): (Gva, JumpPlace),
        formats: &EventFormats,
    ) -> Result<ProbeId, ProbeError> {
        let format = new.capture.format(new.name);
        let probe = self.all.get_mut(&id).filter(|probe| probe.is_lost);
        let probe = probe.ok_or(ProbeError::NoSuchProbe(id.0))?;
        if formats.get(probe.event) != Some(&format) {
            let name = format.name.to_string();
            return Err(ProbeError::OtherTypes { name });
        }
        probe.address = address;
        probe.place = place;
        probe.capture = Arc::new(new.capture);
        probe.is_lost = false;
        Ok(id)
    }

    /// Forgets probes that nobody records.
    pub fn forget(&mut self, ids: &[ProbeId]) {
        for id in ids {
            if self.all.get(id).is_some_and(|one| one.session.is_none()) {
                self.all.remove(id);
            }
        }
    }

    /// Notes which probes were in text that is gone. Says which are so since the last time.
    pub(super) fn take_lost(
        &mut self,
        image: &Image,
        sites: &Sites,
        transient: &Transient,
    ) -> Vec<ProbeId> {
        let mut lost = Vec::new();
        for probe in self.all.values_mut().filter(|probe| !probe.is_lost) {
            // What a module has is there for as long as its functions are.
            let function = image.function(probe.place.function);
            let is_of_kernel = function.is_none_or(|one| one.module.is_none());
            let is_freed = is_of_kernel && transient.is_freed(image, probe.place.at);
            if is_freed || sites.is_gone(probe.place.function) {
                probe.is_lost = true;
                probe.session = None;
                lost.push(probe.id);
            }
        }
        if !lost.is_empty() {
            let lost_at: Vec<Gva> = lost
                .iter()
                .filter_map(|id| Some(self.all.get(id)?.place.at))
                .collect();
            self.places.forget(|place| lost_at.contains(&place.at));
        }
        lost
    }

    /// Whether a probe is recorded as it was when this was planned.
    pub(super) fn is_recorded_as_before(&self, recorded: &Recorded) -> bool {
        let probe = self.all.get(&recorded.probe);
        probe.is_some_and(|probe| probe.session == recorded.before && !probe.is_lost)
    }

    /// Notes who records a probe now.
    pub(super) fn recorded(&mut self, recorded: &Recorded) {
        if let Some(probe) = self.all.get_mut(&recorded.probe) {
            probe.session = recorded.after;
        }
    }

    /// The probes that a session records.
    pub fn recorded_by(&self, session: SessionId) -> impl Iterator<Item = &Probe> {
        let probes = self.all.values();
        probes.filter(move |probe| probe.session == Some(session))
    }
}

/// The numbers of a new probe.
fn numbered(
    formats: &mut EventFormats,
    name: &Arc<str>,
    capture: &Capture,
) -> Result<(ProbeId, EventId), ProbeError> {
    let format = capture.format(Arc::clone(name));
    let event = formats.add(Arc::new(format)).ok_or(ProbeError::TooMany)?;
    let number = event.index() + 1 - formats.declared();
    let id = u32::try_from(number).map_err(|_| ProbeError::TooMany)?;
    Ok((ProbeId(id), event))
}

/// The instruction before which a probe is hit, and its function.
fn where_is(image: &Image, point: Point) -> Result<(FunctionId, Gva), ProbeError> {
    let (function, at) = match point {
        Point::Entry(id) => (Some(id), image.function(id).map(|of| of.address)),
        Point::At { function, at } => (function.or(image.function_at(at)), Some(at)),
        Point::Return(id) => {
            // Hooked where the function is entered.
            check_returns(image, id)?;
            (Some(id), image.site_of(id).map(|site| site.address))
        }
    };
    let at = at.unwrap_or_default();
    Ok((function.ok_or(ProbeError::NoFunction(at))?, at))
}

/// Whether the return of a function can be hooked.
fn check_returns(image: &Image, id: FunctionId) -> Result<(), ProbeError> {
    let why = match (image.site_of(id), image.unhookable(id)) {
        (None, _) => "it has no patch site, and only there returns are hooked".to_owned(),
        (_, Some(why)) => format!("its return cannot be hooked: {why}"),
        (Some(_), None) => return Ok(()),
    };
    let symbol = image.function(id).map(|of| of.display.to_string());
    let symbol = symbol.unwrap_or_default();
    Err(ProbeError::Forbidden { symbol, why })
}
