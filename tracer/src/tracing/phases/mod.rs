//! The phases of a guest's start. A kernel that is traced from its first functions on changes, later in its start, what
//! tracing rests on ([`Border`]): its page tables, its sites, what tells its processors apart. It is trapped when it is
//! about to, and when it has.
//!
//! ```text
//!   attach point        window, stubs, rings for all vCPUs; only the first one runs, and writes to its own
//!   clears its tables   the entries of the window are put back
//!   makes its nops      before: every site is as it was linked; nothing is recorded meanwhile
//!                       after: each vCPU finds its own cell, what was traced is traced again
//! ```

mod state;

use std::sync::Arc;

use image::Image;
use terms::addr::Gva;

use self::state::Stage;
pub(super) use self::state::{Phases, check_borders};
use super::error::TracingError;
use super::remarks::functions_traced;
use super::{Attachment, Tracing};
use crate::engine::Apart;
use crate::guest::{Guest, StoppedGuest};
use crate::guest_kind;
use crate::personality::{Border, Crossing};
use crate::target::{StoppedTarget, TargetMemory};

impl Tracing {
    /// The guest is where tracing begins, or where [`Self::before_start`] or this has asked for it to be trapped: does
    /// what is to be done there. Where a vCPU is trapped, the breakpoint is removed before. Returns where it is to be
    /// trapped next.
    ///
    /// # Errors
    /// A [`TracingError`] ends the run.
    pub fn reached(&mut self, guest: &impl Guest) -> Result<Option<Gva>, TracingError> {
        self.attachment.phases.is_trapped = true;
        let next = match self.attachment.phases.next.take() {
            None => begin_waiting(self, guest).map(|()| first(&self.attachment)),
            Some((Stage::Enters(border), at)) => enter(self, guest, border, at).map(Some),
            Some((Stage::Leaves(border), _)) => leave(self, guest, border),
        };
        let phases = &mut self.attachment.phases;
        phases.is_trapped = false;
        phases.next = next?;
        Ok(phases.next.map(|(_, at)| at))
    }
}

/// Starts the sessions that wait for the attach point.
fn begin_waiting(tracing: &mut Tracing, guest: &impl Guest) -> Result<(), TracingError> {
    while let Some(index) = tracing.attachment.sessions.next_waiting() {
        let session = tracing.attachment.sessions.at(index)?;
        session.waiting = false;
        let (name, filter) = (session.name.clone(), session.filter.clone());
        let changed = tracing.begin(guest, index, filter)?;
        let probes = tracing.probes.count_of(&name);
        if changed.traced > 0 || probes == 0 {
            log::info!("{}", functions_traced(changed.traced));
        }
        match probes {
            0 => {}
            1 => log::info!("1 probe is set"),
            several => log::info!("{several} probes are set"),
        }
        let remarks = changed.remarks();
        remarks.iter().for_each(|line| log::info!("{line}"));
        tracing.attachment.phases.said.extend(remarks);
    }
    Ok(())
}

/// The first border of a guest that has just been attached to, if it has one before it.
fn first(on: &Attachment) -> Option<(Stage, Gva)> {
    let foothold = on.engine.foothold().filter(|foothold| foothold.starts())?;
    let borders = guest_kind::of(&on.shared.image).borders().iter();
    let is_ahead = |border: &&Border| match border.crossing {
        Crossing::ClearsTables => foothold.window().is_to_be_cleared(),
        Crossing::MakesNops => true,
    };
    entry(on, borders.filter(is_ahead))
}

/// Where the first of these borders is entered.
fn entry(
    on: &Attachment,
    mut borders: impl Iterator<Item = &'static Border>,
) -> Option<(Stage, Gva)> {
    let border = borders.next()?;
    let at = on.shared.image.symbols.address_of(border.function)?;
    Some((Stage::Enters(border), at))
}

/// A vCPU is at the first instruction of the function: what would be in its way is taken out. Returns where it is when it
/// has run it.
fn enter(
    tracing: &mut Tracing,
    guest: &impl Guest,
    border: &'static Border,
    at: Gva,
) -> Result<(Stage, Gva), TracingError> {
    let back = return_address(guest, &tracing.attachment.shared.image, border, at)?;
    if border.crossing == Crossing::MakesNops {
        let started = tracing.attachment.sessions.started();
        let started = started.map(|session| (session.name.clone(), session.filter.clone()));
        let resting: Vec<_> = started.collect();
        for (name, _) in &resting {
            tracing.stop(guest, name)?;
        }
        let phases = &mut tracing.attachment.phases;
        (phases.resting, phases.rewriting) = (resting, Some(border.function));
    }
    Ok((Stage::Leaves(border), back))
}

