//! Leaving a guest that goes on without us: the window is taken out of it when nothing in it leads there any more.
//!
//! A call that is open gets its own return address back. A thread that was preempted in a stub holds an address of it in
//! memory, and continues there. Which words of memory still matter only the guest's kernel knows: the part of a stack that is out
//! of use holds addresses, too. So *any* word that is one keeps the window where it is, but one of which the kernel itself says
//! that nobody reads it; the guest is not in danger then, only richer by some memory.

use std::fmt;

use terms::addr::{Gpa, Gva};
use terms::quantity::counted;
use terms::region::{any_holds, common, joined};

use super::{ApplyError, Engine};
use crate::introspection::{Introspection, Returns, Untold};
use crate::stack::as_it_lies;
use crate::stub::mirror::give_back::give_back;
use crate::target::{MemoryError, StoppedTarget};
use crate::window::title::MirrorMemory;

/// Bytes that are looked at in one piece: a core's own cache holds them, and a call in another process is worth it.
const PIECE: usize = 256 << 10;

/// Bytes of a word.
const WORD: u64 = 8;
/// Words that are remembered, to be asked of the kernel once more: a guest can fill its memory with them.
const PLACES_MAX: usize = 1 << 12;

/// What still leads to a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inside {
    /// Words of the guest's memory that hold an address of a stub.
    pub words: u64,
    /// Where the first of them is, and the address that it holds.
    pub first: Option<(Gpa, Gva)>,
    /// vCPUs that execute a stub.
    pub vcpus: u16,
    /// Breakpoints of the guest's own (kprobes) over jumps to stubs, which it puts back when they go.
    pub breakpoints: u64,
    /// Places of its text that somebody else has changed since, and that jump to stubs all the same.
    pub jumps: u64,
    /// Why all of its memory was looked through, of which parts may be out of use.
    pub untold: Option<Untold>,
    /// It was not looked: the kernel may tell where a moment later.
    pub is_put_off: bool,
}

/// How a guest is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// The kernel that was traced does not run any more: nothing leads to the window.
    Replaced,
    /// If nothing leads there; it can be tried again.
    Trying,
    /// The same, for the last time: what the kernel cannot tell now is looked for in all memory.
    LastTry,
}

impl Inside {
    /// Nothing does.
    pub const NOBODY: Self = Self {
        words: 0,
        first: None,
        vcpus: 0,
        breakpoints: 0,
        jumps: 0,
        untold: None,
        is_put_off: false,
    };

    /// Whether nothing does.
    #[must_use]
    pub const fn is_nobody(&self) -> bool {
        self.words == 0
            && self.vcpus == 0
            && self.breakpoints == 0
            && self.jumps == 0
            && !self.is_put_off
    }
}

/// As in `2 words of its memory (the first one, at 0x7f000, holds 0xffffffff9e0010a4; all of it was looked through: ...) and 1
/// vCPU`.
impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = counted(self.words, "word");
        write!(f, "{words} of its memory")?;
        if let Some((at, word)) = self.first {
            write!(f, " (the first one, at {at}, holds {word}")?;
            if let Some(why) = self.untold {
                write!(f, "; all of it was looked through: {why}")?;
            }
            write!(f, ")")?;
        }
        if self.vcpus > 0 {
            write!(f, " and {}", counted(self.vcpus.into(), "vCPU"))?;
        }
        if self.breakpoints > 0 {
            let kprobes = counted(self.breakpoints, "kprobe");
            write!(f, " and {kprobes} of its own")?;
        }
        match self.jumps {
            0 => Ok(()),
            jumps => write!(f, " and {} changed by others", counted(jumps, "jump")),
        }
    }
}

