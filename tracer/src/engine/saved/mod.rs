//! Threads that were interrupted where no instruction will begin any more.
//!
//! When several instructions become one, a thread that continues at the second of them would execute the middle of a
//! jump. The vCPUs' own instruction pointers are known. Those of threads that were preempted before lie in the guest's
//! memory: nobody returns to such a place and no system call comes back there (what is displaced is checked for that),
//! so only an interrupt or a fault can have saved it, and the processor pushes the frames of those at multiples
//! of eight (it aligns the stack to 16 first: Intel's manual, volume 3, 6.14.2). So every word of the guest's memory is
//! looked at, for all places at once, while no vCPU runs. A word that is there by accident, or left by an
//! interrupt that is over, costs a function or a retry, never a thread.
//!
//! Assumed is that whoever moves a saved frame keeps the address in a word at a multiple of eight, and does not hold it
//! in a register alone while it is stopped: between popping a frame and `iret` it is on the stack.

mod search;

use std::collections::BTreeMap;

use image::Image;
use terms::addr::Gva;

use self::search::{SearchOutcome, held};
use super::ApplyError;
use crate::target::StoppedTarget;
use crate::text::poke::{Poke, PokeError, symbol};

/// The steps of which places are closed at which threads may be, each with a reason: `closed` are those places, the
/// number of the step, and the write that closes them.
pub(super) fn occupied(
    image: &Image,
    target: &(impl StoppedTarget + ?Sized),
    mut closed: Vec<(Gva, usize, Poke)>,
) -> Result<BTreeMap<usize, PokeError>, ApplyError> {
    closed.sort_by_key(|(place, ..)| *place);
    let wanted: Vec<Gva> = closed.iter().map(|(place, ..)| *place).collect();
    let mut occupied = BTreeMap::new();
    let closing = |place: Gva| {
        let index = wanted.binary_search(&place).ok()?;
        closed.get(index).map(|(_, step, poke)| (*step, *poke))
    };
    for (vcpu, registers) in target.vcpus().iter().enumerate() {
        let rip = Gva(registers.rip);
        if let Some((step, Poke { function, at, .. })) = closing(rip) {
            let symbol = symbol(image, function);
            let why = PokeError::VcpuInside {
                symbol,
                at,
                vcpu,
                rip,
            };
            occupied.entry(step).or_insert(why);
        }
    }
    match held(target, &wanted).map_err(ApplyError::Search)? {
        SearchOutcome::At(places) => {
            for (rip, held_at) in places {
                let Some((step, Poke { function, at, .. })) = closing(rip) else {
                    continue;
                };
                let symbol = symbol(image, function);
                let why = PokeError::ThreadInside {
                    symbol,
                    at,
                    rip,
                    held_at,
                };
                occupied.entry(step).or_insert(why);
            }
        }
        SearchOutcome::TooMany(words) => {
            for (_, step, Poke { function, at, .. }) in closed {
                let symbol = symbol(image, function);
                let why = PokeError::Crowded { symbol, at, words };
                occupied.entry(step).or_insert(why);
            }
        }
    }
    Ok(occupied)
}