/// Where the function returns to that a vCPU is about to run. Nothing of ours calls it, so that is text of the guest's.
fn return_address(
    guest: &impl Guest,
    image: &Image,
    border: &Border,
    at: Gva,
) -> Result<Gva, TracingError> {
    let stopped = guest.stop()?;
    let none = |why: &'static str| TracingError::NoWayBack {
        function: border.function,
        why,
    };
    let mut vcpus = stopped.vcpus().iter();
    let vcpu = vcpus.find(|vcpu| vcpu.online && vcpu.rip == at.0);
    let vcpu = vcpu.ok_or_else(|| none("no vCPU is at its first instruction"))?;
    let mut bytes = [0; 8];
    let read = stopped.read(Gva(vcpu.rsp), &mut bytes);
    read.map_err(|_| none("its stack cannot be read"))?;
    let back = Gva(u64::from_le_bytes(bytes));
    let is_text = image.text.iter().any(|range| range.holds(back, 1));
    is_text
        .then_some(back)
        .ok_or_else(|| none("it returns to what is no text of the kernel's"))
}

/// A vCPU has run the function. Returns what it is trapped for next.
fn leave(
    tracing: &mut Tracing,
    guest: &impl Guest,
    border: &'static Border,
) -> Result<Option<(Stage, Gva)>, TracingError> {
    match border.crossing {
        Crossing::ClearsTables => {
            let looks = &mut tracing.window_watch.looks;
            if let Err(lost) = tracing.attachment.check_foothold(guest, looks)? {
                tracing.end_tracing(guest, lost);
                return Ok(None);
            }
        }
        Crossing::MakesNops => {
            hand_over(&mut tracing.attachment, guest)?;
            begin_again(tracing, guest, border)?;
        }
    }
    let on = &tracing.attachment;
    let borders = guest_kind::of(&on.shared.image).borders().iter();
    let later = borders.skip_while(|one| **one != *border).skip(1);
    Ok(entry(on, later))
}

/// From here on every site is one nop, and each vCPU has its own cell, if it can be told from the others.
fn hand_over(on: &mut Attachment, guest: &impl Guest) -> Result<(), TracingError> {
    let image = Arc::clone(&on.shared.image);
    let mut stopped = guest.stop()?;
    guest.check_clocks(&mut stopped);
    stopped.fetch_kernel_gs_base()?;
    let foothold = on.engine.foothold_mut()?;
    match foothold.tell_vcpus_apart(&mut stopped, &image)? {
        Apart::Before => {}
        Apart::By(cells) => {
            cells.give_to(&mut on.engine, &mut stopped)?;
            let engine = &on.engine;
            let mut sessions = on.sessions.iter();
            sessions.try_for_each(|session| session.move_cells(engine))?;
        }
        Apart::No(why_not) => {
            guest.clocks().share();
            on.sessions.share_rings();
            log::warn!("all vCPUs write to the ring of the first one: {why_not}");
        }
    }
    on.engine.sites_mut().are_normal();
    on.phases.rewriting = None;
    Ok(())
}

/// Starts the sessions again that rested.
fn begin_again(
    tracing: &mut Tracing,
    guest: &impl Guest,
    border: &Border,
) -> Result<(), TracingError> {
    for (name, filter) in std::mem::take(&mut tracing.attachment.phases.resting) {
        let index = tracing.attachment.sessions.find(&name)?;
        let changed = match tracing.begin(guest, index, filter) {
            Err(error @ TracingError::VcpusAlike { .. }) => {
                log::error!("it is not traced any more: {error}");
                continue;
            }
            begun => begun?,
        };
        let traced = functions_traced(changed.traced);
        let function = border.function;
        log::info!("session {name}: nothing was recorded while {function} ran; {traced} again");
        let said = &tracing.attachment.phases.said;
        let remarks = changed.remarks().into_iter();
        let news = remarks.filter(|line| !said.contains(line));
        news.for_each(|line| log::info!("{line}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
