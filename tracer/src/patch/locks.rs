//! Lock prefixes: which bytes make all of them effective, or none.
//!
//! With one vCPU nobody can come between the parts of an unlocked instruction, so the locks cost
//! time for nothing. The prefix is replaced by DS, which is ignored. It is one byte, so a thread is
//! either before the instruction, and will execute it as it then is, or after it.

use image::Image;
use insn::lock::{DS, LOCK};
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::SiteBytes;

use crate::choice::choices;
use crate::text::edit::Edit;
use crate::text::poke::Poke;

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

/// A prefix that is switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSwitch {
    /// What all are now.
    pub from: LockPrefixes,
    /// What they become.
    pub to: LockPrefixes,
    function: FunctionId,
    at: Gva,
}

impl LockSwitch {
    /// The write.
    #[must_use]
    pub const fn edit(&self) -> Edit {
        let poke = Poke {
            function: self.function,
            at: self.at,
            expected: SiteBytes::one(self.from.byte()),
            new: SiteBytes::one(self.to.byte()),
        };
        // What stands there is a byte of ours with prefixes off; another one is refused, as the guest's own would be.
        Edit::new(poke, false, matches!(self.to, LockPrefixes::Off))
    }

    /// The switch that takes this one back.
    #[must_use]
    pub const fn reverse(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            ..self
        }
    }
}

/// What brings all listed prefixes of `image` from one state to another.
pub(crate) fn switches(
    image: &Image,
    from: LockPrefixes,
    to: LockPrefixes,
) -> impl Iterator<Item = LockSwitch> {
    let switch = move |site: &image::LockSite| LockSwitch {
        from,
        to,
        function: site.function,
        at: site.address,
    };
    image.locks.iter().map(switch)
}
