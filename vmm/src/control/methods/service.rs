//! What this service is.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::visit_all;
use crate::control::errors::PastErrors;
use crate::control::method::{Method, Nothing, Visitor, methods};
use crate::control::subscription::{ENDED, EVENTS};

/// Counts changes of the protocol that a client of before would not understand.
pub const PROTOCOL: u64 = 1;

/// What this service is, and what it can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The version of the program.
    pub version: String,
    /// The version of the protocol. What comes to it does not change that: see `methods` and `notifications`.
    pub protocol: u64,
    /// The methods that there are.
    pub methods: Vec<String>,
    /// The notifications that a client can be sent.
    pub notifications: Vec<String>,
}

/// The names of all methods.
#[derive(Default)]
struct Names(Vec<String>);

impl Visitor for Names {
    fn visit<M: Method>(&mut self) {
        self.0.push(M::NAME.to_owned());
    }
}

/// What to do with the errors that are told of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ErrorsQuery {
    /// Forget them then
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub clear: bool,
}

methods! {
    /// The last errors of requests, of any client: when, which method, what was wrong and where
    ShowErrors(ErrorsQuery) "errors" -> PastErrors: |query, on| {
        let told = on.errors().told();
        if query.clear {
            on.errors().clear();
        }
        told
    };

    /// The versions of the program and of the protocol, its methods and notifications
    ShowVersion(Nothing) "version" -> Service: |_, _on| {
        let mut names = Names::default();
        visit_all(&mut names);
        Service {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            methods: names.0,
            notifications: [EVENTS, ENDED].map(ToOwned::to_owned).to_vec(),
        }
    };
}
