//! Methods about the guest's dynamic functions.

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize};
use status::{DynamicChange, DynamicChanged, DynamicList};

use crate::control::method::{Nothing, methods};

/// Where dynamic functions are to lead, all at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Targets {
    /// One for each function
    pub changes: Vec<DynamicChange>,
}

/// The same as arguments.
#[derive(Debug, Args)]
struct Pairs {
    /// A function and its target, and so on: func0 func0_second func1 func1_third
    #[arg(required = true, num_args = 2.., value_name = "NAME TARGET")]
    pairs: Vec<String>,
}

impl Args for Targets {
    fn augment_args(command: Command) -> Command {
        Pairs::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Pairs::augment_args_for_update(command)
    }
}

impl FromArgMatches for Targets {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Pairs { pairs } = Pairs::from_arg_matches(matches)?;
        let (pairs, rest) = pairs.as_chunks::<2>();
        if let Some(name) = rest.first() {
            let message = format!(
                "dynfunc set: '{name}' has no target: give pairs of a function and its target"
            );
            return Err(clap::Error::raw(ErrorKind::WrongNumberOfValues, message));
        }
        let changes = pairs.iter().map(|[name, target]| DynamicChange {
            name: name.clone(),
            target: target.clone(),
        });
        Ok(Self {
            changes: changes.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Dynamic functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SomeDynamic {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// A change, as the library takes it.
fn set(change: &DynamicChange) -> (&str, Option<&str>) {
    (&change.name, Some(&change.target))
}

methods! {
    /// Every dynamic function: where it leads, its types, where it may lead
    ListDynamic(Nothing) "dynfunc.list" -> DynamicList:
        |_, tracing, guest| tracing.dynamic_functions(guest)?;

    /// Lead functions to other targets of their signature, all in one change
    SetDynamic(Targets) "dynfunc.set" -> DynamicChanged:
        |to, tracing, guest| tracing.retarget(guest, to.changes.iter().map(set))?;

    /// Lead functions where they did when the guest was built
    ResetDynamic(SomeDynamic) "dynfunc.reset" -> DynamicChanged:
        |some, tracing, guest| tracing.retarget(guest, some.names.iter().map(|name| (&**name, None)))?;
}
