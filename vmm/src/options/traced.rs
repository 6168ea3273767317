//! What is traced from the beginning, and how text is changed for it: options of `vmm run` and `vmm attach`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::choice::choice;
use super::quantities;
use super::session::SessionOptions;
use super::trigger::{Action, Trigger};
use crate::failure::Failure;
use crate::layout;
use crate::processor::{NoExchange, Word, exchanges_words, promises_atomic};
use trace::export::budget::Budget;
use tracer::Dispatch;
use tracer::tracing::options::{DEFAULT_SESSION, PatchMethod, Tracer, TracingOptions};

/// What is traced.
#[derive(Debug, Args)]
pub struct Traced {
    /// Take options from a TOML file, each by its name, as `filter = ["a*", "b"]`; the command line wins
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Trace from the attach point on
    #[arg(long, value_name = "TRACER", value_parser = choice::<Tracer>())]
    pub trace: Option<Tracer>,
    /// Trace only functions whose name matches; may be given several times. `!GLOB` takes out what those before it match;
    /// `mod:NAME:GLOB` is for the functions of a module of Linux, also one that is loaded later, `file:PATH` for those of the source files
    /// whose path or end of it the glob PATH matches, where there is debug information
    #[arg(long, value_name = "GLOB", requires = "trace")]
    pub filter: Vec<String>,
    /// Never trace functions whose name matches; may be given several times
    #[arg(long, value_name = "GLOB", requires = "trace")]
    pub notrace: Vec<String>,
    /// Make functions without a patch site traceable, too, where their first instructions can be displaced: also of
    /// a kernel that was built without instrumentation (`vmm sites --any` says which)
    #[arg(long)]
    pub any: bool,
    /// How a tracepoint leads to its only callback: by a jump, or through the iterator as to several
    #[arg(long, value_name = "WAY", value_parser = choice::<Dispatch>(), default_value_t)]
    pub dispatch: Dispatch,
    /// How the guest's text is changed (default: atomic, where the processor promises what that needs and a short trial shows it, else quiesce; quiesce
    /// with --atomic)
    #[arg(long, value_name = "METHOD", value_parser = choice::<PatchMethod>())]
    pub patch_method: Option<PatchMethod>,
    /// With --patch-method atomic: also where the processor's maker does not promise what that needs, if a short trial on this
    /// host finds nothing wrong; at your own risk
    #[arg(long, requires = "patch_method")]
    pub unpromised: bool,
    /// Make large changes of the guest's text in slices of about this length each, in ms or with a unit, as 500us
    #[arg(long, value_name = "MS", default_value = "1", allow_negative_numbers = true, value_parser = quantities::milliseconds)]
    pub max_pause: Duration,
    /// Make every change of the guest's text in one pause, however long it takes: it changes at one moment
    #[arg(long, conflicts_with = "max_pause")]
    pub atomic: bool,
    /// Write so many bytes of records, events and threads at most, of all traces and dumps together, as 500M: what comes then is lost and
    /// counted, and the guest goes on. Symbols and what else describes a trace come on top
    #[arg(long, value_name = "SIZE", value_parser = quantities::in_bytes)]
    pub max_output: Option<u64>,
    /// Let clients of the control socket (`vmm ctl`) have traces written below this directory and below those that are
    /// named here, and nowhere else (default: the directory in which vmm was started)
    #[arg(long, value_name = "DIR")]
    pub output_root: Option<PathBuf>,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub session: SessionOptions,
}

