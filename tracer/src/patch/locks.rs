//! Lock prefixes: which bytes make all of them effective, or none.
//!
//! With one vCPU nobody can come between the parts of an unlocked instruction, so the locks cost
//! time for nothing. The prefix is replaced by DS, which is ignored. It is one byte, so a thread is
//! either before the instruction, and will execute it as it then is, or behind it.

use image::Image;
use insn::lock::{DS, LOCK};
use terms::site::SiteBytes;

use crate::choice::choices;
use crate::patch::poke::Poke;

choices! {
    /// Whether the guest's lock prefixes are effective.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LockPrefixes {
        /// Locked.
        On = "on",
        /// Not locked: for one vCPU.
        Off = "off",
    }
}

impl LockPrefixes {
    /// What stands in front of the listed instructions.
    const fn byte(self) -> u8 {
        match self {
            Self::On => LOCK,
            Self::Off => DS,
        }
    }
}

/// The pokes that bring all listed prefixes of `image` from one state to another.
pub(crate) fn pokes(image: &Image, from: LockPrefixes, to: LockPrefixes) -> Vec<Poke> {
    let poke = |site: &image::LockSite| Poke {
        function: site.function,
        at: site.address,
        expected: SiteBytes::one(from.byte()),
        new: SiteBytes::one(to.byte()),
    };
    image.locks.iter().map(poke).collect()
}
