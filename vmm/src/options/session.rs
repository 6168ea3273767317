//! What a session is made of, as options of `vmm run` and `vmm ctl session create` and as parameters
//! of the method `session.create`: one list for all three.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use trace::export::uftrace::{self, ExportError};
use trace::live::Occasion;
use tracer::Mode;
use tracer::ReturnHook;
use tracer::tracing::TracingError;
use tracer::tracing::options::{self, ClockSource, OnFull, StoreKind, WaitTime};

use super::choice::choice;
use super::graph::GraphOptions;
use super::quantities;
use super::trigger::{Action, Trigger};

/// How a session records.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionOptions {
    /// How the graph tracer leaves a function
    #[arg(long, value_name = "HOOK", value_parser = choice::<ReturnHook>(), default_value_t = Self::default().return_hook)]
    pub return_hook: ReturnHook,
    /// What gives way when a ring is full: its oldest records, the new one, or nothing: the vCPU waits (lossless)
    #[arg(long, value_name = "MODE", value_parser = choice::<Mode>(), default_value_t = Self::default().mode)]
    pub mode: Mode,
    /// What happens when nothing can end the wait, as when the disk is full: rings discard, or the run ends (--mode
    /// lossless)
    #[arg(long, value_name = "WHAT", value_parser = choice::<OnFull>(), default_value_t = Self::default().on_full)]
    pub on_full: OnFull,
    /// Whether the guest sees by its clock that vCPUs wait, or all of them are held and their counters set back by that
    /// (--mode lossless; `vmm doctor` says whether this host can)
    #[arg(long, value_name = "WHICH", value_parser = choice::<WaitTime>(), default_value_t = Self::default().wait_time)]
    pub wait_time: WaitTime,
    /// Where the times of records come from
    #[arg(long, value_name = "CLOCK", value_parser = choice::<ClockSource>(), default_value_t = Self::default().clock)]
    pub clock: ClockSource,
    /// How often the clock page is written, in ns or with a unit, as 1us (--clock page)
    #[arg(long, value_name = "NS", default_value_t = Self::default().clock_period, value_parser = quantities::ns)]
    #[serde(deserialize_with = "quantities::ns_in")]
    pub clock_period: u64,
    /// Keep the thread that writes the clock page on this host CPU (--clock page)
    #[arg(long, value_name = "CPU")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_cpu: Option<usize>,
    /// Size of the ring of each vCPU, in KiB or with a unit, as 1M: a power of two from 4 KiB to 256 MiB; there is
    /// room for 448 MiB of rings in all; a graph record with a time takes two places, as a call with its caller does
    #[arg(long, value_name = "KIB", default_value_t = Self::default().ring_size, allow_negative_numbers = true, value_parser = quantities::kib)]
    #[serde(deserialize_with = "quantities::kib_in")]
    pub ring_size: u64,
    /// Size of a stack of the guest, in KiB or with a unit, a power of two: how the graph tracer tells threads apart
    /// (default: what the kernel uses, as far as it is known; 16 for Linux)
    #[arg(long, value_name = "KIB", value_parser = quantities::kib)]
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "quantities::some_kib_in"
    )]
    pub stack_size: Option<u64>,
    /// Record only what these vCPUs execute, as 0,2: the others write nothing, and nothing of them is counted as lost
    /// (default: all of them)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only_vcpus: Vec<u16>,
    /// Record only what these tasks do, as 1234,sh: a number, a name (with a * at its end: those that begin so),
    /// process:NUMBER (all its threads), name:TEXT, or cgroup:/PATH (it and what is below it); the others write nothing, and nothing of
    /// them is counted as lost (default: all of them)
    #[arg(
        long,
        value_name = "TASK",
        value_delimiter = ',',
        conflicts_with = "not_tasks"
    )]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub only_tasks: Vec<String>,
    /// Record what all tasks do but these
    #[arg(long, value_name = "TASK", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_tasks: Vec<String>,
    /// Mean the tasks, too, that those make from then on (--only-tasks, --not-tasks)
    #[arg(long)]
    pub follow_forks: bool,
    #[command(flatten)]
    #[expect(
        missing_docs,
        reason = "a doc comment here would become the text of the whole command"
    )]
    pub graph: GraphOptions,
    /// Record this event of the guest; may be given several times (`vmm ctl events list`)
    #[arg(long, value_name = "EVENT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event: Vec<String>,
    /// Set a probe: where, what it captures and when, as `SPEC FETCH… [if CONDITION]`; may be given several
    /// times
    #[arg(long, value_name = "PROBE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<String>,
    /// How these probes are put into the text, 1 to 5 (default: each in the best way there is)
    #[arg(long, value_name = "N", requires = "probe", value_parser = clap::value_parser!(u8).range(1..=5))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_tactic: Option<u8>,
    /// Room for what an event or a probe says, in bytes of its record or with a unit: a power of two from 64 to 64K
    /// (default: what the image's events need, with probes at least 256)
    #[arg(long, value_name = "BYTES", value_parser = quantities::in_bytes)]
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "quantities::some_bytes_in"
    )]
    pub record_bytes: Option<u64>,
    /// When something happens, do something, as 'vfs_open > 5ms: dump slow last 100ms and stop'; may be given several times.
    /// What: FUNCTION (a glob), FUNCTION > TIME (graph), or event NAME. Then: stop (recording), dump DIR [last TIME] [and
    /// stop], start SESSION, tracing-on SESSION, tracing-off SESSION, enable EVENT [in SESSION], disable EVENT [in SESSION], pause, or
    /// run COMMAND (on this host); once, or with xN after it up to N times
    #[arg(long, value_name = "WHAT: ACTION")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trigger: Vec<Trigger>,
    /// Record where each call was made, for `f <-caller` in reports (--trace function; a record takes two places then)
    #[arg(long)]
    pub callers: bool,
    /// Record the arguments of every call of a function whose types are known (--trace graph --clock tsc)
    #[arg(long)]
    pub args: bool,
    /// Record what every call of a function whose types are known returns (--trace graph --clock tsc)
    #[arg(long)]
    pub retval: bool,
    /// Write the trace to this directory, in uftrace's format or another (--store)
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// How the trace is kept there
    #[arg(long, value_name = "STORE", requires = "output", value_parser = choice::<StoreKind>(), default_value_t = Self::default().store)]
    pub store: StoreKind,
    /// Replace the output directory if it exists
    #[arg(long, requires = "output")]
    pub force: bool,
}

