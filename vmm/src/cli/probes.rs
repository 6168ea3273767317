//! `vmm ctl probe`.

use clap::{Args, Subcommand};

use crate::control::probes::{AddProbes, ProbeCall, SomeProbes};
use crate::control::protocol::{Call, SessionName};

/// What can be done with probes.
#[derive(Debug, Clone, Subcommand)]
pub enum ProbeVerb {
    /// Set a probe: the session records what it captures, each time the guest comes by
    ///
    /// Example: vmm ctl --control vm.sock probe add calls_leaf %rdi count=%rsi:u32 if '%rsi > 4'
    Add(AddArgs),
    /// Every probe: where it is and how, its state, its hits and what it captures
    List,
    /// Take probes out: the text gets its bytes back
    Remove(Which),
    /// Have disabled probes recorded again
    Enable(Which),
    /// Have probes not recorded any more, but keep them
    Disable(Which),
}

/// One probe.
#[derive(Debug, Clone, Args)]
pub struct AddArgs {
    /// How it is put into the text, 1 to 5 (default: the best way there is)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub tactic: Option<u8>,
    /// Where: FUNCTION, FUNCTION+OFFSET, FUNCTION%return, FILE:LINE or ADDRESS; then what: variables,
    /// registers and memory, each with `:TYPE` if need be, and `if CONDITION`
    #[arg(required = true, value_name = "SPEC [FETCH]")]
    pub probe: Vec<String>,
}

/// Some probes.
#[derive(Debug, Clone, Args)]
pub struct Which {
    /// Their numbers, or `all` of the session
    #[arg(required = true, value_name = "ID|all", value_parser = id)]
    pub ids: Vec<Id>,
}

/// A number, or all of them.
#[derive(Debug, Clone, Copy)]
pub enum Id {
    /// One.
    One(u32),
    /// All of the session.
    All,
}

fn id(text: &str) -> Result<Id, String> {
    if text == "all" {
        return Ok(Id::All);
    }
    let number = text.parse().map(Id::One);
    number.map_err(|_| "no number of a probe, and not `all`".to_owned())
}

impl Which {
    fn probes(&self, session: SessionName) -> SomeProbes {
        let all = self.ids.iter().any(|id| matches!(id, Id::All));
        let ids = self.ids.iter().filter_map(|id| match id {
            Id::One(id) => Some(*id),
            Id::All => None,
        });
        SomeProbes {
            ids: ids.collect(),
            all_of: all.then_some(session),
        }
    }
}

impl ProbeVerb {
    /// The method that it stands for.
    #[must_use]
    pub fn call(&self, session: SessionName) -> Call {
        Call::Probe(match self {
            Self::Add(args) => ProbeCall::Add(AddProbes {
                session,
                probes: vec![args.probe.join(" ")],
                tactic: args.tactic,
            }),
            Self::List => ProbeCall::List,
            Self::Remove(which) => ProbeCall::Remove(which.probes(session)),
            Self::Enable(which) => ProbeCall::Enable(which.probes(session)),
            Self::Disable(which) => ProbeCall::Disable(which.probes(session)),
        })
    }
}
