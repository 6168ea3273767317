//! What tracers that were killed have left in a guest of another VMM is given back: `vmm attach --restore`, and before every
//! attachment.

use tracer::Restored;

use super::in_memory;
use super::this_host::CLOCK;
use crate::failure::Failure;
use crate::foreign::Foreign;
use terms::quantity::counted;

/// Gives the guest of process `pid` back what was left in it. Returns how many tracers had left something.
///
/// # Errors
/// [`Failure`]; what was given back by then stays so.
pub fn restore(pid: i32) -> Result<usize, Failure> {
    let left = Foreign::left_in(pid)?;
    for window in &left {
        match Foreign::found(pid, window)? {
            Some(mut guest) => give_back(pid, &mut guest)?,
            None => log::info!("process {pid}: tracing memory that its guest never had is gone"),
        }
    }
    Ok(left.len())
}

fn give_back(pid: i32, guest: &mut Foreign) -> Result<(), Failure> {
    let mut all = tracer::restore(guest, None, None)?;
    // What leads to it its kernel may know, which has all its text now.
    if !all.inside.is_nobody() {
        let found = in_memory::found(guest).ok();
        let image = found.as_ref().map(|found| &found.image);
        let more = tracer::restore(guest, image, Some(CLOCK))?;
        all.places += more.places;
        all.inside = more.inside;
    }
    tell(pid, &all);
    if all.inside.is_nobody() {
        guest.set_window_free(true);
        guest.leave().map_err(Failure::tracing)?;
    }
    Ok(())
}

fn tell(pid: i32, all: &Restored) {
    let places = counted(all.places, "place");
    log::info!(
        "process {pid}: its guest had tracing memory of a tracer that is gone: {places} of the guest restored"
    );
    if all.others > 0 {
        let others = counted(all.others, "place");
        log::warn!("{others} of the guest hold what we have not put there: they are left alone");
    }
    if !all.inside.is_nobody() {
        let inside = all.inside;
        log::warn!(
            "process {pid}: of its guest, {inside} still lead to stubs: the tracing memory stays in the guest, which nothing else \
             leads to; try again later"
        );
    }
}
