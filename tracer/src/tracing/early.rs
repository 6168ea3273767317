//! What a session needs, as far as the image says: asked before the guest starts, since the attach point may be a
//! boot away, and before an older trace is replaced.

use crate::engine::Engine;
use crate::engine::tasks::check;
use crate::filter::Selection;
use crate::ring::reader::Mode;
use crate::stack::UnwindError;
use terms::function::FunctionId;

use super::call_values::captures_of;
use super::checks::wanted_tasks;
use super::error::TracingError;
use super::options::{ClockSource, SessionOptions, Tracer};
use super::probe_text::Read;
use super::session::Shared;

/// What is asked of a session, and of what.
pub(super) struct Early<'a> {
    pub shared: &'a Shared,
    pub engine: &'a Engine,
    pub tracer: Tracer,
    pub options: &'a SessionOptions,
}

impl Early<'_> {
    /// Whether the options mean something for this tracer, and its probes can be set.
    ///
    /// # Errors
    /// [`TracingError`] names the option or the probe.
    pub fn check(&self) -> Result<(), TracingError> {
        check_applies(self.tracer, self.options)?;
        let tasks = wanted_tasks(self.options)?;
        if !tasks.is_all() {
            check(self.engine, &tasks)?;
        }
        let mut probes = Vec::new();
        for text in &self.options.probe {
            let tactic = self.options.probe_tactic;
            match self.shared.read_probe(text, tactic, |_| false)? {
                Read::Here(new) => probes.extend(new),
                Read::Waits { .. } => {}
            }
        }
        if probes.iter().any(|probe| probe.capture.needs_stack())
            && !self.engine.transient().can_unwind()
        {
            return Err(UnwindError::None.into());
        }
        Ok(self.engine.check_probes(&probes)?)
    }

    /// Whether values of these functions' calls can be captured, if that is asked for.
    ///
    /// # Errors
    /// [`TracingError::NoTypes`].
    pub fn check_types(&self, selection: &Selection) -> Result<(), TracingError> {
        let selected = &selection.selected;
        if self.options.captures().is_empty() || selected.is_empty() {
            return Ok(());
        }
        let is_known = |function: &FunctionId| captures_of(self.shared, *function).is_some();
        match selected.iter().any(is_known) {
            true => Ok(()),
            false => Err(TracingError::NoTypes {
                functions: selected.len(),
            }),
        }
    }
}

/// Whether every option that is given changes something.
pub(super) fn check_applies(tracer: Tracer, options: &SessionOptions) -> Result<(), TracingError> {
    let usual = SessionOptions::default();
    let (graph, page) = (&options.graph, options.clock == ClockSource::Page);
    let given = |of: &[(&'static str, bool)]| of.iter().find(|(_, is)| *is).map(|(name, _)| *name);
    let of_graphs = [
        ("max-depth", graph.max_depth.is_some()),
        ("graph-function", !graph.functions.is_empty()),
        ("graph-notrace", !graph.notrace.is_empty()),
        ("threshold", graph.threshold.is_some()),
        ("stack-size", options.stack_bytes.is_some()),
    ];
    if options.callers && tracer != Tracer::Function {
        let (option, what) = ("callers", "the function tracer: a graph has them anyhow");
        return Err(TracingError::NotApplicable { option, what });
    }
    let lossless = options.mode == Mode::Lossless;
    let of_waits = [
        ("on-full", options.on_full != usual.on_full && !lossless),
        (
            "wait-time",
            options.wait_time != usual.wait_time && !lossless,
        ),
    ];
    if let Some(option) = given(&of_waits) {
        let what = "the lossless mode";
        return Err(TracingError::NotApplicable { option, what });
    }
    let of_page = [
        ("clock-cpu", options.clock_cpu.is_some()),
        ("clock-period", options.clock_period != usual.clock_period),
    ];
    let wrong = match (tracer, page) {
        (Tracer::Function | Tracer::Nop | Tracer::Profile, _) if given(&of_graphs).is_some() => {
            given(&of_graphs).map(|option| (option, "the graph tracer"))
        }
        (_, false) => given(&of_page).map(|option| (option, "the clock page")),
        (_, true) => None,
    };
    match wrong {
        Some((option, what)) => Err(TracingError::NotApplicable { option, what }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_change_nothing_are_refused() {
        let usual = SessionOptions::default;
        let mut slow = usual();
        slow.graph.threshold = Some("10us".parse().unwrap());
        let mut root = usual();
        root.graph.functions = vec!["a".to_owned()];
        let mut stack = usual();
        stack.stack_bytes = Some(16 << 10);
        let mut callers = usual();
        callers.callers = true;
        let mut period = usual();
        period.clock_period = 1000;
        let mut cpu = usual();
        (cpu.clock_cpu, cpu.clock) = (Some(1), ClockSource::None);
        for (options, tracer, word) in [
            (slow, Tracer::Function, "threshold"),
            (root, Tracer::Nop, "graph-function"),
            (stack, Tracer::Profile, "the graph tracer"),
            (callers, Tracer::Graph, "the function tracer"),
            (period, Tracer::Graph, "the clock page"),
            (cpu, Tracer::Function, "clock-cpu"),
        ] {
            let error = check_applies(tracer, &options).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let mut all = usual();
        all.graph.max_depth = std::num::NonZeroU32::new(2);
        (all.stack_bytes, all.clock, all.clock_period) = (Some(16 << 10), ClockSource::Page, 1000);
        check_applies(Tracer::Graph, &all).unwrap();
        for tracer in [
            Tracer::Function,
            Tracer::Graph,
            Tracer::Nop,
            Tracer::Profile,
        ] {
            check_applies(tracer, &usual()).unwrap();
        }
    }
}