impl Engine {
    /// Takes the window out of the guest, if nothing leads there. Says what does; then everything is as before.
    ///
    /// # Errors
    /// [`ApplyError::StillLeads`] when bytes of ours in the guest's text or data do, [`ApplyError::Search`] when memory is not there that
    /// the target says it has; then everything is as before, too.
    pub fn leave(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        leaving: Leaving,
    ) -> Result<Inside, ApplyError> {
        let Some(foothold) = self.foothold.take() else {
            return Ok(Inside::NOBODY);
        };
        if leaving == Leaving::Replaced {
            foothold.window.close(target);
            return Ok(Inside::NOBODY);
        }
        let arena = foothold.stubs.arena();
        let stubs = Stubs {
            start: arena.start(),
            bytes: arena.used(),
        };
        let leading = self.sites.leading(target, |to| stubs.hold(to.0));
        let leading: Vec<Gva> = leading.collect();
        if let Some(first) = leading.first().copied() {
            let sites = leading.len();
            self.foothold = Some(foothold);
            return Err(ApplyError::StillLeads { sites, first });
        }
        let kernel = self.transient.inside.as_deref();
        match stubs.left_by(target, foothold.mirror_memory(), kernel, leaving) {
            Ok(inside) if inside.is_nobody() => {
                foothold.window.close(target);
                Ok(inside)
            }
            other => {
                self.foothold = Some(foothold);
                other.map_err(ApplyError::Search)
            }
        }
    }
}

/// The addresses of stubs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stubs {
    pub start: Gva,
    pub bytes: u64,
}

impl Stubs {
    pub const fn hold(self, word: u64) -> bool {
        word.wrapping_sub(self.start.0) < self.bytes
    }

    /// Has open calls return without us, as `mirror` knows how, and says what leads to a stub after that. `kernel` can be asked
    /// where return addresses are.
    ///
    /// # Errors
    /// [`MemoryError`] when memory is not there that the target says it has.
    pub fn left_by(
        self,
        target: &mut (impl StoppedTarget + ?Sized),
        mirror: Option<MirrorMemory>,
        kernel: Option<&dyn Introspection>,
        leaving: Leaving,
    ) -> Result<Inside, MemoryError> {
        let returns = returns(target, kernel);
        if let Some(mirror) = mirror {
            let told = (kernel, &returns.unused[..]);
            give_back(target, mirror, |word| self.hold(word), told)?;
        }
        inside(target, self, (kernel, returns), leaving)
    }
}

/// Where the guest has what it returns by, as far as it can be asked.
fn returns(target: &(impl StoppedTarget + ?Sized), kernel: Option<&dyn Introspection>) -> Returns {
    match kernel {
        Some(kernel) => kernel.returns(&target, target.vcpus()),
        None => Returns::anywhere(Untold::Unknown),
    }
}

/// What leads to stubs.
fn inside(
    target: &(impl StoppedTarget + ?Sized),
    stubs: Stubs,
    (kernel, returns): (Option<&dyn Introspection>, Returns),
    leaving: Leaving,
) -> Result<Inside, MemoryError> {
    if returns.may_tell_more() && leaving == Leaving::Trying {
        return Ok(Inside {
            is_put_off: true,
            ..Inside::NOBODY
        });
    }
    let ram = joined(target.touched());
    let (regions, untold) = match &returns.within {
        Ok(within) => (common(within, &ram), None),
        Err(why) => (ram, Some(*why)),
    };
    let vcpus = target.vcpus().iter();
    let executing = vcpus.filter(|vcpu| vcpu.online && stubs.hold(vcpu.rip));
    let mut found = Inside {
        vcpus: u16::try_from(executing.count()).unwrap_or(u16::MAX),
        untold,
        ..Inside::NOBODY
    };
    let mut places = Vec::new();
    let mut piece = vec![0; PIECE];
    for region in regions {
        let mut offset = 0;
        while offset < region.bytes {
            let length = usize::try_from(region.bytes - offset).unwrap_or(PIECE);
            let at = region.start.wrapping_add(offset);
            let bytes = piece.get_mut(..length.min(PIECE)).unwrap_or_default();
            target.read_physical(at, bytes)?;
            let words = stubs.words(at, bytes);
            for place in words.filter(|(at, _)| !any_holds(&returns.unused, *at, WORD)) {
                found.words += 1;
                found.first.get_or_insert(place);
                if places.len() < PLACES_MAX {
                    places.push(place);
                }
            }
            offset += PIECE as u64;
        }
    }
    // With more than that the window stays, whatever the kernel says of some.
    let are_all = found.words > 0 && found.words == places.len() as u64;
    if let Some(kernel) = kernel.filter(|_| are_all) {
        let at: Vec<Gpa> = places.iter().map(|(at, _)| *at).collect();
        let beside = kernel.beside_returns(&target, target.vcpus(), &at, &as_it_lies);
        places.retain(|(at, _)| !any_holds(&beside, *at, WORD));
        found.words = places.len() as u64;
        found.first = places.first().copied();
    }
    Ok(found)
}

