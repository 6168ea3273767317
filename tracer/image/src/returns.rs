//! Functions whose returns cannot be hooked: what a graph shows of them is their entries.
//!
//! A hook relies on a function that returns by `ret` through the slot that it was entered with. What its
//! code shows against that is found here; a function that moves its return address on its way is not.

use std::fmt;

use insn::scan::{begins_with_frame, other_return};
use terms::addr::Gva;
use terms::function::FunctionId;

use super::{Image, SiteKind};

/// Why the return of a function is not hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unhookable {
    /// It has a return that is none of a function's: `iret`, `ret N`, a far return.
    OtherReturn {
        /// Where.
        at: Gva,
    },
    /// Its site is after a prologue of another form: its return address may lie anywhere.
    NoFrame,
}

impl fmt::Display for Unhookable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherReturn { at } => {
                write!(f, "its instruction at {at} returns otherwise than by `ret`")
            }
            Self::NoFrame => f.write_str(
                "its prologue is not `push %rbp; mov %rsp, %rbp`: no return address to find",
            ),
        }
    }
}

/// Every function with a site whose return cannot be hooked, ascending.
pub(super) fn unhookable(image: &Image) -> Vec<(FunctionId, Unhookable)> {
    let look = |site: &super::Site| {
        let function = image.function(site.function)?;
        let code = image.code(site.function);
        if site.kind == SiteKind::Mcount && !begins_with_frame(code) {
            return Some((site.function, Unhookable::NoFrame));
        }
        let at = other_return(code, function.address)?;
        Some((site.function, Unhookable::OtherReturn { at }))
    };
    image.sites.iter().filter_map(look).collect()
}
