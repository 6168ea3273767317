//! Where a probe sits, and the code that it leads to.

use std::sync::Arc;

use std::collections::BTreeSet;

use image::{Image, Site, SiteKind};
use insn::flow::leaves_kernel;
use terms::addr::Gva;
use terms::function::FunctionId;

use super::{Probe, ProbeError, ProbeId, Probes};
use crate::engine::planning::Planning;
use crate::engine::{ApplyError, Foothold};
use crate::filter::DenyList;
use crate::points::breakpoints::{self, Server};
use crate::points::tactic::{JumpPlace, Refusal, Tactic, TacticError, choose_beside};
use crate::session::SessionId;
use crate::stub::capture::{CapturePart, CaptureStub, Standing};
use crate::stub::event::Tail;
use crate::stub::store::{Piece, StoreError};
use crate::target::WindowMemory;
use crate::text::sites::Sites;

impl Probes {
    /// The padding that probes use, and will use with those beside them.
    fn padding_taken(&self, beside: &[JumpPlace]) -> BTreeSet<Gva> {
        let mut taken = self.places.padding();
        let probes = self.all.values();
        let places = probes.map(|probe| &probe.place).chain(beside);
        taken.extend(places.filter_map(|place| Some(place.padding?.at)));
        taken
    }

    /// The place that a probe is at already, or will be at with those beside it.
    fn place_at(
        &self,
        at: Gva,
        forced: Option<u8>,
        beside: &[JumpPlace],
    ) -> Result<Option<JumpPlace>, ProbeError> {
        let mut there = self.all.values().filter(|probe| !probe.is_lost);
        let Some(other) = there.find(|probe| probe.place.at == at) else {
            return Ok(beside.iter().find(|place| place.at == at).cloned());
        };
        let tactic = other.place.tactic;
        match forced {
            Some(forced) if forced != tactic.number() => Err(ProbeError::OtherTactic {
                other: other.id.0,
                at,
                tactic,
            }),
            _ => Ok(Some(other.place.clone())),
        }
    }

    /// How a probe at `address` is put into the text: as others are at the same address, else by the tactic that is
    /// forced, else by the first that is certain. `beside` are places that others are to have at the same time.
    pub(super) fn choose_place(
        &self,
        image: &Image,
        foothold: Option<&Foothold>,
        function: FunctionId,
        address: Gva,
        forced: Option<u8>,
        beside: &[JumpPlace],
    ) -> Result<JumpPlace, ProbeError> {
        let site = site_at(image, function, address);
        let at = match (site, forced) {
            (Some(site), None | Some(1)) => site.address,
            _ => address,
        };
        if let Some(there) = self.place_at(at, forced, beside)? {
            return Ok(there);
        }
        let symbol = || {
            let function = image.function(function);
            function.map_or_else(|| at.to_string(), |function| function.display.to_string())
        };
        if site.is_none() {
            let forbidden = |why| ProbeError::Forbidden {
                symbol: symbol(),
                why,
            };
            check_allowed(image, function).map_err(forbidden)?;
        }
        let no_place = |why| ProbeError::NoPlace {
            symbol: symbol(),
            why,
        };
        let taken = self.padding_taken(beside);
        let all = || Tactic::ALL.map(Tactic::number).to_vec();
        let tried = forced.map_or_else(all, |forced| vec![forced]);
        let (mut reasons, mut overlap) = (Vec::new(), None);
        for number in tried {
            let chosen = choose_beside(image, at, Some(number), &taken);
            let chosen = chosen.map(|place| of_function(place, function));
            match chosen.map(|place| (place.tactic, self.possible(image, foothold, place))) {
                Ok((_, Ok(place))) => match self.overlapping(&place, beside) {
                    None => return Ok(place),
                    Some(other) => overlap = Some((place.at, other)),
                },
                Ok((tactic, Err(why))) => reasons.push((tactic, why)),
                Err(TacticError::Refused { tactic, why, .. }) => reasons.push((tactic, why)),
                Err(why) => return Err(no_place(why)),
            }
        }
        // A breakpoint displaces the least: whether it can be one may be known at the attach only.
        let may_be_served = || {
            let mut unserved = reasons.iter().map(|(_, why)| why);
            foothold.is_none() && unserved.any(|why| matches!(why, Refusal::NotServed))
        };
        if let Some((one, other)) = overlap.filter(|_| !may_be_served()) {
            return Err(ProbeError::Overlap { one, other });
        }
        Err(no_place(refusal(at, forced.is_some(), reasons)))
    }