impl Stubs {
    /// The words of `bytes` at `at` that are addresses of stubs, and where they lie.
    fn words(self, at: Gpa, bytes: &[u8]) -> impl Iterator<Item = (Gpa, Gva)> {
        let words = bytes.as_chunks::<8>().0.iter();
        let words = words.map(|word| u64::from_le_bytes(*word));
        let placed = (0..).zip(words).filter(move |(_, word)| self.hold(*word));
        placed.map(move |(index, word)| (at.wrapping_add(8 * index), Gva(word)))
    }
}

#[cfg(test)]
mod tests {
    use terms::region::Region;

    use super::*;
    use crate::mock::{MockKernel, MockTarget};
    use crate::target::TextMemory;

    /// What the guest says, and who says it.
    fn asked<'k>(
        target: &MockTarget,
        kernel: Option<&'k dyn Introspection>,
    ) -> (Option<&'k dyn Introspection>, Returns) {
        (kernel, returns(target, kernel))
    }

    const STUBS: Stubs = Stubs {
        start: Gva(0xffff_ffff_b000_0000),
        bytes: 0x1000,
    };

    #[test]
    fn a_word_by_which_the_kernel_does_not_return_leads_nowhere() {
        let mut target = MockTarget::new(1, 1 << 21);
        let words = [0x40_0000, 0x40_0ff8, 0x40_1000, 0x40_3000];
        for at in words {
            let word = STUBS.start.0.to_le_bytes();
            target.write_physical(Gpa(at), &word).unwrap();
        }
        let part = |start, bytes| Region {
            start: Gpa(start),
            bytes,
        };
        let kernel = |within: Option<&[Region]>, unused: &[Region]| {
            let returns = Returns {
                within: within.map(<[Region]>::to_vec).ok_or(Untold::Kprobes),
                unused: unused.to_vec(),
            };
            MockKernel(returns, Vec::new())
        };
        let found = |kernel: &MockKernel| {
            let found = inside(
                &target,
                STUBS,
                asked(&target, Some(kernel)),
                Leaving::Trying,
            )
            .unwrap();
            (found.words, found.first.map(|(at, _)| at.0))
        };
        assert_eq!(found(&kernel(None, &[])), (4, Some(words[0])));
        // Not one that is in use in part.
        let first = part(words[0], 0xffc);
        assert_eq!(found(&kernel(None, &[first])), (3, Some(words[1])));
        let second = part(words[2], 0x1000);
        assert_eq!(found(&kernel(None, &[first, second])), (2, Some(words[1])));
        // Within what there is, and what there is not.
        let within = [part(words[0], 0x1000), part(1 << 40, 0x1000)];
        assert_eq!(found(&kernel(Some(&within), &[])), (2, Some(words[0])));
        assert_eq!(found(&kernel(Some(&within), &[first])), (1, Some(words[1])));
        assert_eq!(found(&kernel(Some(&[]), &[])), (0, None));
        // What turns out to lie beside what it returns by.
        let asked_again = |beside: &[Region]| MockKernel(kernel(None, &[]).0, beside.to_vec());
        let beside = [part(words[0], 0x1000), part(words[3], 8)];
        assert_eq!(found(&asked_again(&beside[..1])), (2, Some(words[2])));
        assert_eq!(found(&asked_again(&beside[1..])), (3, Some(words[0])));
        assert_eq!(found(&asked_again(&[part(0x40_0000, 0x4000)])), (0, None));
    }

    #[test]
    fn a_guest_that_fills_its_memory_with_addresses_of_stubs_keeps_the_window() {
        let mut target = MockTarget::new(1, 1 << 21);
        let all = STUBS.start.0.to_le_bytes().repeat(PLACES_MAX + 1);
        target.write_physical(Gpa(0x40_0000), &all).unwrap();
        let everywhere = Region {
            start: Gpa(0x40_0000),
            bytes: 1 << 20,
        };
        let kernel = MockKernel(Returns::anywhere(Untold::Kprobes), vec![everywhere]);
        let found = |target: &MockTarget| {
            let found =
                inside(target, STUBS, asked(target, Some(&kernel)), Leaving::Trying).unwrap();
            (found.words, found.first.map(|(at, _)| at.0))
        };
        let count = PLACES_MAX as u64 + 1;
        assert_eq!(found(&target), (count, Some(0x40_0000)));
        target.write_physical(Gpa(0x40_0000), &[0; 8]).unwrap();
        assert_eq!(found(&target), (0, None));
    }

    #[test]
    fn a_kernel_that_may_tell_later_is_asked_later_and_at_last_all_is_looked_through() {
        let mut target = MockTarget::new(1, 1 << 21);
        let why = Untold::Elsewhere {
            vcpu: 1,
            rip: Gva(0x8000),
        };
        let kernel = MockKernel(Returns::anywhere(why), Vec::new());
        let look = |target: &MockTarget, leaving| {
            let found = inside(target, STUBS, asked(target, Some(&kernel)), leaving).unwrap();
            (found.is_nobody(), found.words, found.untold)
        };
        assert_eq!(look(&target, Leaving::Trying), (false, 0, None));
        assert_eq!(look(&target, Leaving::LastTry), (true, 0, Some(why)));
        let word = STUBS.start.0.to_le_bytes();
        target.write_physical(Gpa(0x40_0000), &word).unwrap();
        assert_eq!(look(&target, Leaving::Trying), (false, 0, None));
        assert_eq!(look(&target, Leaving::LastTry), (false, 1, Some(why)));
    }

    #[test]
    fn every_word_that_leads_to_a_stub_is_counted_and_no_other() {
        let mut target = MockTarget::new(1, 1 << 21);
        let (start, end) = (STUBS.start, STUBS.start.wrapping_add(STUBS.bytes));
        let look = |target: &MockTarget| {
            inside(target, STUBS, asked(target, None), Leaving::Trying).unwrap()
        };
        assert!(look(&target).is_nobody());
        let first = Gpa(0x40_0000);
        for (offset, word) in [
            (0x40, start.0),
            (0x48, end.0),
            (0x50, start.0 - 1),
            (0x58, end.0 - 1),
        ] {
            let at = first.wrapping_add(offset);
            target.write_physical(at, &word.to_le_bytes()).unwrap();
        }
        let found = look(&target);
        assert_eq!(
            (found.words, found.first),
            (2, Some((first.wrapping_add(0x40), start)))
        );
        assert_eq!(
            found.to_string(),
            "2 words of its memory (the first one, at 0x400040, holds 0xffffffffb0000000; all of it was looked through: nothing \
             says where this kernel has its stacks)"
        );
        let told = Inside {
            untold: None,
            ..found
        };
        assert_eq!(
            told.to_string(),
            "2 words of its memory (the first one, at 0x400040, holds 0xffffffffb0000000)"
        );
    }
}
