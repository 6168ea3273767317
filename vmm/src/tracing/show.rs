//! The state of tracing, as the control socket shows it.

use tracer::engine::Applied;
use tracer::event::FunctionId;
use tracer::filter::{Pattern, Reason, Selection, Side};
use tracer::patch::functions::FunctionState;
use tracer::ring::reader::Mode;
use tracer::stub::recorder::Clock;

use super::output::Output;
use super::{Tracing, TracingError};
use crate::control::protocol::FunctionsQuery;
use crate::control::status::{Changed, Function, Functions, TracingStatus};

/// The name of a mode, as options have it.
pub(super) const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Overwrite => "overwrite",
        Mode::Discard => "discard",
    }
}

/// The name of a clock, as options have it.
pub(super) const fn clock_name(clock: Clock) -> &'static str {
    match clock {
        Clock::Tsc => "tsc",
        Clock::None => "none",
    }
}

impl Tracing {
    /// Part of `status`.
    #[must_use]
    pub fn status(&self) -> TracingStatus {
        let patched = self.engine.patched();
        let mut status = TracingStatus {
            state: self.state_name().to_owned(),
            reason: self.engine.frozen().map(ToString::to_string),
            patched: patched as u64,
            available: self.image.sites.len().saturating_sub(patched) as u64,
            skipped: self.image.untraceable.len() as u64,
            mode: Some(mode_name(self.options.mode).to_owned()),
            clock: clock_name(self.options.clock).to_owned(),
            ring_bytes: self.geometry.bytes(),
            stub_bytes: self.engine.stub_bytes(),
            output: self
                .options
                .output
                .as_ref()
                .map(|path| path.display().to_string()),
            ..TracingStatus::default()
        };
        if let Some((strategy, no_gs)) = self.engine.strategy() {
            status.cpu_strategy = Some(strategy.name().to_owned());
            status.no_gs = no_gs.map(|reason| reason.to_string());
        }
        if let Some(running) = &self.running {
            let mut drain = running.drain.lock();
            drain.refresh();
            status.rings = drain.status();
            status.clock_gaps = drain.clock_gaps();
            status.output_error = drain
                .output()
                .and_then(Output::error)
                .map(ToString::to_string);
            if let Ok(session) = self.engine.session(running.id) {
                let globs = |side| session.filter.globs(side).map(str::to_owned).collect();
                status.filter = globs(Side::Include);
                status.notrace = globs(Side::Notrace);
            }
        }
        status
    }

    fn state_name(&self) -> &'static str {
        match (self.engine.frozen(), self.is_started()) {
            (Some(_), _) => "frozen",
            (None, true) if self.switched_on => "tracing",
            (None, true) => "switched-off",
            (None, false) if self.waiting => "waiting",
            (None, false) => "off",
        }
    }

    /// `functions`: all whose names match the glob, with their states.
    ///
    /// # Errors
    /// [`TracingError::Filter`] for what is not a glob.
    pub fn functions(&self, query: &FunctionsQuery) -> Result<Functions, TracingError> {
        let glob = query.glob.as_deref().map(Pattern::new).transpose()?;
        let mut functions = Vec::new();
        for (number, function) in (0..).zip(&self.image.functions) {
            if glob.as_ref().is_none_or(|glob| glob.matches(function)) {
                functions.push(self.show_function(FunctionId(number)));
            }
        }
        Ok(Functions { functions })
    }

    fn show_function(&self, id: FunctionId) -> Function {
        let (state, reason) = match (self.image.untraceable(id), self.engine.state(id)) {
            (Some(untraceable), _) => ("skipped", Some(untraceable.reason.to_string())),
            (None, FunctionState::Nop) => ("available", None),
            (None, FunctionState::Patched { .. }) => ("patched", None),
            (None, FunctionState::Skipped(why)) => ("skipped", Some(why.to_string())),
        };
        self.line(id, state, reason)
    }

    fn line(&self, id: FunctionId, state: &str, reason: Option<String>) -> Function {
        let (address, name) = match self.image.function(id) {
            Some(function) => (function.address.to_string(), function.display.to_string()),
            None => ("?".to_owned(), "?".to_owned()),
        };
        Function {
            address,
            name,
            state: state.to_owned(),
            reason,
        }
    }

    pub(super) fn show_changed(
        &self,
        applied: &Applied,
        selection: &Selection,
        pause_us: f64,
    ) -> Changed {
        let foreign = applied
            .skipped
            .iter()
            .map(|(id, why)| (*id, why.to_string()));
        // What cannot be traced at all is no news: `functions` lists it.
        let denied = selection
            .denied
            .iter()
            .filter(|(_, why)| !matches!(why, Reason::Untraceable(_)))
            .map(|(id, why)| (*id, why.to_string()));
        let skipped = foreign
            .chain(denied)
            .map(|(id, why)| self.line(id, "skipped", Some(why)));
        Changed {
            patched: applied.patched as u64,
            restored: applied.restored as u64,
            traced: self.engine.patched() as u64,
            skipped: skipped.collect(),
            pause_us,
        }
    }
}
