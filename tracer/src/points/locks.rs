//! Lock prefixes: which bytes make all of them effective, or none.
//!
//! With one vCPU nobody can come between the parts of an unlocked instruction, so the locks cost
//! time for nothing. The prefix is replaced by DS, which is ignored. It is one byte, so a thread is
//! either before the instruction, and will execute it as it then is, or after it.

use image::Image;
use insn::lock::{DS, LOCK};
use terms::site::SiteBytes;

use crate::text::edit::{Edit, Lead, Point, Wanted};
use crate::text::sites::Sites;
use terms::choice::choices;

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

/// What stands in front of the listed instructions that are there: they are switched all together.
#[must_use]
pub fn now(image: &Image, sites: &Sites) -> LockPrefixes {
    let mut there = image
        .locks
        .iter()
        .filter(|one| !sites.is_gone(one.function));
    let first = there.next();
    match first.and_then(|one| sites.lead(Point::Lock, one.address)) {
        Some(_) => LockPrefixes::Off,
        None => LockPrefixes::On,
    }
}

/// What makes all listed prefixes of `image` those.
pub(crate) fn switches<'s>(
    image: &'s Image,
    sites: &'s mut Sites,
    to: LockPrefixes,
) -> impl Iterator<Item = Edit> + 's {
    let off = SiteBytes::one(LockPrefixes::Off.byte());
    let ours = (to == LockPrefixes::Off).then(|| (off, Lead::default()));
    image.locks.iter().filter_map(move |one| {
        let on = SiteBytes::one(LockPrefixes::On.byte());
        let wanted = Wanted::new(Point::Lock, one.function, one.address, on, ours);
        sites.edit(wanted)
    })
}
