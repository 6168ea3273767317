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

use super::{ApplyError, Engine};
use crate::addr::{Gpa, Gva};
use crate::event::FunctionId;
use crate::image::SiteForm;
use crate::insn::relocate::decode;
use crate::patch::functions::Change;
use crate::patch::poke::{Poke, PokeError, symbol};
use crate::target::{MemoryError, StoppedTarget};

/// Bytes that are copied and looked at in one piece: they stay in a core's own cache.
const PIECE: usize = 256 << 10;
const WORD: usize = 8;

/// Where in the memory of `target` words are that hold one of `wanted`, which is sorted: the address and one place.
///
/// # Errors
/// [`MemoryError`] when memory is not there that the target says it has.
pub fn held(
    target: &(impl StoppedTarget + ?Sized),
    wanted: &[Gva],
) -> Result<Vec<(Gva, Gpa)>, MemoryError> {
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
        return Ok(Vec::new());
    };
    let (first, span) = (first.0, last.0.wrapping_sub(first.0));
    let is_near = |word: u64| word.wrapping_sub(first) <= span;
    let mut found = Vec::new();
    let mut piece = vec![0; PIECE];
    for region in target.ram() {
        let mut at = region.start;
        let mut left = region.bytes;
        while left > 0 {
            let length = left.min(PIECE as u64);
            let bytes = piece
                .get_mut(..usize::try_from(length).unwrap_or(PIECE))
                .unwrap_or_default();
            target.read_physical(at, bytes)?;
            for (index, line) in bytes.chunks(8 * WORD).enumerate() {
                let words = || {
                    line.chunks_exact(WORD)
                        .filter_map(|word| word.try_into().ok())
                };
                let near = words()
                    .map(u64::from_le_bytes)
                    .filter(|word| is_near(*word));
                if near.count() == 0 {
                    continue;
                }
                let offset = index * 8 * WORD;
                for (into, word) in words().map(u64::from_le_bytes).enumerate() {
                    if wanted.binary_search(&Gva(word)).is_ok() {
                        let place = at.wrapping_add((offset + into * WORD) as u64);
                        found.push((Gva(word), place));
                    }
                }
            }
            at = at.wrapping_add(length);
            left -= length;
        }
    }
    Ok(found)
}

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
        for (rip, held_at) in held(target, &wanted).map_err(ApplyError::Search)? {
            if let Some(poke) = change_at(rip) {
                let symbol = symbol(&self.image, poke.function);
                let at = poke.at;
                let why = PokeError::ThreadInside {
                    symbol,
                    at,
                    rip,
                    held_at,
                };
                occupied.push((poke.function, why));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::MockTarget;
    use crate::target::PhysicalMemory;

    #[test]
    fn words_are_found_wherever_they_lie_and_nothing_else_is() {
        let mut target = MockTarget::new(1, 1 << 21);
        let wanted = [Gva(0xffff_ffff_8100_0001), Gva(0xffff_ffff_8100_0104)];
        assert_eq!(held(&target, &wanted), Ok(Vec::new()));
        let first = Gpa(0x20_0000);
        // The first and the last word of a page, one that is near, and one that is not aligned.
        for (at, word) in [
            (0, wanted[0].0),
            (4088, wanted[1].0),
            (64, wanted[0].0 + 1),
            (132, wanted[0].0),
        ] {
            let place = first.wrapping_add(at);
            target.write_physical(place, &word.to_le_bytes()).unwrap();
        }
        let found = held(&target, &wanted).unwrap();
        let last = first.wrapping_add(4088);
        assert_eq!(found, [(wanted[0], first), (wanted[1], last)]);
        assert_eq!(held(&target, &[]), Ok(Vec::new()));
    }
}
