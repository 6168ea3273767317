//! Changing what is traced: a plan, made while the guest runs, and its writes, all of them or none.

use image::{Image, SiteKind};
use terms::function::FunctionId;

use super::{ApplyError, Engine, Frozen};
use crate::filter::Selection;
use crate::patch::functions::{Change, Plan, SessionSet};
use crate::patch::live;
use crate::patch::poke::{self, Poke, PokeError, TransactionError, read_site};
use crate::session::{Session, SessionId};
use crate::stub::arena::Arena;
use crate::stub::graph::{Hook, ReturnHook, SiteShape};
use crate::stub::mirror::Mirror;
use crate::stub::template::{Captures, StubSpec};
use crate::target::{LiveTarget, PhysicalMemory, StoppedTarget, TargetMemory, VcpuRegisters};

/// What a change did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sites that now hold a jump to a stub (again, or another one).
    pub patched: usize,
    /// Sites that hold their nop again.
    pub restored: usize,
    /// Functions that were left as they were found, and why.
    pub skipped: Vec<(FunctionId, PokeError)>,
}

/// A way to write text, all of the pokes or none: while the target is stopped, or while it runs.
pub(super) type Write<T> = fn(&mut T, &Image, &[Poke]) -> Result<(), TransactionError>;

/// What the stub of the functions that `set` traces does, and of which this is captured.
pub(super) fn stub_spec(
    sessions: &[Option<Session>],
    set: SessionSet,
    shape: SiteShape,
    captures: Captures,
    mirror: Option<Mirror>,
    arena: &Arena,
) -> StubSpec {
    let of = |id: u8| sessions.get(usize::from(id)).and_then(Option::as_ref);
    let traced_by: Vec<&Session> = set.iter().filter_map(of).collect();
    let graph = traced_by
        .iter()
        .find(|session| session.config.tracer.hooks_returns());
    let variant = graph.map(|session| session.config.return_hook);
    let variant = variant.or_else(|| captures.exit.map(|_| ReturnHook::default()));
    let hook = variant.zip(mirror).map(|(variant, mirror)| Hook {
        variant,
        mirror,
        stubs: arena.start(),
        stub_bytes: u32::try_from(arena.bytes()).unwrap_or(u32::MAX >> 1),
    });
    let shape = match shape {
        SiteShape::Bare => shape,
        _ if hook.is_some() => shape,
        _ => SiteShape::Entry,
    };
    StubSpec {
        recorders: traced_by.iter().filter_map(|one| one.recorder).collect(),
        profiles: traced_by.iter().filter_map(|one| one.profile).collect(),
        shape,
        hook,
        captures_entry: captures.entry.is_some(),
        captures_exit: captures.exit.is_some(),
    }
}

impl Engine {
    /// Plans that session `id` traces `selection`, and writes the stubs that this needs, which nothing
    /// leads to yet. The guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`].
    pub fn plan(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
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
        let mut plan = self
            .table
            .plan(&self.image, after, spec, &mut ground.arena)?;
        self.write_stubs(memory)?;
        self.lead_through_probes(memory, &mut plan)?;
        Ok(plan)
    }

    /// Writes the stubs and detours that a plan needs, which nothing leads to yet.
    pub(super) fn write_stubs(
        &mut self,
        memory: &mut (impl PhysicalMemory + ?Sized),
    ) -> Result<(), ApplyError> {
        let mut unwritten = self.table.take_unwritten().into_iter();
        while let Some(stub) = unwritten.next() {
            if let Err(error) = memory.write_physical(stub.physical, &stub.bytes) {
                // The table hands these stubs out again: they must not be forgotten.
                self.table.still_unwritten(unwritten.chain([stub]));
                return Err(ApplyError::Stub(error));
            }
        }
        Ok(())
    }

    /// Brings the guest's text to what `plan` says, all of it or nothing. Sites that hold what
    /// nobody expects are left out and reported.
    ///
    /// # Errors
    /// An [`ApplyError`]; then no site was changed.
    pub fn apply(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        let vcpus = target.vcpus().to_vec();
        let inner = plan.changes.iter().flat_map(|change| self.inner(change));
        let mut left_out = self.occupied(target, inner.collect())?;
        left_out.extend(self.functions_beside_kprobes(target, plan));
        self.carry_out(target, &vcpus, (plan, left_out), poke::apply)
    }

    /// The same while the guest runs.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn apply_live(
        &mut self,
        target: &mut (impl LiveTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        let vcpus = target.vcpus().to_vec();
        let joining = plan
            .changes
            .iter()
            .filter(|one| self.joins_instructions(one));
        let needs_stop = |change: &Change| {
            let symbol = poke::symbol(&self.image, change.poke.function);
            let at = change.poke.at;
            (change.poke.function, PokeError::NeedsStop { symbol, at })
        };
        let left_out = joining.map(needs_stop).collect();
        self.carry_out(target, &vcpus, (plan, left_out), live::apply)
    }

