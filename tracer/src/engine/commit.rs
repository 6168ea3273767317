//! The commit: the one way by which a plan of any kind becomes what stands in the guest, all of it or nothing.
//!
//! What it finds out first: that nothing is frozen; that the guest still sees the window, if anything is to lead there;
//! that everything is as it was when the plan was made; that what is ours still stands where it was written (if not,
//! patching freezes); that the guest is not changing text of its own; that displaced instructions run in the ring that the window is for (where vCPUs are stopped, so that
//! this can be told: else what displaces is only of guests with one ring), with no probe of the guest among them and no thread inside. Then the words of text and data are written, each compared before and read back;
//! what fails takes the rest back, and what cannot be taken back the table of sites holds until it can (`text/sites/stuck.rs`). At the end the table of sites knows what stands where.

use image::Image;
use terms::function::FunctionId;

use super::kprobes::{Changed, beside_kprobes};
use super::plan::{Obstacles, Plan, PlanStep, What};
use super::points::Points;
use super::probes::error::ProbeError;
use super::proof::{Live, Proof, Running, Stopped};
use super::steps::{InTheWay, Steps};
use super::{ApplyError, Engine, Foothold, Frozen};
use crate::introspection::Introspection;
use crate::points::normalise::normalisations;
use crate::target::{
    AtomicTarget, LiveTarget, PhysicalMemory, StoppedTarget, TargetMemory, VcpuRegisters,
    WindowMemory,
};
use crate::text::atomic::Shared;
use crate::text::edit::{Edit, Lead};
use crate::text::poke::{Poke, PokeError, TransactionError, expect, symbol, while_it_patches};
use crate::text::sites::Sites;
use crate::text::word::{self, WordError};

/// What a change did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sites of functions that now hold a jump to a stub (again, or another one).
    pub patched: usize,
    /// Those that hold their nop again.
    pub restored: usize,
    /// Places of text that were written, whatever for.
    pub written: u64,
    /// Functions that were left as they were found, and why.
    pub skipped: Vec<(FunctionId, PokeError)>,
    /// Places at which instructions were displaced, or put back, of which the guest could not be asked whether it has probes of its
    /// own there.
    pub unasked: u64,
}

/// What a commit works with.
#[derive(Debug)]
pub(crate) struct Commit<'a> {
    pub(super) image: &'a Image,
    pub(super) inside: Option<&'a dyn Introspection>,
    pub(super) points: &'a mut Points,
    pub(super) sites: &'a mut Sites,
    pub(super) foothold: Option<&'a mut Foothold>,
}

