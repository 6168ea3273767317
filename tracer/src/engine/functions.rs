//! Which functions a session traces: the plan, made while the guest runs, with the stubs that it needs.

use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::plan::{Plan, Step};
use super::stub_spec::stub_spec;
use super::{ApplyError, Engine};
use crate::filter::Selection;
use crate::session::SessionId;
use crate::stub::graph::SiteShape;
use crate::stub::template::Captures;
use crate::target::WindowMemory;

impl Engine {
    /// Plans that session `id` traces `selection`, and writes the stubs that this needs, which nothing
    /// leads to yet. The guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`].
    pub fn plan(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        id: SessionId,
        selection: &Selection,
    ) -> Result<Plan, ApplyError> {
        let profile = self.session(id)?.profile;
        // The table of a profile has no entry for what has come since it was made.
        let limit = profile.map_or(u32::MAX, |profile| profile.layout.functions());
        self.look(memory);
        let mut wanted = vec![false; self.image.functions.len()];
        for function in &selection.selected {
            if let Some(slot) = wanted.get_mut(function.index()) {
                *slot = function.0 < limit;
            }
        }
        let before: Vec<SessionSet> = (0u32..)
            .take(wanted.len())
            .map(|function| self.table.sessions(FunctionId(function)))
            .collect();
        let after = |function: FunctionId| {
            let set = before.get(function.index()).copied().unwrap_or_default();
            match wanted.get(function.index()) {
                Some(true) => set.with(id.0),
                _ => set.without(id.0),
            }
        };
        let returns = self.return_parts(|probe| probe.session);
        let captures: Vec<Captures> = if self.captures_calls() || !returns.is_empty() {
            let functions = (0u32..).take(wanted.len()).map(FunctionId);
            let captures = functions.map(|function| {
                let returns = returns.get(&function).cloned().unwrap_or_default();
                self.captures(memory, function, after(function), returns)
            });
            captures.collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let announcer = match self.announcer() {
            Some(function) if captures.is_empty() => {
                let captures = self.captures(memory, function, after(function), Vec::new())?;
                Some((function, captures))
            }
            Some(_) | None => None,
        };
        let after = |function: FunctionId| {
            let captures = captures.get(function.index()).copied();
            let announcer = announcer.filter(|(announcer, _)| *announcer == function);
            let captures = captures.or(announcer.map(|(_, captures)| captures));
            (after(function), captures.unwrap_or_default())
        };
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let sessions = &self.sessions;
        let (mirror, arena) = (ground.mirror, ground.arena);
        let spec = |set: SessionSet, shape: SiteShape, captures: Captures| {
            stub_spec(sessions, set, shape, captures, mirror, &arena)
        };
        let mut changes = self
            .table
            .plan(&self.image, after, spec, &mut ground.arena)?;
        self.write_stubs(memory)?;
        self.lead_through_probes(memory, &mut changes)?;
        let steps = changes.into_iter().map(Step::Function);
        Ok(Plan::lenient(steps.collect()))
    }

    /// Writes the stubs and detours that a plan needs, which nothing leads to yet.
    pub(super) fn write_stubs(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
    ) -> Result<(), ApplyError> {
        let mut unwritten = self.table.take_unwritten().into_iter();
        while let Some(stub) = unwritten.next() {
            if let Err(error) = memory.write_window(stub.physical, &stub.bytes) {
                // The table hands these stubs out again: they must not be forgotten.
                self.table.still_unwritten(unwritten.chain([stub]));
                return Err(ApplyError::Stub(error));
            }
        }
        Ok(())
    }
}
