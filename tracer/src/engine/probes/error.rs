//! Why a probe cannot be had.

use insn::relocate::RelocateError;
use terms::addr::Gva;

use crate::points::probes::StubTooFar;
use crate::points::tactic::{Tactic, TacticError};

/// Why there is no such probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No such number.
    #[error("there is no probe {0}: `probe list` shows them")]
    NoSuchProbe(u32),
    /// Its address is in no function.
    #[error("there is no function at {0}: a probe needs an instruction of a function")]
    NoFunction(Gva),
    /// There is no place for it.
    #[error("a probe cannot sit in {symbol}: {why}")]
    NoPlace {
        /// The function.
        symbol: String,
        /// Why not.
        why: TacticError,
    },
    /// The function must be left alone.
    #[error("a probe cannot sit in {symbol}: {why}")]
    Forbidden {
        /// The function.
        symbol: String,
        /// Why not.
        why: String,
    },
    /// A probe at the same address sits there in another way.
    #[error(
        "probe {other} sits at {at} by tactic {tactic} already: all probes at one address sit there in one way"
    )]
    OtherTactic {
        /// The probe.
        other: u32,
        /// The address.
        at: Gva,
        /// How it sits there.
        tactic: Tactic,
    },
    /// Its module has come, and it would say something else than before.
    #[error("the values of {name} have other types now: remove the probe, and add it again")]
    OtherTypes {
        /// What it is called.
        name: String,
    },
    /// What one probe displaces is what another one sits on.
    #[error(
        "probes at {one} and {other} cannot be set at the same time: the instructions that they displace overlap; set only one of them, or one by a breakpoint (tactic 5) where that is possible"
    )]
    Overlap {
        /// The one.
        one: Gva,
        /// The other.
        other: Gva,
    },
    /// The stub is out of reach.
    #[error(transparent)]
    TooFar(#[from] StubTooFar),
    /// What is displaced cannot be put where stubs are.
    #[error("the instructions at {at} cannot be moved: {why}")]
    Detour {
        /// Where they are.
        at: Gva,
        /// Why not.
        why: RelocateError,
    },
    /// The function's text is gone.
    #[error("the text of {symbol} is not there (any more)")]
    Gone {
        /// The function.
        symbol: String,
    },
    /// Records cannot number more events.
    #[error("there have been too many probes in this run")]
    TooMany,
    /// It reads memory, and what that needs has not been made.
    #[error(
        "probe {name} captures values in memory, which cannot be reached; values in registers can be captured"
    )]
    NoReach {
        /// What it is called.
        name: String,
    },
    /// A record would have no room for it.
    #[error(
        "probe {name} captures {wanted} bytes, a record of its session has room for {room}: capture less, or \
         make a session with larger records (record_bytes)"
    )]
    TooLarge {
        /// What it is called.
        name: String,
        /// What it needs.
        wanted: usize,
        /// What there is.
        room: usize,
    },
}