impl Traced {
    /// What of it can never come to anything, and what to do, if anything of it cannot.
    #[must_use]
    pub fn useless(&self, has_control: bool) -> Option<&'static str> {
        let pauses = |trigger: &Trigger| trigger.action == Action::Pause;
        let is_of_another = |trigger: &Trigger| {
            let other = trigger.action.other_session();
            other.is_some_and(|session| session != DEFAULT_SESSION)
        };
        if self.max_output == Some(0) {
            return Some("--max-output 0: nothing could be written; leave --output out instead");
        }
        if has_control {
            return None;
        }
        if self.output_root.is_some() {
            return Some(
                "--output-root: nobody could name anything to be written there; say how to be told (--control)",
            );
        }
        let mut triggers = self.session.trigger.iter();
        let dumps = |trigger: &Trigger| matches!(trigger.action, Action::Dump(_));
        if self.max_output.is_some()
            && self.session.output.is_none()
            && !triggers.clone().any(dumps)
        {
            return Some(
                "--max-output: nothing would be written; say where to (--output, a trigger that dumps), or how to be told (--control)",
            );
        }
        if self.session.output.is_some() && !self.is_enabled() {
            return Some(
                "--output: nothing would be written; say what to trace (--trace, --event, --probe), or how to be told (--control)",
            );
        }
        if !self.session.trigger.is_empty() && !self.is_enabled() {
            return Some(
                "--trigger: nothing would be seen; say what to trace (--trace, --event, --probe), or how to be told (--control)",
            );
        }
        if triggers.clone().any(is_of_another) {
            return Some(
                "--trigger: nobody could make the session that it names; say how to be told (--control)",
            );
        }
        triggers.any(pauses).then_some(
            "--trigger: nobody could let the guest go on that is paused; say how to be told (--control)",
        )
    }

    /// How text is changed. Where nobody has said it, that can take a trial (see [`Self::try_method`]).
    #[must_use]
    pub fn method(&self) -> PatchMethod {
        match self.patch_method {
            Some(method) => method,
            None if !self.atomic && exchanges_words(Word::Both).is_ok() => PatchMethod::Atomic,
            None => PatchMethod::Quiesce,
        }
    }

    /// Whether breakpoints have to be served while text is changed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.patch_method == Some(PatchMethod::Live)
    }

    /// Tries what text is to be changed by on this host, once and for some milliseconds. What nobody has asked for is
    /// given up with a warning.
    ///
    /// # Errors
    /// What was asked for goes wrong here, and what to do.
    pub fn try_method(&self) -> Result<(), Failure> {
        let is_asked_for = self.patch_method == Some(PatchMethod::Atomic);
        if !is_asked_for && (self.atomic || self.patch_method.is_some()) {
            return Ok(());
        }
        let (word, need) = match (self.unpromised, is_asked_for) {
            (true, _) => (Word::Trial, Need::Shown),
            (false, true) => (Word::Both, Need::NotWrong),
            (false, false) => (Word::Both, Need::None),
        };
        if let Some(warning) = warning_of(exchanges_words(word), need)? {
            log::warn!("{warning}");
        }
        Ok(())
    }

    /// Whether text can be changed so as was asked for.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn check_method(&self) -> Result<(), Failure> {
        if self.unpromised && self.patch_method != Some(PatchMethod::Atomic) {
            return Err(Failure::bad_input(
                "--unpromised: is about --patch-method atomic; the others need no promise",
            ));
        }
        let of_a_running_guest = match self.patch_method {
            Some(PatchMethod::Atomic) => "atomic",
            Some(PatchMethod::Live) => "live",
            Some(PatchMethod::Quiesce) | None => return Ok(()),
        };
        if self.atomic {
            return Err(Failure::bad_input(format!(
                "--patch-method {of_a_running_guest}: with --atomic every change is made in one pause; leave one of them out"
            )));
        }
        if self.is_live() || self.unpromised {
            return Ok(());
        }
        promises_atomic().map_err(|why| {
            Failure::bad_input(format!(
                "--patch-method atomic: {why}; use --patch-method quiesce, or --unpromised too, and a trial decides"
            ))
        })
    }

    /// Whether anything is traced.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.trace.is_some() || self.has_points()
    }

    /// Whether events or probes are to be recorded.
    fn has_points(&self) -> bool {
        !self.session.event.is_empty() || !self.session.probe.is_empty()
    }

    /// What tracing begins with.
    #[must_use]
    pub fn to_tracing(&self) -> TracingOptions {
        TracingOptions {
            enabled: self.is_enabled(),
            tracer: self.trace.unwrap_or(if self.has_points() {
                Tracer::Nop
            } else {
                Tracer::default()
            }),
            session: self.session.to_session(),
            filter: self.filter.clone(),
            notrace: self.notrace.clone(),
            any: self.any,
            dispatch: self.dispatch,
            patch_method: self.method(),
            max_pause: (!self.atomic).then_some(self.max_pause),
            rings_room: layout::RINGS_SIZE,
            budget: self.max_output.map_or_else(Budget::default, Budget::of),
            ..TracingOptions::default()
        }
    }
}

/// What somebody needs of a trial of exchanges of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nothing: it is the default, and there is another one.
    None,
    /// That it finds nothing wrong, if it can be made.
    NotWrong,
    /// That it is made, and finds nothing wrong.
    Shown,
}

/// What is to be warned of when text is to be changed by exchanges of words.
///
/// # Errors
/// It goes wrong here, or nothing shows that it does not, where that is needed.
fn warning_of(tried: Result<(), NoExchange>, need: Need) -> Result<Option<String>, Failure> {
    match (tried, need) {
        (Ok(()) | Err(NoExchange::NoPromise(_)), _) => Ok(None),
        (Err(why), Need::None) => Ok(Some(format!("text is changed in pauses: {why}"))),
        (Err(why @ NoExchange::Untried { .. }), Need::NotWrong) => {
            Ok(Some(format!("--patch-method atomic: {why}")))
        }
        (Err(why), Need::NotWrong | Need::Shown) => Err(Failure::bad_input(format!(
            "--patch-method atomic: {why}; use --patch-method quiesce"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_promised_and_is_not_shown_is_said_and_refused_only_where_it_goes_wrong() {
        let wrong = || Err(NoExchange::Wrong { switches: 7 });
        let untried = || {
            Err(NoExchange::Untried {
                why: "no KVM".to_owned(),
            })
        };
        for need in [Need::None, Need::NotWrong, Need::Shown] {
            assert_eq!(warning_of(Ok(()), need).unwrap(), None);
        }
        for (tried, need) in [
            (wrong(), Need::NotWrong),
            (wrong(), Need::Shown),
            (untried(), Need::Shown),
        ] {
            let refused = warning_of(tried, need).unwrap_err().message;
            assert!(refused.contains("--patch-method quiesce"), "{refused}");
        }
        let said = |tried, need| warning_of(tried, need).unwrap().unwrap();
        assert!(said(wrong(), Need::None).starts_with("text is changed in pauses: "));
        assert!(said(untried(), Need::None).starts_with("text is changed in pauses: "));
        assert!(said(untried(), Need::NotWrong).ends_with("no KVM"));
    }
}
