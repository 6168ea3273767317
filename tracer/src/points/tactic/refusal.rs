//! Why there is no jump at an address.

use image::{TableError, TextRange};
use insn::relocate::RelocateError;
use terms::addr::Gva;

use super::Tactic;

/// Why a tactic cannot be had at an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The function's site is elsewhere, or it has none.
    #[error("no patch site is there")]
    NoSite,
    /// The instruction has too few bytes.
    #[error("the instruction has {length} bytes, {needed} are needed")]
    TooShort {
        /// How many it has.
        length: usize,
        /// How many it must have.
        needed: usize,
    },
    /// The function ends before enough bytes have come.
    #[error("the function ends at {end}, or what is before cannot be decoded")]
    PastEnd {
        /// Where it ends.
        end: Gva,
    },
    /// An instruction cannot be moved.
    #[error(transparent)]
    Relocate(#[from] RelocateError),
    /// Something may jump, return or point there.
    #[error("something may lead to {to}, between the instructions")]
    Landing {
        /// Where it leads.
        to: Gva,
    },
    /// A fault is allowed there, and its handler knows the instruction by its address.
    #[error("the instruction at {at} is one that may fault, and is known by its address")]
    Faults {
        /// Where.
        at: Gva,
    },
    /// It is not certain what is code near the place.
    #[error("not all between {} and {} is certain to be code, or to be all that jumps there", .near.start, .near.end)]
    Doubtful {
        /// Where not.
        near: TextRange,
    },
    /// Exceptions of the language may be caught between the instructions.
    #[error("the image catches exceptions at places that are not known")]
    Catches,
    /// It belongs to something that is changed in a way of its own.
    #[error("{at} belongs to {what}, which is changed in a way of its own")]
    Owned {
        /// Where.
        at: Gva,
        /// What it is.
        what: &'static str,
    },
    /// The kernel rewrites its own text, nobody knows where.
    #[error("the kernel rewrites its own text while it runs, and where is not known: {0}")]
    Unlisted(TableError),
    /// A breakpoint would be the guest's own affair.
    #[error("nobody in the guest serves breakpoints that stay")]
    NotServed,
    /// There is no free padding in reach.
    #[error("no 5 bytes of free padding are in reach of a short jump")]
    NoPadding,
}

/// Why no jump can be put at an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TacticError {
    /// There is no such tactic.
    #[error("there is no tactic {0}: 1 (site) to 5 (breakpoint) are there")]
    Unknown(u8),
    /// The address lies in no function, or in one whose bytes are not in the image.
    #[error("{at} is in no function of the image")]
    NoFunction {
        /// The address.
        at: Gva,
    },
    /// The address lies in a module, of which only the sites of functions are known.
    #[error(
        "{at} is in {function} of module {module}: what the kernel rewrites in a module is not known, so nothing of its \
         text can be displaced"
    )]
    Module {
        /// The address.
        at: Gva,
        /// The function.
        function: String,
        /// The module.
        module: String,
    },
    /// No instruction begins there.
    #[error("{at} is inside the instruction at {begins}: use that address")]
    InsideInstruction {
        /// The address.
        at: Gva,
        /// Where the instruction begins.
        begins: Gva,
    },
    /// What is there is no code.
    #[error("the bytes of {function} cannot be decoded up to {at}")]
    NotCode {
        /// The address.
        at: Gva,
        /// The function.
        function: String,
    },
    /// The tactic that was asked for cannot be had.
    #[error("tactic {tactic} is not possible at {at}: {why}")]
    Refused {
        /// The address.
        at: Gva,
        /// The tactic.
        tactic: Tactic,
        /// Why not.
        why: Refusal,
    },
    /// None can.
    #[error("no jump can be put at {at}: {}", reasons(.why))]
    None {
        /// The address.
        at: Gva,
        /// Why each tactic cannot be had.
        why: Vec<(Tactic, Refusal)>,
    },
}

impl TacticError {
    /// Whether it would be possible where somebody serves breakpoints.
    #[must_use]
    pub fn may_be_served(&self) -> bool {
        let is_so = |why: &Refusal| matches!(why, Refusal::NotServed);
        match self {
            Self::Refused { why, .. } => is_so(why),
            Self::None { why, .. } => why.iter().any(|(_, why)| is_so(why)),
            _ => false,
        }
    }
}

fn reasons(why: &[(Tactic, Refusal)]) -> String {
    let all: Vec<String> = why
        .iter()
        .filter(|(tactic, _)| *tactic != Tactic::Site)
        .map(|(tactic, why)| format!("{}: {why}", tactic.name()))
        .collect();
    all.join("; ")
}
