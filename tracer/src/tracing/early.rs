//! What a session needs, as far as the image says: asked before the guest starts, since the attach point may be a
//! boot away, and before an older trace is replaced.

use crate::engine::Engine;
use crate::engine::tasks::check;
use crate::filter::Selection;
use crate::stack::UnwindError;
use terms::function::FunctionId;

use super::call_values::captures_of;
use super::checks::{check_applies, wanted_tasks};
use super::error::TracingError;
use super::options::{SessionOptions, Tracer};
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
