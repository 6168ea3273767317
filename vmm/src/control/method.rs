//! What a method of the control protocol is, and what methods work on.
//!
//! A method is said once, in `methods/`: its name, its parameters, its result, what it does and what is told of it. The
//! server, the client, the arguments of `vmm ctl` and the test of `vmm/CONTROL.md` take it from there.

use clap::{Args, Command};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use tracer::guest::Guest;
use tracer::tracing::Tracing;

use super::errors::ErrorLog;
use super::outputs::Outputs;
use super::protocol::{Call, RpcError};
use super::status::Status;
use super::subscription::Subscriptions;
use crate::options::trigger::Trigger;

/// A method. A value is its parameters, which are the arguments of a verb of `vmm ctl` as well.
pub trait Method: Args + Serialize + DeserializeOwned {
    /// What it is called.
    const NAME: &'static str;

    /// What is replied.
    type Result: Serialize + DeserializeOwned;

    /// Does it.
    ///
    /// # Errors
    /// Why it failed; then everything is as before.
    fn perform(self, on: &mut impl Served) -> Result<Self::Result, RpcError>;

    /// The request for it.
    ///
    /// # Errors
    /// When there is something in it that cannot be written, such as a path that is no text.
    fn call(&self) -> Result<Call, serde_json::Error> {
        let params = serde_json::to_value(self)?;
        let is_empty = params.as_object().is_some_and(Map::is_empty);
        Ok(Call {
            method: Self::NAME.to_owned(),
            params: (!is_empty).then_some(params),
        })
    }
}

/// Who walks over methods.
pub trait Visitor {
    /// Comes by one.
    fn visit<M: Method>(&mut self);
}

/// The parameters of a method that takes none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Declares a group of methods, each as
///
/// ```text
/// /// What it does, for `--help` and `vmm/CONTROL.md`
/// Type(Parameters) "name" -> Result: |parameters, tracing, guest| what it does;
/// ```
///
/// or with what all methods work on in the place of tracing and the guest.
macro_rules! methods {
    ($(
        $(#[doc = $about:literal])+
        $Method:ident($Params:ty) $name:literal -> $Result:ty: |$params:pat_param, $($on:ident),+| $body:expr;
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
            #[serde(transparent)]
            pub struct $Method(pub $Params);

            impl $crate::control::method::Method for $Method {
                const NAME: &'static str = $name;
                type Result = $Result;

                fn perform(
                    self,
                    on: &mut impl $crate::control::method::Served,
                ) -> Result<$Result, $crate::control::protocol::RpcError> {
                    let Self($params) = self;
                    $crate::control::method::take!(on, $($on),+);
                    Ok($body)
                }
            }

            impl clap::FromArgMatches for $Method {
                fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                    <$Params>::from_arg_matches(matches).map(Self)
                }

                fn update_from_arg_matches(
                    &mut self,
                    matches: &clap::ArgMatches,
                ) -> Result<(), clap::Error> {
                    self.0.update_from_arg_matches(matches)
                }
            }

            impl clap::Args for $Method {
                fn augment_args(command: clap::Command) -> clap::Command {
                    let command = <$Params>::augment_args(command);
                    $crate::control::method::told(command, &[$($about),+])
                }

                fn augment_args_for_update(command: clap::Command) -> clap::Command {
                    <$Params>::augment_args_for_update(command)
                }
            }
        )+

        /// Comes by each method of this group.
        pub fn visit(visitor: &mut impl $crate::control::method::Visitor) {
            $(visitor.visit::<$Method>();)+
        }
    };
}

/// What a method works with: all, or tracing and the guest.
macro_rules! take {
    ($from:ident, $on:ident) => {
        let $on = $from;
    };
    ($from:ident, $tracing:ident, $guest:ident) => {
        let ($tracing, $guest) = $from.tracing();
    };
}

pub(super) use {methods, take};

/// Has a command tell these lines: the first paragraph in short.
pub(super) fn told(command: Command, lines: &[&str]) -> Command {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    let paragraphs = lines.split(|line| line.is_empty());
    let paragraphs: Vec<String> = paragraphs.map(|all| all.join(" ")).collect();
    let command = command.about(paragraphs.first().cloned().unwrap_or_default());
    match paragraphs.len() {
        0 | 1 => command,
        _ => command.long_about(paragraphs.join("\n\n")),
    }
}

/// What methods work on: a guest that runs, and its tracing.
pub trait Served {
    /// The guest.
    type Guest: Guest;

    /// A request is about to be carried out: brings what is known of the guest up to date.
    fn look(&mut self);

    /// Tracing, and the guest that it traces.
    fn tracing(&mut self) -> (&mut Tracing, &Self::Guest);

    /// How the guest, its vCPUs and tracing are.
    fn status(&mut self) -> Status;

    /// Pauses the guest. Returns false when it was paused already.
    ///
    /// # Errors
    /// Names the vCPU in the way.
    fn pause(&mut self) -> Result<bool, RpcError>;

    /// Lets the guest run again. Returns false when it was not paused.
    fn resume(&mut self) -> bool;

    /// The run is to end.
    fn shut_down(&mut self);

    /// Where something can be written for clients.
    fn outputs(&self) -> &Outputs;

    /// Who listens.
    fn subscriptions(&mut self) -> &mut Subscriptions;

    /// The last errors of requests.
    fn errors(&mut self) -> &mut ErrorLog;

    /// Has triggers wait in a session.
    ///
    /// # Errors
    /// The one for which there can be no occasion.
    fn arm(&mut self, session: &str, triggers: &[Trigger]) -> Result<(), RpcError>;

    /// A session has gone, and its triggers with it.
    fn disarm(&mut self, session: &str);
}