    /// A place of a probe, or `beside`, whose displaced instructions have bytes in common with those of `place`.
    fn overlapping(&self, place: &JumpPlace, beside: &[JumpPlace]) -> Option<Gva> {
        let there = self.all.values().filter(|probe| !probe.is_lost);
        let mut places = there.map(|probe| &probe.place).chain(beside);
        let overlaps = |other: &&JumpPlace| {
            other.at != place.at && other.at < place.end() && place.at < other.end()
        };
        places.find(overlaps).map(|other| other.at)
    }

    /// The place, if somebody serves a breakpoint there. Whether a thread is inside is found out when the jump is
    /// written.
    fn possible(
        &self,
        image: &Image,
        foothold: Option<&Foothold>,
        place: JumpPlace,
    ) -> Result<JumpPlace, Refusal> {
        match place.tactic {
            Tactic::Site | Tactic::One | Tactic::Several | Tactic::Hop => Ok(place),
            Tactic::Breakpoint => match self.server(image, foothold) {
                Some(Server::Guest(_)) => Ok(place),
                Some(Server::Host(port)) => place.leaving_by(port, image),
                None => Err(Refusal::NotServed),
            },
        }
    }

    /// Who serves breakpoints that stay: the guest, if it has said so; else the host, for code of ring 0, where
    /// a port write leaves the guest.
    pub(super) fn server(&self, image: &Image, foothold: Option<&Foothold>) -> Option<Server> {
        if let Some(word) = breakpoints::service(image) {
            return Some(Server::Guest(word));
        }
        let is_user = foothold?.window.is_user();
        self.trap_port.filter(|_| !is_user).map(Server::Host)
    }

    /// The probes at which vCPUs leave the guest now, and where each continues.
    #[must_use]
    pub fn detours(
        &self,
        image: &Image,
        sites: &Sites,
        foothold: Option<&Foothold>,
    ) -> Vec<(Gva, Gva)> {
        match self.server(image, foothold) {
            Some(Server::Host(_)) => self.places.breakpoints(sites, &[]),
            Some(Server::Guest(_)) | None => Vec::new(),
        }
    }

    /// Where the stubs of a place continue. Makes its detour when it is the first one.
    pub(super) fn resume<M: WindowMemory + ?Sized>(
        &mut self,
        with: &mut Planning<'_, M>,
        place: &JumpPlace,
    ) -> Result<Gva, ApplyError> {
        if let Some(state) = self.places.get(place.at)
            && state.place == *place
        {
            return Ok(state.resume);
        }
        let at = place.at;
        let placed = match place.detour() {
            Some(detour) => with.place(Piece::Detour(detour)),
            None => Ok(place.end()),
        };
        let to = match placed {
            Err(ApplyError::Store(StoreError::Detour(why))) => {
                return Err(ProbeError::Detour { at, why }.into());
            }
            placed => placed?,
        };
        self.places.add(place.clone(), to);
        Ok(to)
    }

    /// Where the first of these probes is; each continues at the next, the last one at `go_on`.
    pub fn place_chain<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        chain: &[(ProbeId, SessionId)],
        go_on: Gva,
    ) -> Result<Option<Gva>, ApplyError> {
        let mut next = go_on;
        for (id, session) in chain.iter().rev() {
            next = place_probe(with, self.get(*id)?, *session, next)?;
        }
        Ok((!chain.is_empty()).then_some(next))
    }
}