    fn carry_out<T: TargetMemory + PhysicalMemory + ?Sized>(
        &mut self,
        target: &mut T,
        vcpus: &[VcpuRegisters],
        (plan, mut left_out): (&Plan, Vec<(FunctionId, PokeError)>),
        write: Write<T>,
    ) -> Result<Applied, ApplyError> {
        self.check_frozen()?;
        self.look(target);
        let ground = self.ground.as_ref().ok_or(ApplyError::NotAttached)?;
        // A guest that has taken the window back needs nothing more than its nops.
        let is_seen = ground.window.verify_seen_by(target, vcpus);
        if plan.changes.iter().any(|change| change.stub.is_some()) {
            is_seen?;
        }
        let is_current = |change: &Change| {
            self.table.is_gone(change.poke.function) || self.table.is_current(&self.image, change)
        };
        if !plan.changes.iter().all(is_current) {
            return Err(ApplyError::Stale);
        }
        let ground = self.ground.as_ref().ok_or(ApplyError::NotAttached)?;
        let is_elsewhere = |change: &Change| {
            let site = self.image.site_of(change.poke.function);
            let is_displaced = site.is_some_and(|site| site.kind == SiteKind::Displaced);
            is_displaced
                && change.displaces()
                && !ground.window.suits(target, vcpus, change.poke.at)
        };
        let other_ring = |change: &Change| {
            let symbol = poke::symbol(&self.image, change.poke.function);
            let at = change.poke.at;
            (change.poke.function, PokeError::OtherRing { symbol, at })
        };
        let elsewhere = plan.changes.iter().filter(|one| is_elsewhere(one));
        left_out.extend(elsewhere.map(other_ring));
        left_out.sort_by_key(|(function, _)| *function);
        left_out.dedup_by_key(|(function, _)| *function);
        let (mut changes, mut skipped) = self.inspect(target, plan)?;
        let is_left_out = |function: FunctionId| {
            let found = left_out.binary_search_by_key(&function, |(function, _)| *function);
            found.is_ok()
        };
        changes.retain(|change| !is_left_out(change.poke.function));
        skipped.extend(left_out);
        let pokes: Vec<Poke> = changes.iter().map(|change| change.poke).collect();
        let written = write(target, &self.image, &pokes);
        self.note(written)?;
        let mut applied = Applied::default();
        for change in &changes {
            let function = change.poke.function;
            let was_patched = self.table.state(function).is_patched();
            self.table.applied(change);
            match (was_patched, self.table.state(function).is_patched()) {
                (_, true) => applied.patched += 1,
                (true, false) => applied.restored += 1,
                (false, false) => {}
            }
        }
        for (function, why) in &skipped {
            self.table.skipped(*function, why.clone());
        }
        applied.skipped = skipped;
        Ok(applied)
    }

    /// Freezes when something could not be taken back.
    pub(super) fn note(&mut self, written: Result<(), TransactionError>) -> Result<(), ApplyError> {
        if let Err(error) = &written
            && let Some(stuck) = error.stuck.first()
        {
            self.frozen = Some(Frozen(stuck.clone().into()));
        }
        Ok(written?)
    }

    pub(super) fn freeze(&mut self, why: PokeError) -> ApplyError {
        let frozen = Frozen(why.into());
        self.frozen = Some(frozen.clone());
        ApplyError::Frozen(frozen)
    }

    pub(super) fn check_frozen(&self) -> Result<(), ApplyError> {
        match &self.frozen {
            Some(frozen) => Err(ApplyError::Frozen(frozen.clone())),
            None => Ok(()),
        }
    }

    /// Looks at every site before any is written. A foreign byte at a nop is somebody else's patch:
    /// that site is left. One at our own jump freezes patching.
    #[expect(clippy::type_complexity, reason = "the two halves of one list")]
    fn inspect(
        &mut self,
        target: &(impl TargetMemory + ?Sized),
        plan: &Plan,
    ) -> Result<(Vec<Change>, Vec<(FunctionId, PokeError)>), ApplyError> {
        let mut changes = Vec::with_capacity(plan.changes.len());
        let mut skipped = Vec::new();
        let is_there = |change: &&Change| !self.table.is_gone(change.poke.function);
        let there: Vec<Change> = plan.changes.iter().filter(is_there).copied().collect();
        for change in &there {
            match self.look_at(target, &change.poke) {
                Ok(()) => changes.push(*change),
                Err(error) if change.is_ours => return Err(self.freeze(error)),
                Err(error) => skipped.push((change.poke.function, error)),
            }
        }
        Ok((changes, skipped))
    }

    pub(super) fn look_at(
        &self,
        target: &(impl TargetMemory + ?Sized),
        poke: &Poke,
    ) -> Result<(), PokeError> {
        let Poke {
            function,
            at,
            expected,
            ..
        } = *poke;
        let found = read_site(target, &self.image, poke)?;
        if found == expected {
            return Ok(());
        }
        let symbol = self
            .image
            .function(function)
            .map_or("?", |function| &*function.name)
            .into();
        Err(PokeError::Unexpected {
            symbol,
            at,
            expected,
            found,
        })
    }
}
