//! Why an operation of tracing failed, for who gave it: which option or verb it is about, and which mends it. The
//! library says what is wrong.

use terms::quantity::counted;
use trace::export::compact::CompactError;
use trace::export::uftrace::ExportError;
use trace::report::ReportError;
use tracer::guest::StopError;
use tracer::tracing::TracingError;
use tracer::tracing::error::NotApplicable;
use tracer::tracing::lossless::NotLossless;
use tracer::tracing::options::{PERIODS_NS, RECORD_BYTES};

use crate::control::protocol::{Mark, RpcError};
use crate::exit_status::ExitStatus;
use crate::failure::Failure;

/// What went wrong and what to do, in one line.
#[must_use]
pub fn explain(error: &TracingError) -> String {
    named(error)
        .or_else(|| remedied(error))
        .unwrap_or_else(|| error.to_string())
}

/// Errors that are about an option: it is named first.
fn named(error: &TracingError) -> Option<String> {
    let text = match error {
        TracingError::RingSize(why) => format!("--ring-size: {why}"),
        TracingError::RingsTooLarge {
            kib,
            rings,
            wanted,
            room,
            most_kib,
        } => format!(
            "--ring-size {kib}: the rings of {} would take {} MiB, there is room for {} MiB: give at most \
             --ring-size {most_kib}",
            counted(u64::from(*rings), "vCPU"),
            wanted >> 20,
            room >> 20
        ),
        TracingError::NotLossless(why) => format!("--mode lossless: {why}: {}", instead(*why)),
        TracingError::RecordBytes(bytes) => {
            let (min, max) = (RECORD_BYTES.start(), RECORD_BYTES.end());
            format!("--record-bytes {bytes}: powers of two from {min} to {max} are possible")
        }
        TracingError::NotApplicable(what) => {
            let (option, what_for) = applies_to(*what);
            format!("{option} is for {what_for}: leave it out, or say that, too")
        }
        TracingError::TwoTaskFilters => {
            "--only-tasks and --not-tasks exclude each other: give one of them".to_owned()
        }
        TracingError::NoValues => {
            "--args and --retval are for the graph tracer with --clock tsc: values are put to \
             calls by their times"
                .to_owned()
        }
        TracingError::NoTypes { .. } | TracingError::CallValues(_) => {
            let why = error.to_string();
            let why = why.strip_prefix("values of calls: ").unwrap_or(&why);
            format!("--args and --retval: {why}")
        }
        TracingError::ClockPeriod(ns) => {
            let (min, max) = (PERIODS_NS.start(), PERIODS_NS.end());
            format!("--clock-period {ns}: from {min} to {max} ns are possible")
        }
        TracingError::StackSize(why) => format!("--stack-size: {why}"),
        TracingError::NoRoot { .. } => format!("--graph-function {error}"),
        TracingError::NoOccasion { .. } => format!("--trigger {error}"),
        TracingError::NoAttachSymbol { symbol, near } => {
            let near = if near.is_empty() {
                "; `vmm sites` lists its functions".to_owned()
            } else {
                format!("; near: {near}")
            };
            format!("--attach-at {symbol}: the kernel has no such symbol{near}")
        }
        _ => return None,
    };
    Some(text)
}

/// The option that asks for it, and what it is for.
const fn applies_to(what: NotApplicable) -> (&'static str, &'static str) {
    const GRAPH: &str = "the graph tracer";
    const FUNCTION: &str = "the function tracer: a graph has them anyhow";
    const LOSSLESS: &str = "--mode lossless";
    const PAGE: &str = "--clock page";
    match what {
        NotApplicable::MaxDepth => ("--max-depth", GRAPH),
        NotApplicable::GraphFunctions => ("--graph-function", GRAPH),
        NotApplicable::GraphNotrace => ("--graph-notrace", GRAPH),
        NotApplicable::Threshold => ("--threshold", GRAPH),
        NotApplicable::StackSize => ("--stack-size", GRAPH),
        NotApplicable::Callers => ("--callers", FUNCTION),
        NotApplicable::OnFull => ("--on-full", LOSSLESS),
        NotApplicable::WaitTime => ("--wait-time", LOSSLESS),
        NotApplicable::ClockCpu => ("--clock-cpu", PAGE),
        NotApplicable::ClockPeriod => ("--clock-period", PAGE),
        NotApplicable::FollowForks => ("--follow-forks", "--only-tasks and --not-tasks"),
    }
}

/// What to do where vCPUs cannot wait.
const fn instead(why: NotLossless) -> &'static str {
    match why {
        NotLossless::Foreign => "use --mode discard, with a large --ring-size",
        NotLossless::Profile => "leave --mode out",
        NotLossless::NoOutput => "give --output DIR, or use --mode discard",
        NotLossless::ClockPage => "use --clock tsc or none",
        NotLossless::NotHidden => "leave --wait-time out; `vmm doctor` tries it",
        NotLossless::SmallRing { .. } => "give --ring-size 64 or more",
    }
}

