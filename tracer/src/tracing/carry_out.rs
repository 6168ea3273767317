//! Carrying a plan of any kind out on a guest: each part by the weakest proof that is enough for it, while the guest runs or
//! while it is stopped, in one pause or in slices, with another try for what a thread stood in the way of, and with every
//! pause counted. All of it is taken back when a part fails.

use std::time::Duration;

use super::error::TracingError;
use super::options::PatchMethod;
use super::patience::Patience;
use super::place::is_where_loaded;
use super::slices::Slices;
use super::stops::Stops;
use crate::clock::HostClock;
use crate::engine::plan::{Obstacles, Plan, PlanStep, What};
use crate::engine::{Applied, ApplyError, Engine, noted};
use crate::guest::{Guest, LiveGuest};
use crate::guest_kind;
use crate::target::AtomicTarget;
use crate::text::edit::{Displacement, Edit};
use crate::text::poke::Poke;
use crate::window::WindowError;
use status::SwitchedSites;

/// Sites that are switched while every vCPU runs before all is looked at anew.
const EXCHANGED_AT_ONCE: usize = 1024;

/// Pauses in which a site with a thread inside gets its turn again.
const ROUNDS: u32 = 8;

/// What a change did, and what that cost the guest.
#[derive(Debug, Default)]
pub(super) struct Carried {
    pub applied: Applied,
    pub stops: Stops,
    /// What was carried out, in its order.
    done: Vec<Plan>,
}

impl Carried {
    /// Nothing yet, in an operation that has cost so much before.
    pub fn after(stops: Stops) -> Self {
        Self {
            stops,
            ..Self::default()
        }
    }

    fn add(&mut self, part: Applied) {
        let Applied {
            patched,
            restored,
            written,
            skipped,
            unasked,
        } = part;
        self.applied.patched += patched;
        self.applied.restored += restored;
        self.applied.written = self.applied.written.saturating_add(written);
        self.applied.skipped.extend(skipped);
        self.applied.unasked = self.applied.unasked.saturating_add(unasked);
    }
}

/// Whether a part was written while the guest ran.
enum Written {
    All,
    /// None of it: more can be seen while the guest is stopped.
    Not,
}

