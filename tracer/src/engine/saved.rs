//! Threads that were interrupted where no instruction will begin any more.
//!
//! When several instructions become one, a thread that goes on at the second of them would execute the middle of a
//! jump. The vCPUs' own instruction pointers are known. Those of threads that were preempted before lie in the guest's
//! memory: nobody returns to such a place and no system call comes back there (what is displaced is checked for that),
//! so only an interrupt or a fault can have saved it, and the processor pushes the frames of those at multiples
//! of eight (it aligns the stack to 16 first: Intel's manual, volume 3, 6.14.2). So every word of the guest's memory is
//! looked at, for all places at once, while no vCPU runs. A word that is there by accident, or left behind by an
//! interrupt that is over, costs a function or a retry, never a thread.
//!
//! Assumed is that whoever moves a saved frame keeps the address in a word at a multiple of four, and does not hold it
//! in a register alone while it is stopped: between popping a frame and `iret` it is on the stack.

mod search;

use image::SiteForm;
use insn::relocate::decode;
use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;

use self::search::{Held, held};
use super::{ApplyError, Engine};
use crate::patch::functions::Change;
use crate::patch::poke::{Poke, PokeError, symbol};
use crate::target::StoppedTarget;

impl Engine {
    /// The functions with places among `inner` at which threads may be, each with a reason; with each place comes the
    /// write that it is the inside of.
    pub(super) fn occupied(
        &self,
        target: &(impl StoppedTarget + ?Sized),
        mut inner: Vec<(Gva, Poke)>,
    ) -> Result<Vec<(FunctionId, PokeError)>, ApplyError> {
        inner.sort_by_key(|(place, _)| *place);
        let wanted: Vec<Gva> = inner.iter().map(|(place, _)| *place).collect();
        let mut occupied: Vec<(FunctionId, PokeError)> = Vec::new();
        let change_at = |place: Gva| {
            let index = wanted.binary_search(&place).ok()?;
            inner.get(index).map(|(_, poke)| *poke)
        };
        for (vcpu, registers) in target.vcpus().iter().enumerate() {
            let rip = Gva(registers.rip);
            if let Some(poke) = change_at(rip) {
                let symbol = symbol(&self.image, poke.function);
                let at = poke.at;
                let why = PokeError::VcpuInside {
                    symbol,
                    at,
                    vcpu,
                    rip,
                };
                occupied.push((poke.function, why));
            }
        }
        let thread_inside = |(rip, held_at): (Gva, Gpa)| {
            let Poke { function, at, .. } = change_at(rip)?;
            let symbol = symbol(&self.image, function);
            let why = PokeError::ThreadInside {
                symbol,
                at,
                rip,
                held_at,
            };
            Some((function, why))
        };
        match held(target, &wanted).map_err(ApplyError::Search)? {
            Held::At(places) => occupied.extend(places.into_iter().filter_map(thread_inside)),
            Held::TooMany(words) => {
                let crowded = |(_, poke): &(Gva, Poke)| {
                    let symbol = symbol(&self.image, poke.function);
                    let at = poke.at;
                    (poke.function, PokeError::Crowded { symbol, at, words })
                };
                occupied.extend(inner.iter().map(crowded));
            }
        }
        occupied.sort_by_key(|(function, _)| *function);
        occupied.dedup_by_key(|(function, _)| *function);
        Ok(occupied)
    }

    /// Where instructions begin that `change` makes the middle of a jump.
    pub(super) fn inner(&self, change: &Change) -> Vec<(Gva, Poke)> {
        let site = self.image.site_of(change.poke.function);
        let form = site.map(|site| site.form);
        match form {
            Some(SiteForm::Several(bytes)) if change.displaces() => {
                let all = decode(bytes.as_slice(), change.poke.at).unwrap_or_default();
                let begins = all.iter().skip(1).map(|one| Gva(one.ip()));
                begins.map(|at| (at, change.poke)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether `change` makes several instructions one.
    #[must_use]
    pub fn joins_instructions(&self, change: &Change) -> bool {
        !self.inner(change).is_empty()
    }
}