impl SessionOptions {
    /// Whether its output can be made, as far as that can be told now. To be asked before a guest is held for it.
    ///
    /// # Errors
    /// [`TracingError::OutputExists`], or [`TracingError::Output`] with what is missing.
    pub fn check_output(&self) -> Result<(), TracingError> {
        let output = self.output.as_ref();
        let checked = output.map_or(Ok(()), |directory| {
            uftrace::check_output(directory, self.force)
        });
        match checked {
            Err(ExportError::Exists(directory)) => Err(TracingError::OutputExists { directory }),
            checked => Ok(checked?),
        }
    }

    /// Whether what its triggers dump can be written, as far as that can be told now. To be asked before output is made,
    /// which may replace an older trace.
    ///
    /// # Errors
    /// [`TracingError::Output`] names the directory that is in the way, or missing.
    pub fn check_dumps(&self) -> Result<(), TracingError> {
        for directory in self.dumps() {
            uftrace::check_output(directory, false)?;
            if self.output.as_ref() == Some(directory) {
                return Err(ExportError::Exists(directory.clone()).into());
            }
        }
        Ok(())
    }

    /// The directories that its triggers dump to.
    pub fn dumps(&self) -> impl Iterator<Item = &PathBuf> {
        self.trigger
            .iter()
            .filter_map(|trigger| match &trigger.action {
                Action::Dump(dump) => Some(&dump.directory),
                _ => None,
            })
    }

    /// The same, with everything that it writes where `place` says.
    ///
    /// # Errors
    /// Those of `place`.
    pub fn placed<E>(mut self, place: impl Fn(PathBuf) -> Result<PathBuf, E>) -> Result<Self, E> {
        self.output = self.output.map(&place).transpose()?;
        let triggers = self.trigger.into_iter();
        let triggers = triggers.map(|trigger| trigger.placed(&place));
        self.trigger = triggers.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// What the session is made of.
    #[must_use]
    pub fn to_session(&self) -> options::SessionOptions {
        let bytes = |kib: u64| kib.saturating_mul(1024);
        options::SessionOptions {
            return_hook: self.return_hook,
            mode: self.mode,
            on_full: self.on_full,
            wait_time: self.wait_time,
            clock: self.clock,
            clock_period: self.clock_period,
            clock_cpu: self.clock_cpu,
            ring_bytes: bytes(self.ring_size),
            stack_bytes: self.stack_size.map(bytes),
            only_vcpus: self.only_vcpus.clone(),
            only_tasks: self.only_tasks.clone(),
            not_tasks: self.not_tasks.clone(),
            follow_forks: self.follow_forks,
            graph: self.graph.to_session(),
            event: self.event.clone(),
            probe: self.probe.clone(),
            probe_tactic: self.probe_tactic,
            record_bytes: self.record_bytes,
            callers: self.callers,
            args: self.args,
            retval: self.retval,
            output: self.output.clone(),
            store: self.store,
            force: self.force,
            occasions: self.occasions(),
        }
    }

    /// What its triggers wait for.
    fn occasions(&self) -> Vec<Occasion> {
        let triggers = self.trigger.iter();
        triggers.map(|trigger| trigger.occasion.clone()).collect()
    }
}

impl Default for SessionOptions {
    /// What the library has, in the units of the options.
    fn default() -> Self {
        let kib = |bytes: u64| bytes >> 10;
        let of = options::SessionOptions::default();
        Self {
            return_hook: of.return_hook,
            mode: of.mode,
            on_full: of.on_full,
            wait_time: of.wait_time,
            clock: of.clock,
            clock_period: of.clock_period,
            clock_cpu: of.clock_cpu,
            ring_size: kib(of.ring_bytes),
            stack_size: of.stack_bytes.map(kib),
            only_vcpus: of.only_vcpus,
            only_tasks: of.only_tasks,
            not_tasks: of.not_tasks,
            follow_forks: of.follow_forks,
            graph: of.graph.into(),
            event: of.event,
            probe: of.probe,
            probe_tactic: of.probe_tactic,
            record_bytes: of.record_bytes,
            callers: of.callers,
            args: of.args,
            retval: of.retval,
            output: of.output,
            store: of.store,
            force: of.force,
            trigger: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_the_same_defaults_on_the_line_and_in_json() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: SessionOptions,
        }
        let typed: Line = clap::Parser::try_parse_from(["x"]).unwrap();
        assert_eq!(typed.options, SessionOptions::default());
        assert_eq!(
            serde_json::from_str::<SessionOptions>("{}").unwrap(),
            SessionOptions::default()
        );
        assert_eq!(
            SessionOptions::default().to_session(),
            options::SessionOptions::default()
        );
    }
}