impl Commit<'_> {
    /// Notes in the journal what is about to be written. Before a `plan` is carried out, and [`Self::settle`] afterwards,
    /// whatever became of it ([`noted`]).
    ///
    /// # Errors
    /// An [`ApplyError`]; then it must not be carried out.
    pub(super) fn note(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        plan: &Plan,
    ) -> Result<(), ApplyError> {
        // What is made one nop stays so: nobody who comes after us has to put it back.
        let of_ours = |edit: &&Edit| edit.before.is_some() || edit.after.is_some();
        let edits = plan.steps.iter().flat_map(|step| &step.edits);
        if let Some(foothold) = &mut self.foothold {
            let edits = edits.filter(of_ours);
            self.sites.note(&mut foothold.journal, memory, edits)?;
            let words = plan.steps.iter().filter_map(|step| step.word.as_ref());
            self.sites
                .note_words(&mut foothold.journal, memory, words)?;
        }
        Ok(())
    }

    /// Has the journal say what stands there now.
    pub(super) fn settle(&mut self, memory: &mut (impl WindowMemory + ?Sized)) {
        if let Some(foothold) = &mut self.foothold {
            self.sites.settle(&mut foothold.journal, memory);
        }
    }

    /// Takes the kill switch back, after somebody has looked into it, and what could not be taken back before. Says of how many
    /// functions the guest has given our jumps back by itself.
    ///
    /// # Errors
    /// An [`ApplyError`] when it still cannot be; then patching is frozen as before.
    pub fn thaw(&mut self, target: &mut (impl StoppedTarget + ?Sized)) -> Result<u64, ApplyError> {
        let why = self.sites.frozen().cloned();
        self.sites.thaw();
        let taken_back = self.take_back_stuck(target);
        if let (Err(_), Some(Frozen(why))) = (&taken_back, why) {
            self.sites.freeze(why);
        }
        let given_back = self.sites.take_given_back(target);
        self.settle(target);
        taken_back.map(|()| given_back)
    }

    /// Takes back what changes that have failed have left of ours.
    fn take_back_stuck(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), ApplyError> {
        let (edits, words) = self.sites.taking_back(target);
        // Who wants what there has never changed.
        let is_breakpoint = false;
        let text = edits.into_iter().rev();
        let text = text.map(|edit| PlanStep::one(What::Place { is_breakpoint }, edit));
        let words = words.into_iter().map(|word| PlanStep {
            word: Some(word),
            ..PlanStep::of(What::Place { is_breakpoint }, Vec::new())
        });
        let plan = Plan::whole(text.chain(words).collect());
        if plan.is_empty() {
            return Ok(());
        }
        self.note(target, &plan)?;
        self.apply(target, &plan).map(drop)
    }

    /// Brings the guest's text to what `plan` says, all of it or nothing. It has been noted.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing was changed.
    pub fn apply(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        self.commit(Stopped::of(target), plan)
    }

    /// Makes the sites of these functions one nop. That is no change of ours which somebody has to take back: nothing of
    /// the guest's own runs there, and the nop stays when tracing ends. So the journal has none of it.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing was changed.
    pub(super) fn make_normal(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        is_meant: impl Fn(FunctionId) -> bool,
    ) -> Result<usize, ApplyError> {
        let edits = normalisations(self.image, self.sites, is_meant);
        let steps = edits
            .into_iter()
            .map(|edit| PlanStep::one(What::Normal, edit));
        let plan = Plan::whole(steps.collect());
        self.apply(target, &plan)?;
        Ok(plan.steps.len())
    }

    /// [`Self::apply`] while the guest runs.
    ///
    /// # Errors
    /// As [`Self::apply`]. Several instructions become one only while the guest is stopped.
    pub fn apply_live(
        &mut self,
        target: &mut (impl LiveTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        self.commit(Live(target), plan)
    }

    /// [`Self::apply`] while every vCPU runs, of a plan whose steps all are of words: at none of its sites is a vCPU stopped,
    /// or asked for anything.
    ///
    /// # Errors
    /// As [`Self::apply`]. A function's site that the guest writes to meanwhile is left out; another one fails.
    pub fn apply_running(
        &mut self,
        target: &mut (impl AtomicTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        let inside = self.inside;
        self.commit(Running { target, inside }, plan)
    }

    fn commit(&mut self, mut proof: impl Proof, plan: &Plan) -> Result<Applied, ApplyError> {
        self.sites.check_frozen()?;
        self.check_window(&mut proof, plan)?;
        let mut steps = self.current(plan)?;
        self.check_ours(proof.target(), &steps)?;
        refuse(self.while_the_guest_patches(proof.target(), &steps))?;
        let in_the_way = self.in_the_way(&proof, plan.obstacles, &steps)?;
        let mut left = self.leave_out(&mut steps, in_the_way);
        let late = self.write(&mut proof, &steps, plan.obstacles)?;
        left.extend(self.leave_out(&mut steps, late));
        let mut applied = self.made(&steps);
        applied.unasked = self.unasked(&steps);
        for (step, why) in left {
            step.edits
                .iter()
                .for_each(|edit| self.sites.left(edit, why.clone()));
            applied
                .skipped
                .extend(step.function().map(|function| (function, why)));
        }
        Ok(applied)
    }

    /// The steps that cannot be made, of a plan that leaves them out; one that does not is refused.
    fn in_the_way(
        &self,
        proof: &impl Proof,
        obstacles: Obstacles,
        steps: &Steps<'_>,
    ) -> Result<InTheWay, ApplyError> {
        let (target, vcpus) = (proof.target(), proof.vcpus());
        match obstacles {
            Obstacles::Refuse => {
                // First what stays so: a thread that is in the way goes on and is looked for again.
                refuse(self.of_other_rings(target, vcpus, steps))?;
                refuse(self.among_kprobes(target, steps))?;
                refuse(proof.in_the_way(self.image, steps)?)?;
                Ok(InTheWay::new())
            }
            Obstacles::LeaveOut => {
                let mut all = proof.in_the_way(self.image, steps)?;
                all.extend(self.among_kprobes(target, steps));
                all.extend(self.of_other_rings(target, vcpus, steps));
                all.extend(self.foreign(target, steps));
                Ok(all)
            }
        }
    }

    /// Takes out what cannot be made.
    fn leave_out<'p>(
        &self,
        steps: &mut Steps<'p>,
        mut in_the_way: InTheWay,
    ) -> Vec<(&'p PlanStep, PokeError)> {
        let mut left = Vec::with_capacity(in_the_way.len());
        let mut number = 0;
        steps.0.retain(|step| {
            let why = in_the_way.remove(&number);
            number += 1;
            let is_made = why.is_none();
            left.extend(why.map(|why| (*step, why)));
            is_made
        });
        left
    }

    /// A guest that has taken the window back needs nothing more than its nops. It is looked at in any case: under a stop that puts
    /// entries back which the guest has cleared.
    fn check_window(&self, proof: &mut impl Proof, plan: &Plan) -> Result<(), ApplyError> {
        let is_seen = match &self.foothold {
            Some(foothold) => proof.check_window(&foothold.window).map_err(Into::into),
            None => Err(ApplyError::NotAttached),
        };
        match plan.steps.iter().any(PlanStep::leads_somewhere) {
            true => is_seen,
            false => Ok(()),
        }
    }

    /// The steps whose text is there, all of them as they were when the plan was made.
    fn current<'p>(&self, plan: &'p Plan) -> Result<Steps<'p>, ApplyError> {
        let mut there = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let is_gone = |edit: &&Edit| self.sites.is_gone(edit.poke.function);
            match (step.edits.iter().find(is_gone), plan.obstacles) {
                (None, _) if !self.is_current(step) => return Err(ApplyError::Stale),
                (None, _) => there.push(step),
                (Some(_), Obstacles::LeaveOut) => {}
                (Some(edit), Obstacles::Refuse) => {
                    let symbol = self.image.name_at(edit.poke.at);
                    return Err(ProbeError::Gone { symbol }.into());
                }
            }
        }
        Ok(Steps(there))
    }

    /// Whether everything that a step is about is as it was when the step was planned.
    pub fn is_current(&self, step: &PlanStep) -> bool {
        let mut edits = step.edits.iter();
        edits.all(|edit| self.sites.is_current(edit))
            && step
                .word
                .as_ref()
                .is_none_or(|word| self.sites.is_word_current(word))
            && self.points.is_current(&step.what)
    }

    /// Other bytes where ours must stand freeze patching.
    fn check_ours(
        &mut self,
        target: &(impl TargetMemory + ?Sized),
        steps: &Steps<'_>,
    ) -> Result<(), ApplyError> {
        let ours = steps.writes().map(|(_, edit)| edit);
        for edit in ours.filter(|edit| edit.is_at_jump_of_ours()) {
            if let Err(error) = expect(target, self.image, &edit.poke, edit.poke.expected) {
                return Err(ApplyError::Frozen(self.sites.freeze(error)));
            }
        }
        Ok(())
    }

    /// The first step that puts something into what is the guest's own while that is changing its text. What the guest has just
    /// written it compares, and other bytes than those end it; and where it has seen a nop it writes without another look. Where
    /// bytes of ours stand it is not in the middle of anything: so nothing keeps anybody from taking them away.
    fn while_the_guest_patches(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        steps: &Steps<'_>,
    ) -> InTheWay {
        let mut into_its_own = steps.writes().filter(|(_, edit)| edit.before.is_none());
        let first = into_its_own.next();
        let patches = |_: &(usize, &Edit)| self.inside?.changes_text(&memory);
        let first = first.filter(|first| patches(first) == Some(true));
        let why = |(step, edit): (usize, &Edit)| (step, while_it_patches(self.image, &edit.poke));
        first.map(why).into_iter().collect()
    }

    /// The steps at whose sites somebody else's bytes stand: they are his.
    fn foreign(&self, target: &(impl TargetMemory + ?Sized), steps: &Steps<'_>) -> InTheWay {
        let all = steps.writes();
        let foreign = all
            .filter(|(_, edit)| !edit.is_at_jump_of_ours())
            .filter_map(|(step, edit)| {
                let error = expect(target, self.image, &edit.poke, edit.poke.expected).err()?;
                Some((step, error))
            });
        foreign.collect()
    }

    /// The steps that displace instructions which are not executed in the ring that the window is for.
    fn of_other_rings(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        vcpus: &[VcpuRegisters],
        steps: &Steps<'_>,
    ) -> InTheWay {
        let Some(foothold) = &self.foothold else {
            return InTheWay::new();
        };
        let other =
            |(_, edit): &(usize, &Edit)| !foothold.window.suits(memory, vcpus, edit.poke.at);
        let why = |(step, edit): (usize, &Edit)| {
            let symbol = symbol(self.image, edit.poke.function);
            let at = edit.poke.at;
            (step, PokeError::OtherRing { symbol, at })
        };
        steps.displacing().filter(other).map(why).collect()
    }

    /// The steps that would displace instructions among which the guest has probes of its own, or take a jump of ours from under one.
    fn among_kprobes(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        steps: &Steps<'_>,
    ) -> InTheWay {
        let place = |(step, edit): (usize, &Edit)| {
            let length = edit.poke.expected.as_slice().len() as u64;
            let Poke { function, at, .. } = edit.poke;
            (step, (function, at, at.wrapping_add(length)))
        };
        let changed = Changed {
            displaced: steps.displacing().map(place).collect(),
            put_back: steps.putting_back().map(place).collect(),
        };
        beside_kprobes(self.image, self.inside, memory, &changed)
    }

    /// At how many places that could not be asked.
    fn unasked(&self, steps: &Steps<'_>) -> u64 {
        match self.inside.is_some_and(Introspection::hides_kprobes) {
            true => (steps.displacing().count() + steps.putting_back().count()) as u64,
            false => 0,
        }
    }

    /// Text, and the words of data that go with it. Says which steps the guest was faster at, of a plan that leaves such out.
    fn write(
        &mut self,
        proof: &mut impl Proof,
        steps: &Steps<'_>,
        obstacles: Obstacles,
    ) -> Result<InTheWay, ApplyError> {
        let words: Vec<_> = steps
            .0
            .iter()
            .filter_map(|step| step.word.as_ref())
            .collect();
        word::check(proof.target(), words.iter().copied())?;
        let writes: Vec<_> = steps.writes().collect();
        let pokes: Vec<Poke> = writes.iter().map(|(_, edit)| edit.poke).collect();
        let shared = |poke: usize| {
            let Some((step, edit)) = writes.get(poke) else {
                return Shared::default();
            };
            let may_stay = obstacles == Obstacles::LeaveOut && steps.is_one_write(*step);
            Shared {
                before: may_stay && !edit.is_at_jump_of_ours(),
                after: edit.after.is_none(),
                is_its_own: edit.before.is_none(),
            }
        };
        let written = proof.write(self.image, &pokes, &shared);
        let left = self.freeze_if_stuck(proof.target(), steps, written)?;
        if let Err(error) = proof.write_words(&words) {
            let target = proof.target();
            let sites = &mut self.sites;
            let stuck = words
                .iter()
                .filter_map(|word| sites.word_was_not_taken_back(target, word));
            let stuck: Vec<WordError> = stuck.collect();
            self.put_back(proof, steps, &pokes)?;
            return Err(match stuck.into_iter().next() {
                Some(stuck) => ApplyError::Frozen(self.sites.freeze(stuck)),
                None => error.into(),
            });
        }
        let step_of = |(poke, why): (usize, _)| Some((writes.get(poke)?.0, why));
        Ok(left.into_iter().filter_map(step_of).collect())
    }

    /// Takes text back that was written before words which could not be.
    fn put_back(
        &mut self,
        proof: &mut impl Proof,
        steps: &Steps<'_>,
        pokes: &[Poke],
    ) -> Result<(), ApplyError> {
        let back: Vec<Poke> = pokes.iter().rev().map(|poke| poke.reverse()).collect();
        let Err(failed) = proof.write(self.image, &back, &|_| Shared::default()) else {
            return Ok(());
        };
        // All of them are as they were to be: one that stays so does not keep the others.
        for poke in back.chunks(1) {
            let _ = proof.write(self.image, poke, &|_| Shared::default());
        }
        let why = failed.stuck.into_iter().next().unwrap_or(failed.cause);
        Err(ApplyError::Frozen(self.stuck(proof.target(), steps, why)))
    }

    /// Not all was taken back that was written: what stands where now, the table of sites knows, and nothing more is written.
    fn stuck(
        &mut self,
        target: &(impl TargetMemory + ?Sized),
        steps: &Steps<'_>,
        why: PokeError,
    ) -> Frozen {
        for (_, edit) in steps.writes() {
            self.sites.was_not_taken_back(target, edit);
        }
        self.sites.freeze(why)
    }

    /// Freezes when something could not be taken back, or is not there any more: everything is as it was else.
    fn freeze_if_stuck<T>(
        &mut self,
        target: &(impl TargetMemory + ?Sized),
        steps: &Steps<'_>,
        written: Result<T, TransactionError>,
    ) -> Result<T, ApplyError> {
        if let Err(error) = &written {
            match error.stuck.first() {
                Some(why) => drop(self.stuck(target, steps, why.clone())),
                None => self.check_ours(target, steps)?,
            }
        }
        Ok(written?)
    }

    /// Everybody knows what has been made.
    fn made(&mut self, steps: &Steps<'_>) -> Applied {
        let mut applied = Applied::default();
        for step in &steps.0 {
            let before = self.is_patched(step);
            step.edits.iter().for_each(|edit| self.sites.made(edit));
            let written = step.edits.iter().filter(|edit| edit.is_write());
            applied.written += written.count() as u64;
            step.word.iter().for_each(|word| self.sites.made_word(word));
            self.points.made(&step.what);
            match (before, self.is_patched(step)) {
                (_, Some(true)) => applied.patched += 1,
                (Some(true), Some(false)) => applied.restored += 1,
                _ => {}
            }
        }
        applied
    }

    /// Whether the function that a step is about is patched; none for a step about something else.
    fn is_patched(&self, step: &PlanStep) -> Option<bool> {
        let lead = self.sites.state(step.function()?).lead();
        Some(lead.is_some_and(Lead::is_for_users))
    }
}

/// Carries `plan` out by `what`, and has the journal told before and afterwards: of a guest that is stopped only for `what`,
/// through the memory that it has while it runs, so that nobody waits for the journal.
///
/// # Errors
/// Those of `what`, or why the journal could not be told; then `what` has not been done.
pub(crate) fn noted<M: WindowMemory + ?Sized, T, E: From<ApplyError>>(
    engine: &mut Engine,
    memory: &mut M,
    plan: &Plan,
    what: impl FnOnce(&mut Engine, &mut M) -> Result<T, E>,
) -> Result<T, E> {
    let noted = engine.commit().note(memory, plan).map_err(E::from);
    let done = noted.and_then(|()| what(engine, memory));
    engine.commit().settle(memory);
    done
}

/// A change that was not begun, because of the first of these.
fn refuse(in_the_way: InTheWay) -> Result<(), ApplyError> {
    match in_the_way.into_values().next() {
        None => Ok(()),
        Some(cause) => Err(ApplyError::Transaction(TransactionError {
            cause,
            undone: 0,
            stuck: Vec::new(),
        })),
    }
}