/// Where a probe that `session` records is, which goes on there.
fn place_probe<M: WindowMemory + ?Sized>(
    with: &mut Planning<'_, M>,
    probe: &Probe,
    session: SessionId,
    go_on: Gva,
) -> Result<Gva, ApplyError> {
    // Whatever stands before a function's own site does nothing.
    let is_entry = |site: &Site| matches!(site.kind, SiteKind::Fentry | SiteKind::Patchable);
    let site = with.image.site_of(probe.place.function);
    let part = CapturePart {
        recorder: with.event_recorder(session, &probe.name)?,
        event: probe.event,
        capture: Arc::clone(&probe.capture),
    };
    let stub = CaptureStub {
        parts: vec![part],
        tail: Tail::Continue,
        lowered: 0,
        standing: match probe.place.tactic {
            Tactic::Site if site.is_some_and(is_entry) => Standing::Between,
            _ => Standing::Inside,
        },
        reach: with.reach(),
    };
    let stub = Box::new(stub);
    with.place(Piece::Capture { stub, go_on })
}

/// The function's own patch site, when a probe at `address` is hit there as well: nothing but what does
/// nothing lies between.
fn site_at(image: &Image, function: FunctionId, address: Gva) -> Option<&Site> {
    let site = image.site_of(function)?;
    let start = image.function(function)?.address;
    let is_entry = site.kind != SiteKind::Mcount && site.address.0.wrapping_sub(start.0) <= 4;
    (address == site.address || is_entry && address == start).then_some(site)
}

/// Whether a probe may sit in a function outside its patch site.
fn check_allowed(image: &Image, id: FunctionId) -> Result<(), String> {
    let Some(function) = image.function(id) else {
        return Ok(());
    };
    let never = DenyList::inside(image).ok();
    let forbids = |list: &DenyList| list.forbids_function(function);
    if let Some((glob, why)) = never.as_ref().and_then(forbids) {
        return Err(format!("it is never changed ('{glob}': {why})"));
    }
    match leaves_kernel(image.code(id), function.address) {
        Some(at) => Err(format!("its instruction at {at} enters or leaves ring 0")),
        None => Ok(()),
    }
}

/// Why none of the tactics that were tried is possible; a tactic that was asked for was tried alone.
fn refusal(at: Gva, is_forced: bool, mut reasons: Vec<(Tactic, Refusal)>) -> TacticError {
    match reasons.pop() {
        Some((tactic, why)) if is_forced => TacticError::Refused { at, tactic, why },
        last => {
            reasons.extend(last);
            TacticError::None { at, why: reasons }
        }
    }
}

/// The place, if it is a site, as that of `function`: another one may have been at these addresses before, of a module that has gone.
fn of_function(place: JumpPlace, function: FunctionId) -> JumpPlace {
    match place.tactic {
        Tactic::Site => JumpPlace { function, ..place },
        _ => place,
    }
}

#[cfg(test)]
mod tests {
    use image::testing::{ElfFile, TEXT};

    use super::*;

    #[test]
    fn no_probe_sits_in_what_runs_before_the_gs_base_is_set() {
        let all = [
            ("secondary_startup_64", false),
            ("any_name", false),
            ("common_startup_64", false),
            ("verify_cpu", false),
            ("ret_from_fork_asm", true),
            ("usual", true),
        ];
        let banner = b"Linux version 7.3.4 (made by hand)\0";
        let mut file = ElfFile::new().data(".banner", TEXT - 0x1_0000, banner);
        for ((name, _), at) in all.into_iter().zip((TEXT..).step_by(16)) {
            file = file.function(name, at, 16);
        }
        let file = file.text(TEXT, &[0x90; 16 * 6]);
        let image = Image::parse(&file.build()).unwrap();
        for ((name, is_allowed), id) in all.into_iter().zip(0..) {
            let allowed = check_allowed(&image, FunctionId(id));
            assert_eq!(allowed.is_ok(), is_allowed, "{name}: {allowed:?}");
        }
    }
}