/// What was applied; nothing where the guest has touched the window since it was looked at, before anything was written.
fn seen(applied: Result<Applied, ApplyError>) -> Result<Option<Applied>, TracingError> {
    match applied {
        Ok(applied) => Ok(Some(applied)),
        Err(ApplyError::Window(WindowError::Touched)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How the text of a guest is changed.
#[derive(Debug)]
pub(super) struct Patching {
    method: PatchMethod,
    slices: Slices,
    clock: HostClock,
    /// How long a guest is waited for that changes its own text, in one operation.
    patience: Patience,
    /// Whether the guest's page tables led its text, in the last pause that saw it, where it is written while the guest runs.
    is_in_place: bool,
    /// How many sites were switched how.
    switched: SwitchedSites,
    /// At how many places the guest could not be asked for probes of its own.
    unasked: u64,
}

impl Patching {
    /// By this method; in one pause text is written for `max_pause` at most, if that is given.
    pub fn new(method: PatchMethod, max_pause: Option<Duration>, clock: HostClock) -> Self {
        Self {
            method,
            slices: Slices::new(max_pause),
            clock,
            patience: Patience::of_who_asked(clock),
            is_in_place: false,
            switched: SwitchedSites::default(),
            unasked: 0,
        }
    }

    /// How many sites were switched how so far.
    pub const fn switched(&self) -> SwitchedSites {
        self.switched
    }

    /// At how many places that were displaced, or put back, the guest could not be asked whether it has probes of its own there.
    pub const fn unasked(&self) -> u64 {
        self.unasked
    }

    /// One more change was made. The first time that the guest could not be asked, it is said.
    fn made(&mut self, applied: &Applied) {
        if applied.unasked > 0 && self.unasked == 0 {
            log::warn!(
                "whether the guest has probes of its own (kprobes) where instructions are displaced is not known: its kernel can have \
                 some, and no types (BTF) that say where. One that is made there, or was made and is switched off, runs into what we \
                 leave, or is cut in two: remove its kprobes before, and make none meanwhile"
            );
        }
        self.unasked += applied.unasked;
    }

    /// One more change was made while the guest was stopped, of which somebody else has seen to the pause.
    pub fn wrote_stopped(&mut self, applied: &Applied) {
        self.switched.stopped += applied.written;
        self.made(applied);
    }

    /// Whether what is carried out from now on is what a look at the guest has found to be done, not what somebody has asked for.
    pub const fn is_for_a_look(&mut self, is_it: bool) {
        self.patience = match is_it {
            true => Patience::of_a_look(self.clock),
            false => Patience::of_who_asked(self.clock),
        };
    }

    /// Somebody has looked whether the guest's text lies where it was loaded.
    pub const fn found_in_place(&mut self, is_in_place: bool) {
        self.is_in_place = is_in_place;
    }

    /// What its user calls the method.
    pub const fn method(&self) -> PatchMethod {
        self.method
    }

    /// Whether text may be written by this method while the guest runs: where a pause has shown it to be, and with the
    /// window as it was written. Else the guest has to be stopped to see more.
    fn may_run(&self, method: PatchMethod, engine: &Engine, guest: &impl Guest) -> bool {
        let mut foothold = engine.foothold().into_iter();
        self.method == method
            && self.is_in_place
            && foothold.all(|foothold| foothold.window().is_untouched(guest.memory()))
    }

    /// Carries out `plan`, and says what that did; `stops` has what it cost, also where it failed.
    ///
    /// # Errors
    /// Why a part failed; those before it were taken back, or it is said that they could not be.
    pub fn carry_out(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        plan: Plan,
        stops: &mut Stops,
    ) -> Result<Applied, TracingError> {
        let mut carried = Carried::after(*stops);
        let carried_out = self.each_part(engine, guest, plan, &mut carried);
        *stops = carried.stops;
        let Err(failed) = carried_out else {
            return Ok(carried.applied);
        };
        // Who has waited in vain waits once more: what was taken away is put back only where the guest is not changing its text.
        stops.rested = Duration::ZERO;
        // Parts do not depend on each other: one that stays does not keep the others.
        for plan in carried.done.iter().rev() {
            if let Err(stuck) = self.take_back(engine, guest, plan, stops) {
                log::error!("what was changed before could not be taken back: {stuck}");
            }
        }
        Err(failed)
    }

    /// What needs least goes first: it is taken back most easily.
    fn each_part(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        mut plan: Plan,
        carried: &mut Carried,
    ) -> Result<(), TracingError> {
        if plan.is_empty() {
            return Ok(());
        }
        if self.may_run(PatchMethod::Atomic, engine, guest)
            && let Some(mut running) = guest.running()
            && let Some(words) = take_words(engine, &running, &mut plan)
        {
            self.each_exchange(engine, guest, &mut running, words, carried)?;
            if plan.is_empty() {
                return Ok(());
            }
        }
        if self.may_run(PatchMethod::Live, engine, guest)
            && may_be_live(&plan)
            && let Some(lasting) = take_lasting(engine, guest, &mut plan)
        {
            let done = self.write_live(engine, guest, &lasting, carried);
            self.or_stopped(engine, guest, done, lasting, carried)?;
            if plan.is_empty() {
                return Ok(());
            }
        }
        self.each_slice(engine, guest, plan, carried)
    }

    /// Writes text that stays, while vCPUs run into breakpoints.
    fn write_live(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        plan: &Plan,
        carried: &mut Carried,
    ) -> Result<Written, TracingError> {
        let Some(mut live) = guest.live()? else {
            return Ok(Written::Not);
        };
        let (patience, rested) = (self.patience, &mut carried.stops.rested);
        let applied =
            patience.once_it_has_patched(rested, || seen(engine.apply_live(&mut live, plan)));
        carried.stops.lost(live.lost());
        let Some(applied) = applied? else {
            return Ok(Written::Not);
        };
        self.switched.live += applied.written;
        self.made(&applied);
        carried.add(applied);
        Ok(Written::All)
    }

    /// What was not written while the guest ran is written while it is stopped.
    fn or_stopped(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        written: Result<Written, TracingError>,
        plan: Plan,
        carried: &mut Carried,
    ) -> Result<(), TracingError> {
        match written? {
            Written::All => carried.done.push(plan),
            Written::Not => self.each_slice(engine, guest, plan, carried)?,
        }
        Ok(())
    }

    /// Writes what is of words, while every vCPU runs, so much of it at once that a guest which changes text of its own now and then
    /// lets each be whole. Before each all is looked at that was before the first.
    fn each_exchange(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        running: &mut impl AtomicTarget,
        words: Plan,
        carried: &mut Carried,
    ) -> Result<(), TracingError> {
        let (obstacles, is_cut) = (words.obstacles, words.may_be_cut());
        let most = if is_cut {
            EXCHANGED_AT_ONCE
        } else {
            usize::MAX
        };
        let mut left = words.steps.into_iter();
        while left.len() > 0 {
            let mut part = part(&mut left, most, obstacles);
            match self.exchange(engine, guest, running, &part, carried)? {
                Written::All => carried.done.push(part),
                Written::Not => {
                    part.steps.extend(left);
                    return self.each_slice(engine, guest, part, carried);
                }
            }
        }
        Ok(())
    }

    /// Writes a part of it.
    fn exchange(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        running: &mut impl AtomicTarget,
        plan: &Plan,
        carried: &mut Carried,
    ) -> Result<Written, TracingError> {
        let mut memory = guest.memory().clone();
        let rested = &mut carried.stops.rested;
        let applied = self.patience.once_it_has_patched(rested, || {
            noted(engine, &mut memory, plan, |engine, _| {
                seen(engine.commit().apply_running(running, plan))
            })
        })?;
        let Some(applied) = applied else {
            return Ok(Written::Not);
        };
        self.switched.atomic += applied.written;
        self.made(&applied);
        carried.add(applied);
        Ok(Written::All)
    }

    fn each_slice(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        mut plan: Plan,
        carried: &mut Carried,
    ) -> Result<(), TracingError> {
        if self.slices.are_wanted() && plan.obstacles == Obstacles::LeaveOut {
            let steps = plan.steps.into_iter();
            let (joining, others): (Vec<PlanStep>, Vec<PlanStep>) =
                steps.partition(PlanStep::joins_instructions);
            self.join(engine, guest, joining, carried)?;
            plan.steps = others;
            if plan.is_empty() {
                return Ok(());
            }
        }
        let (obstacles, is_cut) = (plan.obstacles, plan.may_be_cut());
        let mut left = plan.steps.into_iter();
        loop {
            let most = match is_cut {
                true => self.slices.sites(),
                false => usize::MAX,
            };
            let slice = part(&mut left, most, obstacles);
            let (applied, time) = self.apply_slice(engine, guest, &slice, carried)?;
            self.slices.learn(slice.steps.len(), time);
            carried.add(applied);
            carried.done.push(slice);
            if left.len() == 0 {
                return Ok(());
            }
        }
    }

    /// Makes several instructions one at each of these sites, all in one pause: in each the guest's whole memory is
    /// searched for threads. Sites with a thread inside get their turn in the next one, after the guest has run.
    fn join(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        steps: Vec<PlanStep>,
        carried: &mut Carried,
    ) -> Result<(), TracingError> {
        let mut plan = Plan::lenient(steps);
        for left in (0..ROUNDS).rev() {
            if plan.is_empty() {
                break;
            }
            let (mut applied, _) = self.apply_slice(engine, guest, &plan, carried)?;
            let again = applied
                .skipped
                .extract_if(.., |(_, why)| left > 0 && why.passes());
            let mut again: Vec<_> = again.map(|(function, _)| function).collect();
            // The guest can hold up every one of them.
            again.sort_unstable();
            carried.add(applied);
            let is_made = |step: &mut PlanStep| {
                let function = step.function();
                function.is_none_or(|one| again.binary_search(&one).is_err())
            };
            let made = plan.steps.extract_if(.., is_made).collect();
            carried.done.push(Plan::lenient(made));
        }
        Ok(())
    }

    /// One pause, with what can be done beside it done before and after. Also answers for how long text was written.
    fn apply_slice(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        plan: &Plan,
        carried: &mut Carried,
    ) -> Result<(Applied, Duration), TracingError> {
        let mut memory = guest.memory().clone();
        let (patience, mut rested) = (self.patience, carried.stops.rested);
        let paused = patience.once_it_has_patched(&mut rested, || {
            noted(engine, &mut memory, plan, |engine, _| {
                self.pause(engine, guest, plan, carried)
            })
        });
        carried.stops.rested = rested;
        let (applied, time) = paused?;
        self.wrote_stopped(&applied);
        Ok((applied, time))
    }

    fn pause(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        plan: &Plan,
        carried: &mut Carried,
    ) -> Result<(Applied, Duration), TracingError> {
        let (applied, time) = carried.stops.during(guest, |stopped| {
            let since = (self.clock.now)();
            engine.look(&*stopped);
            self.is_in_place = is_where_loaded(guest, &*stopped, engine);
            let applied = engine.commit().apply(stopped, plan);
            let time = (self.clock.now)().saturating_sub(since);
            let moves_places = |step: &PlanStep| matches!(step.what, What::Place { .. });
            // Also of a change that has failed a breakpoint may be left.
            if plan.steps.iter().any(moves_places) {
                guest.set_detours(engine.detours());
            }
            (applied, time)
        })?;
        Ok((applied?, time))
    }

    fn take_back(
        &mut self,
        engine: &mut Engine,
        guest: &impl Guest,
        plan: &Plan,
        stops: &mut Stops,
    ) -> Result<(), TracingError> {
        let mut back = plan.reverse();
        // What was left out then is as it was.
        let commit = engine.commit();
        back.steps.retain(|step| commit.is_current(step));
        if back.is_empty() {
            return Ok(());
        }
        let mut carried = Carried::after(*stops);
        let done = self.each_part(engine, guest, back, &mut carried);
        *stops = carried.stops;
        for (function, why) in carried.applied.skipped {
            let function = engine.image().function(function);
            let name = function.map_or("?", |function| &function.display);
            log::error!("{name} could not be changed back: {why}");
        }
        done
    }
}

/// The next steps of a plan, at most so many. What is kept of them takes no more than it needs.
fn part(left: &mut std::vec::IntoIter<PlanStep>, most: usize, obstacles: Obstacles) -> Plan {
    Plan {
        steps: left.take(most).collect(),
        obstacles,
    }
}

/// Takes out of a plan what can be made while every vCPU runs: single instructions in one word each, of text that stays
/// and that the target reaches.
fn take_words(engine: &Engine, target: &impl AtomicTarget, plan: &mut Plan) -> Option<Plan> {
    let reaches = |edit: &Edit| {
        let Poke { function, at, .. } = edit.poke;
        engine.transient().stays(engine.image(), function, at) && target.reaches(at)
    };
    let may_run = in_a_ring_that_is_known(engine);
    plan.take_words(|step| {
        step.is_of_words() && step.edits.iter().all(reaches) && step.edits.iter().all(&may_run)
    })
}

/// Whether the ring is known in which text runs that an edit would displace: what is displaced runs in the window's, and while
/// vCPUs run nobody says with which page tables, so in which ring.
fn in_a_ring_that_is_known(engine: &Engine) -> impl Fn(&Edit) -> bool {
    let has_one_ring = guest_kind::of(engine.image()).has_one_ring();
    move |edit| has_one_ring || edit.displacement != Displacement::Begins
}

/// Takes out of a plan what may be written while the guest runs: text that stays, where it was loaded. Only a guest that is
/// stopped cannot free the rest before the write.
fn take_lasting(engine: &Engine, guest: &impl Guest, plan: &mut Plan) -> Option<Plan> {
    let is_there = |at, bytes: usize| {
        let found = guest.locate(at);
        found.is_some_and(|(_, left)| left >= bytes as u64)
    };
    let lasts = |edit: &Edit| {
        let Poke {
            function, at, new, ..
        } = &edit.poke;
        engine.transient().stays(engine.image(), *function, *at)
            && is_there(*at, new.as_slice().len())
    };
    let may_run = in_a_ring_that_is_known(engine);
    plan.take(|step| {
        let word = step.word.as_ref();
        !step.needs_stop()
            && step.edits.iter().all(lasts)
            && step.edits.iter().all(&may_run)
            && word.is_none_or(|word| is_there(word.at, size_of::<u64>()))
    })
}

/// A plan that leaves out what cannot be made leaves out what cannot be made while the guest runs.
fn may_be_live(plan: &Plan) -> bool {
    plan.obstacles == Obstacles::LeaveOut || !plan.steps.iter().any(PlanStep::needs_stop)
}
