//! `vmm ctl dynfunc`.

use clap::Subcommand;

use crate::control::dynfunc::{ResetDynamic, SetDynamic};
use crate::control::protocol::Call;
use tracer::tracing::status::DynamicChange;

/// What can be done with dynamic functions.
#[derive(Debug, Clone, Subcommand)]
pub enum DynfuncVerb {
    /// Every dynamic function: where it leads, its types, where it may lead
    List,
    /// Lead functions to other targets of their signature, all in one change
    Set {
        /// A function and its target, and so on: func0 func0_second func1 func1_third
        #[arg(required = true, num_args = 2.., value_name = "NAME TARGET")]
        pairs: Vec<String>,
    },
    /// Lead functions where they did when the guest was built
    Reset {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// A name without its target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dynfunc set: '{0}' has no target: give pairs of a function and its target")]
pub struct NoTarget(String);

impl TryFrom<&DynfuncVerb> for Call {
    type Error = NoTarget;

    fn try_from(verb: &DynfuncVerb) -> Result<Self, NoTarget> {
        Ok(match verb {
            DynfuncVerb::List => Self::ListDynamic,
            DynfuncVerb::Set { pairs } => {
                let (pairs, rest) = pairs.as_chunks::<2>();
                if let Some(name) = rest.first() {
                    return Err(NoTarget(name.clone()));
                }
                let changes = pairs.iter().map(|[name, target]| DynamicChange {
                    name: name.clone(),
                    target: target.clone(),
                });
                Self::SetDynamic(SetDynamic {
                    changes: changes.collect(),
                })
            }
            DynfuncVerb::Reset { names } => Self::ResetDynamic(ResetDynamic {
                names: names.clone(),
            }),
        })
    }
}
