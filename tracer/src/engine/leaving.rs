//! Leaving a guest that goes on without us: the window is taken out of it when nothing in it leads there any more.
//!
//! A call that is open gets its own return address back. A thread that was preempted in a stub holds an address of it in
//! memory, and continues there. Which words of memory still matter nobody outside knows: the part of a stack that is out
//! of use holds addresses, too. So *any* word that is one keeps the window where it is; the guest is not in danger
//! then, only richer by some memory.

use std::fmt;

use terms::addr::{Gpa, Gva};
use terms::quantity::counted;

use super::{ApplyError, Engine};
use crate::stub::mirror::give_back::give_back;
use crate::target::{MemoryError, StoppedTarget};
use crate::window::title::MirrorMemory;

/// Bytes that are looked at in one piece: a core's own cache holds them, and a call in another process is worth it.
const PIECE: usize = 256 << 10;

/// What still leads to a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inside {
    /// Words of the guest's memory that hold an address of a stub.
    pub words: u64,
    /// Where the first of them is, and the address that it holds.
    pub first: Option<(Gpa, Gva)>,
    /// vCPUs that execute a stub.
    pub vcpus: u16,
}

impl Inside {
    /// Nothing does.
    pub const NOBODY: Self = Self {
        words: 0,
        first: None,
        vcpus: 0,
    };

    /// Whether nothing does.
    #[must_use]
    pub const fn is_nobody(&self) -> bool {
        self.words == 0 && self.vcpus == 0
    }
}

/// As in `2 words of its memory (the first one, at 0x7f000, holds 0xffffffff9e0010a4) and 1 vCPU`.
impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = counted(self.words, "word");
        write!(f, "{words} of its memory")?;
        if let Some((at, word)) = self.first {
            write!(f, " (the first one, at {at}, holds {word})")?;
        }
        match self.vcpus {
            0 => Ok(()),
            vcpus => write!(f, " and {}", counted(vcpus.into(), "vCPU")),
        }
    }
}

impl Engine {
    /// Takes the window out of the guest, of which all sites have their own bytes again, if nothing leads there. Says what
    /// does; then everything is as before. Where the kernel that was traced does not run any more (`is_replaced`) nothing does.
    ///
    /// # Errors
    /// [`ApplyError::Search`] when memory is not there that the target says it has.
    pub fn leave(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        is_replaced: bool,
    ) -> Result<Inside, ApplyError> {
        let Some(foothold) = self.foothold.take() else {
            return Ok(Inside::NOBODY);
        };
        if is_replaced {
            foothold.window.close(target);
            return Ok(Inside::NOBODY);
        }
        let arena = foothold.stubs.arena();
        let stubs = Stubs {
            start: arena.start(),
            bytes: arena.used(),
        };
        match stubs.left_by(target, foothold.mirror_memory()) {
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
    const fn hold(self, word: u64) -> bool {
        word.wrapping_sub(self.start.0) < self.bytes
    }

    /// Has open calls return without us, as `mirror` knows how, and says what leads to a stub after that.
    ///
    /// # Errors
    /// [`MemoryError`] when memory is not there that the target says it has.
    pub fn left_by(
        self,
        target: &mut (impl StoppedTarget + ?Sized),
        mirror: Option<MirrorMemory>,
    ) -> Result<Inside, MemoryError> {
        if let Some(mirror) = mirror {
            give_back(target, mirror, |word| self.hold(word))?;
        }
        inside(target, self)
    }
}

/// What leads to stubs.
fn inside(target: &(impl StoppedTarget + ?Sized), stubs: Stubs) -> Result<Inside, MemoryError> {
    let is_inside = |word: u64| stubs.hold(word);
    let vcpus = target.vcpus().iter();
    let executing = vcpus.filter(|vcpu| vcpu.online && is_inside(vcpu.rip));
    let mut found = Inside {
        words: 0,
        first: None,
        vcpus: u16::try_from(executing.count()).unwrap_or(u16::MAX),
    };
    let mut piece = vec![0; PIECE];
    for region in target.ram() {
        let mut offset = 0;
        while offset < region.bytes {
            let length = usize::try_from(region.bytes - offset).unwrap_or(PIECE);
            let at = region.start.wrapping_add(offset);
            let bytes = piece.get_mut(..length.min(PIECE)).unwrap_or_default();
            target.read_physical(at, bytes)?;
            for (index, word) in bytes.chunks_exact(8).enumerate() {
                let word = word.try_into().map_or(0, u64::from_le_bytes);
                if is_inside(word) {
                    found.words += 1;
                    let place = at.wrapping_add(index as u64 * 8);
                    found.first.get_or_insert((place, Gva(word)));
                }
            }
            offset += PIECE as u64;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::MockTarget;
    use crate::target::TextMemory;

    #[test]
    fn every_word_that_leads_to_a_stub_is_counted_and_no_other() {
        let mut target = MockTarget::new(1, 1 << 21);
        let (start, end) = (Gva(0xffff_ffff_b000_0000), Gva(0xffff_ffff_b000_1000));
        let bytes = end.0 - start.0;
        let look = |target: &MockTarget| inside(target, Stubs { start, bytes }).unwrap();
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
            "2 words of its memory (the first one, at 0x400040, holds 0xffffffffb0000000)"
        );
    }
}
