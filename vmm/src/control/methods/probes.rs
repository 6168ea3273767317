//! Methods about probes: what a session captures at places that a user has named.

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize};
use status::{ProbeList, ProbesChanged};
use tracer::tracing::probes;

use super::sessions::SessionName;
use crate::control::method::{Nothing, methods};

/// Probes that are to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewProbes {
    /// The session that is to record them
    #[arg(from_global)]
    #[serde(default, skip_serializing_if = "SessionName::is_default")]
    pub session: SessionName,
    /// How it is put into the text, 1 to 5 (default: the best way there is)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactic: Option<u8>,
    /// Where: FUNCTION, FUNCTION+OFFSET, FUNCTION%return, FILE:LINE or ADDRESS; then what: variables,
    /// registers and memory, each with `:TYPE` if need be, and `if CONDITION`
    #[arg(id = "probe", required = true, value_name = "SPEC [FETCH]")]
    pub probes: Vec<String>,
}

impl AddProbes {
    /// On the command line the words of one probe are arguments of their own.
    #[must_use]
    pub fn joined(&self) -> Self {
        Self(NewProbes {
            probes: vec![self.0.probes.join(" ")],
            ..self.0.clone()
        })
    }
}

/// Which probes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SomeProbes {
    /// By their numbers
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<u32>,
    /// All of this session, instead
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_of: Option<SessionName>,
}

impl From<SomeProbes> for probes::SomeProbes {
    fn from(some: SomeProbes) -> Self {
        Self {
            ids: some.ids,
            all_of: some.all_of.map(|session| session.0),
        }
    }
}

/// Some probes, as arguments.
#[derive(Debug, Args)]
struct Ids {
    /// Whose all of them are
    #[arg(from_global)]
    session: SessionName,
    /// Their numbers, or `all` of the session
    #[arg(required = true, value_name = "ID|all", value_parser = id)]
    ids: Vec<Id>,
}

/// A number, or all of them.
#[derive(Debug, Clone, Copy)]
enum Id {
    One(u32),
    All,
}

fn id(text: &str) -> Result<Id, String> {
    if text == "all" {
        return Ok(Id::All);
    }
    let number = text.parse().map(Id::One);
    number.map_err(|_| "no number of a probe, and not `all`".to_owned())
}

impl Args for SomeProbes {
    fn augment_args(command: Command) -> Command {
        Ids::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Ids::augment_args_for_update(command)
    }
}

impl FromArgMatches for SomeProbes {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Ids { session, ids } = Ids::from_arg_matches(matches)?;
        let all = ids.iter().any(|id| matches!(id, Id::All));
        let ids = ids.iter().filter_map(|id| match id {
            Id::One(id) => Some(*id),
            Id::All => None,
        });
        Ok(Self {
            ids: ids.collect(),
            all_of: all.then_some(session),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

methods! {
    /// Set a probe: the session records what it captures, each time the guest comes by
    ///
    /// Example: vmm ctl --control vm.sock probe add calls_leaf %rdi count=%rsi:u32 if '%rsi > 4'
    AddProbes(NewProbes) "probe.add" -> ProbesChanged: |new, tracing, guest| {
        tracing.add_probes(guest, &new.session.0, &new.probes, new.tactic)?
    };

    /// Every probe: where it is and how, its state, its hits and what it captures
    ListProbes(Nothing) "probe.list" -> ProbeList: |_, tracing, guest| tracing.probes(guest);

    /// Take probes out: the text gets its bytes back
    RemoveProbes(SomeProbes) "probe.remove" -> ProbesChanged:
        |some, tracing, guest| tracing.remove_probes(guest, &some.into())?;

    /// Have disabled probes recorded again
    EnableProbes(SomeProbes) "probe.enable" -> ProbesChanged:
        |some, tracing, guest| tracing.enable_probes(guest, &some.into(), true)?;

    /// Have probes not recorded any more, but keep them
    DisableProbes(SomeProbes) "probe.disable" -> ProbesChanged:
        |some, tracing, guest| tracing.enable_probes(guest, &some.into(), false)?;
}
