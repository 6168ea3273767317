//! Functions whose returns cannot be hooked: what a graph shows of them is their entries.
//!
//! A hook relies on a function that returns by `ret` through the slot that it was entered with. What its
//! code shows against that is found here; a function that moves its return address on its way is not. What is known of functions
//! by their names is told ([`Image::leave_returns`]).

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
    /// It is known not to bear another return address than its caller's.
    Known {
        /// Why not.
        why: &'static str,
    },
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
            Self::Known { why } => f.write_str(why),
        }
    }
}

impl Image {
    /// The returns of the functions of these names are not hooked either.
    pub fn leave_returns(&mut self, names: &[&str], why: &'static str) {
        let is_named = |id: &FunctionId| {
            let function = self.function(*id);
            function.is_some_and(|function| function.names().any(|name| names.contains(&name)))
        };
        let sites = self.sites.iter().map(|site| site.function);
        let named: Vec<FunctionId> = sites.filter(is_named).collect();
        for function in named {
            let known = &mut self.unhookable;
            if let Err(at) = known.binary_search_by_key(&function, |(known, _)| *known) {
                known.insert(at, (function, Unhookable::Known { why }));
            }
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
