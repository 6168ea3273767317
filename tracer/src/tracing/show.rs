//! The state of tracing, as the control socket shows it.

use crate::engine::{Frozen, FrozenBy};
use crate::filter::{Reason, Selection, check_matches};
use crate::patch::functions::FunctionState;
use crate::session::SessionId;
use crate::text::poke::PokeError;
use terms::function::FunctionId;
use trace::glob::Pattern;

use super::carry_out::Carried;
use super::session::TraceSession;
use super::status::{
    Changed, ClockPageStatus, FrozenStatus, Function, Functions, LocksStatus, SessionStatus,
    TracingStatus, VcpuClocksStatus, microseconds,
};
use super::{Tracing, TracingError};

/// What, where, expected and found.
fn show_frozen(frozen: &Frozen) -> FrozenStatus {
    let mut status = FrozenStatus {
        reason: frozen.to_string(),
        ..FrozenStatus::default()
    };
    if let FrozenBy::Poke(PokeError::Unexpected {
        symbol,
        at,
        expected,
        found,
    }) = &frozen.0
    {
        status.function = Some(symbol.to_string());
        status.address = Some(at.to_string());
        status.expected = Some(expected.to_string());
        status.found = Some(found.to_string());
    }
    status
}

impl Tracing {
    /// What it does now.
    #[must_use]
    pub fn status(&self) -> TracingStatus {
        let patched = self.engine.patched();
        let image = &self.shared.image;
        let sessions = self.session_statuses();
        let untraceable = image.untraceable.iter();
        let untraceable = untraceable.filter(|entry| !self.engine.is_gone(entry.function));
        let mut status = TracingStatus {
            state: self.state_name(&sessions).to_owned(),
            frozen: self.engine.frozen().map(show_frozen),
            patched: patched as u64,
            available: image
                .sites
                .len()
                .saturating_sub(patched + self.engine.gone()) as u64,
            skipped: untraceable.count() as u64,
            patch_method: self.patch_method.name().to_owned(),
            stub_bytes: self.engine.stub_bytes(),
            sessions,
            ..TracingStatus::default()
        };
        status.clock_page = self.clock_page.as_ref().map(|page| {
            let (stalls, longest) = self.beats.stalls();
            let ns = |ticks: u64| self.clock.map_or(0, |clock| clock.duration_ns(ticks));
            ClockPageStatus {
                period_ns: page.beat().period_ns,
                cpu: page.beat().cpu,
                stalls,
                longest_stall_ns: ns(longest),
            }
        });
        status.vcpu_clocks = self.vcpu_clocks_status();
        let (prefixes, sites) = self.engine.locks();
        status.smp_locks = (sites > 0).then(|| LocksStatus {
            state: prefixes.name().to_owned(),
            sites: sites as u64,
        });
        if let Some((strategy, no_gs)) = self.engine.strategy() {
            status.cpu_strategy = Some(strategy.name().to_owned());
            status.no_gs = no_gs.map(|reason| reason.to_string());
        }
        status
    }

    fn vcpu_clocks_status(&self) -> Option<VcpuClocksStatus> {
        let (clocks, clock) = self.vcpu_clocks.as_ref().zip(self.clock)?;
        let summary = clocks.summary();
        Some(VcpuClocksStatus {
            bound_ns: clock.duration_ns(summary.bound),
            sets: summary.sets,
            differ: summary.do_differ,
        })
    }

    pub(super) fn session_statuses(&self) -> Vec<SessionStatus> {
        let traced = |session: &TraceSession| {
            let live = session.live.as_ref();
            live.map_or(0, |live| self.engine.traced_by(live.id)) as u64
        };
        let show = |session: &TraceSession| {
            let mut status = session.status(traced(session));
            let events = session.events.iter();
            status.events = events.map(|event| self.engine.event_name(*event)).collect();
            status
        };
        self.sessions.iter().map(show).collect()
    }

    /// The strongest of what the sessions do.
    fn state_name(&self, sessions: &[SessionStatus]) -> &'static str {
        if self.engine.frozen().is_some() {
            return "frozen";
        }
        ["tracing", "switched-off", "waiting"]
            .into_iter()
            .find(|state| sessions.iter().any(|session| session.state == *state))
            .unwrap_or("off")
    }

    /// All functions whose names match the glob, with their states.
    ///
    /// # Errors
    /// [`TracingError::Glob`] for what is none, [`TracingError::Filter`] for one that matches nothing.
    pub fn functions(&self, glob: Option<&str>) -> Result<Functions, TracingError> {
        let glob = glob.map(Pattern::new).transpose()?;
        if let Some(glob) = &glob {
            check_matches(glob, &self.shared.image)?;
        }
        let mut functions = Vec::new();
        for (number, function) in (0..).zip(&self.shared.image.functions) {
            let id = FunctionId(number);
            if self.engine.is_gone(id) {
                continue;
            }
            if glob.as_ref().is_none_or(|glob| glob.matches(function)) {
                functions.push(self.show_function(id));
            }
        }
        Ok(Functions { functions })
    }

    fn show_function(&self, id: FunctionId) -> Function {
        let (state, reason) = match (self.shared.image.untraceable(id), self.engine.state(id)) {
            (Some(untraceable), _) => ("skipped", Some(untraceable.reason.to_string())),
            (None, FunctionState::Nop) => ("available", None),
            (None, FunctionState::Patched(_)) => ("patched", None),
            (None, FunctionState::Skipped(why)) => ("skipped", Some(why.to_string())),
            (None, FunctionState::Gone) => ("gone", None),
        };
        self.line(id, state, reason)
    }

    fn line(&self, id: FunctionId, state: &str, reason: Option<String>) -> Function {
        let function = self.shared.image.function(id);
        let (address, name) = match function {
            Some(function) => (function.address.to_string(), function.display.to_string()),
            None => ("?".to_owned(), "?".to_owned()),
        };
        let module = function.and_then(|function| function.module.as_deref());
        Function {
            address,
            name,
            module: module.map(str::to_owned),
            state: state.to_owned(),
            reason,
        }
    }

    /// The functions whose returns a session cannot see, though it wants to.
    fn entry_only(&self, id: SessionId, selection: &Selection) -> Vec<Function> {
        let session = self.engine.session(id);
        if !session.is_ok_and(|session| session.config.tracer.hooks_returns()) {
            return Vec::new();
        }
        let line = |id: &FunctionId| {
            let why = self.shared.image.unhookable(*id)?;
            Some(self.line(*id, "patched", Some(why.to_string())))
        };
        selection.selected.iter().filter_map(line).collect()
    }

    pub(super) fn show_changed(
        &self,
        id: SessionId,
        carried: &Carried,
        selection: &Selection,
    ) -> Changed {
        let applied = &carried.applied;
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
            traced: self.engine.traced_by(id) as u64,
            skipped: skipped.collect(),
            entry_only: self.entry_only(id, selection),
            pauses: carried.pauses,
            pause_us: microseconds(carried.longest),
        }
    }
}