/// Errors that an option or a verb mends.
fn remedied(error: &TracingError) -> Option<String> {
    let remedy = match error {
        TracingError::AlreadyStarted { .. } => ": `filter` changes what it traces, `stop` ends it",
        TracingError::NotStarted { .. } => ": use `start` first",
        TracingError::NoSession { there, .. } if there == "none" => {
            ", make one with `ctl session create`"
        }
        TracingError::OtherTracer { asked, .. } => {
            return Some(format!("{error} (`session create NAME --tracer {asked}`)"));
        }
        TracingError::NoRecords { .. } => ", `ctl profile` shows what it counts",
        TracingError::OutputExists { .. } => "; --force replaces an older trace",
        TracingError::TooManyProbes { .. } => " (`probe remove`)",
        TracingError::Live(_) => "; use --patch-method quiesce",
        TracingError::ClockSpeed { .. } => ": use --clock page, or none",
        _ if error.wants_debug_information() => {
            ": --symbols FILE gives an unstripped kernel that does"
        }
        TracingError::Stop(StopError::Nested { .. }) => " (--nested)",
        TracingError::TooEarly => ": `run --attach-at start_kernel` begins with it",
        TracingError::NoBorder { .. } => ": leave --attach-at out",
        TracingError::NoDefaultAttach { .. } => {
            ": say it with --attach-at SYMBOL, or leave --trace out and use `vmm ctl start` when it runs"
        }
        _ => return None,
    };
    Some(format!("{error}{remedy}"))
}

impl From<ReportError> for Failure {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::NotAGraph(_) => {
                Self::bad_input(format!("{error}: record it with --trace graph"))
            }
            ReportError::NoCallers => Self::bad_input(format!(
                "{error}: record it with --trace graph, or with --callers"
            )),
            ReportError::NoTimes(_) => {
                Self::bad_input(format!("{error}; record it with another --clock"))
            }
            ReportError::Interrupted => {
                Self::new(ExitStatus::Interrupted, "interrupted: nothing was written")
            }
            ReportError::Scratch { .. } => {
                Self::output(format!("{error}; TMPDIR names another folder for them"))
            }
            ReportError::HostOutput(_) => Self::output(error),
            ReportError::NoRoot => Self::bad_input(format!("--graph-function: {error}")),
            ReportError::NoRow { .. } => Self::bad_input(format!("--function: {error}")),
            ReportError::NoGoal => Self::bad_input(format!("--callers: {error}")),
            _ => Self::bad_input(error),
        }
    }
}

impl From<CompactError> for Failure {
    fn from(error: CompactError) -> Self {
        match error {
            CompactError::Interrupted => ReportError::Interrupted.into(),
            CompactError::Output(error) => Self::output(error),
            _ => Self::bad_input(error),
        }
    }
}

impl From<TracingError> for RpcError {
    fn from(error: TracingError) -> Self {
        let mark = match &error {
            TracingError::BadProbe { probe, why } => why.column().map(|column| Mark {
                text: probe.clone(),
                column: column as u64,
            }),
            _ => None,
        };
        Self::failed(explain(&error)).at(mark)
    }
}

impl From<TracingError> for Failure {
    fn from(error: TracingError) -> Self {
        let text = explain(&error);
        match &error {
            TracingError::Filter(_)
            | TracingError::Glob(_)
            | TracingError::Event(_)
            | TracingError::Probe(_)
            | TracingError::BadProbe { .. }
            | TracingError::Locks(_)
            | TracingError::Image(_)
            | TracingError::RingSize(_)
            | TracingError::RingsTooLarge { .. }
            | TracingError::NoRecords { .. }
            | TracingError::ClockPeriod(_)
            | TracingError::RecordBytes(_)
            | TracingError::NotLossless(_)
            | TracingError::NotApplicable(_)
            | TracingError::NoValues
            | TracingError::NoTypes { .. }
            | TracingError::CallValues(_)
            | TracingError::StackSize(_)
            | TracingError::NoRoot { .. }
            | TracingError::NoSuchVcpu { .. }
            | TracingError::NoOccasion { .. }
            | TracingError::NoAttachSymbol { .. }
            | TracingError::NoDefaultAttach { .. }
            | TracingError::OutputExists { .. }
            | TracingError::Output(
                ExportError::Exists(_)
                | ExportError::Busy { .. }
                | ExportError::NotADirectory(_)
                | ExportError::NotATrace { .. },
            ) => Self::bad_input(text),
            TracingError::Output(_) => Self::output(text),
            other if other.is_of_named_task() => Self::bad_input(text),
            _ => Self::tracing(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_or_a_task_that_there_is_not_is_bad_input_as_any_other_value() {
        let status = |error: TracingError| Failure::from(error).status.code();
        assert_eq!(status(TracingError::NoSuchVcpu { vcpu: 5, vcpus: 1 }), 100);
        assert_eq!(status(TracingError::TwoTaskFilters), 100);
        assert_eq!(status(TracingError::NoSuchIndex), 105);
    }

    /// The library names the thing.
    #[test]
    fn the_option_that_would_change_nothing_is_named() {
        for (what, expected) in [
            (
                NotApplicable::WaitTime,
                "--wait-time is for --mode lossless: leave it out, or say that, too",
            ),
            (
                NotApplicable::ClockCpu,
                "--clock-cpu is for --clock page: leave it out, or say that, too",
            ),
        ] {
            let error = TracingError::from(what);
            assert_eq!(explain(&error), expected);
            let said = error.to_string();
            assert!(!said.contains("--") && said.contains(" is for "), "{said}");
        }
        let named = explain(&TracingError::TwoTaskFilters);
        assert!(named.starts_with("--only-tasks and --not-tasks"), "{named}");
    }
}
