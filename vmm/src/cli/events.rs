//! `vmm ctl events`.

use clap::{Args, Subcommand};

use crate::control::events::EventChange;
use crate::control::protocol::{Call, SessionName};

/// What can be done with events.
#[derive(Debug, Clone, Subcommand)]
pub enum EventsVerb {
    /// Every event that the guest declares: its fields, who is called at it, who could be
    List,
    /// Have the session record events, or a function of the guest called at them
    Enable(EventsArgs),
    /// Take that back
    Disable(EventsArgs),
}

/// Which events, and who.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// The events; all are changed together
    #[arg(required = true, value_name = "EVENT")]
    pub events: Vec<String>,
    /// A function of the guest, instead of the session; may be given several times
    #[arg(long, value_name = "FUNCTION")]
    pub callback: Vec<String>,
}

impl EventsVerb {
    /// The method that it stands for.
    #[must_use]
    pub fn call(&self, session: SessionName) -> Call {
        let change = |args: &EventsArgs| EventChange {
            session,
            events: args.events.clone(),
            callbacks: args.callback.clone(),
        };
        match self {
            Self::List => Call::ListEvents,
            Self::Enable(args) => Call::EnableEvents(change(args)),
            Self::Disable(args) => Call::DisableEvents(change(args)),
        }
    }
}
