//! Which functions a session traces: the plan, made while the guest runs, with the stubs that it needs.

use image::Site;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::ApplyError;
use super::announcer::Announcer;
use super::call_values::{place_routine, standing_at};
use super::plan::{Plan, PlanStep, What};
use super::planning::Planning;
use super::points::Points;
use crate::filter::Selection;
use crate::points::functions::{self, HaltSet, Recording};
use crate::session::SessionId;
use crate::stub::capture::CapturePart;
use crate::stub::store::{Piece, StoreError};
use crate::stub::task::fork::ForkRoutine;
use crate::stub::template::Captures;
use crate::target::WindowMemory;
use crate::text::edit::Lead;
use trace::event::Moment;

impl Points {
    /// Plans that session `id` traces `selection`. The guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`].
    pub(super) fn plan_functions<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        id: SessionId,
        selection: &Selection,
    ) -> Result<Plan, ApplyError> {
        let profile = with.sessions.get(id)?.profile;
        // The table of a profile has no entry for what has come since it was made.
        let limit = profile.map_or(u32::MAX, |profile| profile.layout.functions());
        let sites = &*with.sites;
        let all = (0u32..).zip(&with.image.functions);
        let all = all.map(|(number, _)| sites.sessions(FunctionId(number)).without(id.0));
        let mut after: Vec<SessionSet> = all.collect();
        for function in in_time(selection, limit) {
            if let Some(set) = after.get_mut(function.index()) {
                *set = set.with(id.0);
            }
        }
        let after = |function: FunctionId| after.get(function.index()).copied().unwrap_or_default();
        let returns = self.probes.return_parts(with, |probe| probe.session);
        let captures: Vec<Captures> = if with.sessions.capture_any() || !returns.is_empty() {
            let all = (0u32..).take(with.image.functions.len()).map(FunctionId);
            let captures = all.map(|function| {
                let returns = returns.get(&function).cloned().unwrap_or_default();
                self.captures(with, function, after(function), returns)
            });
            captures.collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let announcer = self.announcer.as_ref().map(Announcer::function);
        let mut telling = Vec::new();
        for function in announcer.into_iter().chain(self.begins_tasks) {
            if captures.is_empty() {
                let captures = self.captures(with, function, after(function), Vec::new())?;
                telling.push((function, captures));
            }
        }
        let wanted = |function: FunctionId| {
            let captures = captures.get(function.index()).copied();
            let telling = telling.iter().find(|(of, _)| *of == function);
            let captures = captures.or(telling.map(|(_, captures)| *captures));
            let set = after(function);
            let halts = with.sessions.halts_of(set, with.image.function(function));
            (set, captures.unwrap_or_default(), halts)
        };
        let leads = self.leads(with, wanted)?;
        let mut steps = Vec::with_capacity(leads.len());
        for (site, lead) in leads {
            let lead = self.through_probes(with, site, lead)?;
            let wanted = functions::wanted(site, with.sites, lead).map_err(StoreError::from)?;
            let edit = with.sites.edit(wanted);
            steps.extend(edit.map(|edit| PlanStep::one(What::Function(site.function), edit)));
        }
        Ok(Plan::lenient(steps))
    }

    /// Where the sites lead to the stubs of those who want them.
    fn leads<'i, M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'i, M>,
        wanted: impl Fn(FunctionId) -> (SessionSet, Captures, HaltSet),
    ) -> Result<Vec<(&'i Site, Option<Lead>)>, ApplyError> {
        let (image, sessions) = (with.image, with.sessions);
        let foothold = with.foothold.as_deref_mut();
        let foothold = foothold.ok_or(ApplyError::NotAttached)?;
        let hook = foothold.hook();
        let spec = |of: &Recording| sessions.stub_spec(of, hook);
        let (sites, store) = (&*with.sites, &mut foothold.stubs);
        Ok(functions::leads(
            image,
            sites,
            sessions.anew(),
            wanted,
            spec,
            store,
            with.memory,
        )?)
    }

    /// The routines that the stub of a function calls which these sessions trace, and at whose returns `returns` are
    /// captured, too.
    pub(super) fn captures<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        function: FunctionId,
        sessions: SessionSet,
        returns: Vec<CapturePart>,
    ) -> Result<Captures, ApplyError> {
        let entry = self.calls.parts(with, function, Moment::Entry, sessions);
        let mut exit = self.calls.parts(with, function, Moment::Exit, sessions);
        exit.extend(returns);
        let standing = standing_at(with.image, function);
        let entry = place_routine(with, standing, entry)?;
        let entry = self.announcing(with, function, entry)?;
        Ok(Captures {
            entry: self.following(with, function, entry)?,
            exit: place_routine(with, standing, exit)?,
        })
    }

    /// What the stub of `function` calls when it is entered: `routine`, unless it has to tell of a module before.
    fn announcing<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        function: FunctionId,
        routine: Option<Gva>,
    ) -> Result<Option<Gva>, ApplyError> {
        let announcer = self.announcer.as_ref();
        let doorbell = announcer.and_then(|announcer| announcer.doorbell(function, routine));
        match doorbell {
            Some(doorbell) => with.place(Piece::Doorbell(doorbell)).map(Some),
            None => Ok(routine),
        }
    }
    /// What the stub of `function` calls when it is entered: `routine`, after what says of a new task whether it is
    /// recorded, where that is asked.
    fn following<M: WindowMemory + ?Sized>(
        &self,
        with: &mut Planning<'_, M>,
        function: FunctionId,
        routine: Option<Gva>,
    ) -> Result<Option<Gva>, ApplyError> {
        let checks = with.sessions.followers();
        if self.begins_tasks != Some(function) || checks.is_empty() {
            return Ok(routine);
        }
        let go_on = routine;
        with.place(Piece::Fork(ForkRoutine { checks, go_on }))
            .map(Some)
    }
}

/// The functions of a selection that have an entry in a table for so many.
fn in_time(selection: &Selection, limit: u32) -> impl Iterator<Item = FunctionId> {
    let all = selection.selected.iter();
    let late = all.filter(|function| function.0 >= limit).count();
    if late > 0 {
        log::warn!(
            "{late} functions have come since the profile was made, and are not counted: a new session has them"
        );
    }
    let all = selection.selected.iter().copied();
    all.filter(move |function| function.0 < limit)
}
