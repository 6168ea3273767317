//! The commit: the one way by which a plan of any kind becomes what stands in the guest, all of it or nothing.
//!
//! What it finds out first: that nothing is frozen; that the guest still sees the window, if anything is to lead there;
//! that everything is as it was when the plan was made; that what is ours still stands where it was written (if not,
//! patching freezes); that displaced instructions run in the ring that the window is for, with no probe of the guest
//! among them and no thread inside. Then the words of text and data are written, each compared before and read back;
//! what fails takes the rest back. At the end the table of sites knows what stands where.

use std::collections::BTreeMap;

use image::Image;
use terms::addr::Gva;
use terms::function::FunctionId;
use terms::session_set::SessionSet;

use super::kprobes::beside_kprobes;
use super::plan::{Obstacles, Plan, Step};
use super::points::Points;
use super::probes::error::ProbeError;
use super::saved::occupied;
use super::{ApplyError, Foothold, Frozen, FrozenBy};
use crate::introspection::Introspection;
use crate::target::{
    LiveTarget, PhysicalMemory, StoppedTarget, TargetMemory, TextMemory, VcpuRegisters,
    WindowMemory,
};
use crate::text::edit::{Displacement, Edit};
use crate::text::live;
use crate::text::poke::{self, Poke, PokeError, TransactionError, read_site, symbol};
use crate::text::sites::Sites;
use crate::text::word::{self, WordWrite};

/// What a change did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Sites of functions that now hold a jump to a stub (again, or another one).
    pub patched: usize,
    /// Those that hold their nop again.
    pub restored: usize,
    /// Functions that were left as they were found, and why.
    pub skipped: Vec<(FunctionId, PokeError)>,
}

/// A way to write text, all of the pokes or none: while the target is stopped, or while it runs.
type Write<T> = fn(&mut T, &Image, &[Poke]) -> Result<(), TransactionError>;

/// Steps that cannot be made, by their place in the plan, and why.
type InTheWay = BTreeMap<usize, PokeError>;

/// An edit of a plan: the place of its step in that, and the sessions that the step leads to.
struct OfStep {
    step: usize,
    sessions: SessionSet,
    edit: Edit,
}

/// The edits of all steps of a plan, in their order.
struct Edits(Vec<OfStep>);

impl Edits {
    fn numbered(&self) -> impl Iterator<Item = (usize, &Edit)> {
        self.0.iter().map(|one| (one.step, &one.edit))
    }

    fn displacing(&self) -> impl Iterator<Item = (usize, &Edit)> {
        self.numbered()
            .filter(|(_, edit)| edit.displacement == Displacement::Begins)
    }
}

/// What is known of the text that was written: which places are ours, and whether writing has to end.
#[derive(Debug, Default)]
pub struct Written {
    /// What of the text is ours.
    sites: Sites,
    /// How often text had gone when its places were forgotten last.
    gone_places: u64,
    frozen: Option<Frozen>,
}

impl Written {
    /// The places of the text where bytes of ours stand.
    #[must_use]
    pub const fn sites(&self) -> &Sites {
        &self.sites
    }

    /// Why patching is frozen, if it is.
    #[must_use]
    pub const fn frozen(&self) -> Option<&Frozen> {
        self.frozen.as_ref()
    }

    /// Takes the kill switch back, after somebody has looked into it.
    pub fn thaw(&mut self) {
        self.frozen = None;
    }

    /// Tracing has ended for this reason, whatever was its consequence: nothing is written any more.
    pub fn lose(&mut self, why: FrozenBy) {
        self.frozen = Some(Frozen(why));
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

    fn freeze(&mut self, why: PokeError) -> ApplyError {
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
}

/// What a commit works with.
#[derive(Debug)]
pub(super) struct Commit<'a> {
    pub image: &'a Image,
    pub inside: Option<&'a dyn Introspection>,
    pub points: &'a mut Points,
    pub written: &'a mut Written,
    pub foothold: Option<&'a mut Foothold>,
}

impl Commit<'_> {
    /// Brings the guest's text to what `plan` says, all of it or nothing.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing was changed.
    pub fn apply(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        let vcpus = target.vcpus().to_vec();
        self.commit(target, &vcpus, plan, Self::inhabited, poke::apply)
    }

    /// The same while the guest runs.
    ///
    /// # Errors
    /// As [`Self::apply`]. Several instructions become one only while the guest is stopped.
    pub fn apply_live(
        &mut self,
        target: &mut (impl LiveTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        let vcpus = target.vcpus().to_vec();
        self.commit(target, &vcpus, plan, Self::joining, live::apply)
    }

    fn commit<T: TextMemory + ?Sized>(
        &mut self,
        target: &mut T,
        vcpus: &[VcpuRegisters],
        plan: &Plan,
        inhabited: fn(&Self, &T, &Edits) -> Result<InTheWay, ApplyError>,
        write: Write<T>,
    ) -> Result<Applied, ApplyError> {
        self.forget_gone(target);
        self.check_window(target, vcpus, plan)?;
        let there = self.current(plan)?;
        let numbered = there.iter().enumerate();
        let edits = numbered.flat_map(|(number, step)| {
            let sessions = step.sessions();
            self.points.edits(self.image, step).map(move |edit| OfStep {
                step: number,
                sessions,
                edit,
            })
        });
        let mut edits = Edits(edits.collect());
        self.check_ours(target, &edits)?;
        let in_the_way = match plan.obstacles {
            Obstacles::Refuse => {
                // First what stays so: a thread that is in the way goes on and is looked for again.
                refuse(self.of_other_rings(target, vcpus, &edits))?;
                refuse(self.among_kprobes(target, &edits))?;
                refuse(inhabited(self, target, &edits)?)?;
                InTheWay::new()
            }
            Obstacles::LeaveOut => {
                let mut all = inhabited(self, target, &edits)?;
                all.extend(self.among_kprobes(target, &edits));
                all.extend(self.of_other_rings(target, vcpus, &edits));
                all.extend(self.foreign(target, &edits));
                all
            }
        };
        edits.0.retain(|one| !in_the_way.contains_key(&one.step));
        let numbered = there.iter().enumerate();
        let left = numbered.filter(|(number, _)| !in_the_way.contains_key(number));
        let made: Vec<&Step> = left.map(|(_, step)| *step).collect();
        self.write(target, &made, &edits, write)?;
        let mut applied = self.made(&made, &edits);
        edits.0.retain(|one| !one.edit.becomes_ours);
        self.journal(target, &edits);
        for (number, why) in in_the_way {
            if let Some(function) = there.get(number).and_then(|step| step.function()) {
                self.points.functions.skipped(function, why.clone());
                applied.skipped.push((function, why));
            }
        }
        Ok(applied)
    }

    /// A guest that has taken the window back needs nothing more than its nops.
    fn check_window<T: TextMemory + ?Sized>(
        &self,
        target: &mut T,
        vcpus: &[VcpuRegisters],
        plan: &Plan,
    ) -> Result<(), ApplyError> {
        let is_seen = match &self.foothold {
            Some(foothold) => foothold
                .window
                .verify_seen_by(target, vcpus)
                .map_err(Into::into),
            None => Err(ApplyError::NotAttached),
        };
        match plan.steps.iter().any(Step::leads_somewhere) {
            true => is_seen,
            false => Ok(()),
        }
    }

    /// The steps whose text is there, all of them as they were when the plan was made.
    fn current<'p>(&self, plan: &'p Plan) -> Result<Vec<&'p Step>, ApplyError> {
        let mut there = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            match (self.points.gone_text(step), plan.obstacles) {
                (None, _) if !self.points.is_current(self.image, step) => {
                    return Err(ApplyError::Stale);
                }
                (None, _) => there.push(step),
                (Some(_), Obstacles::LeaveOut) => {}
                (Some(at), Obstacles::Refuse) => {
                    let symbol = self.image.name_at(at);
                    return Err(ProbeError::Gone { symbol }.into());
                }
            }
        }
        Ok(there)
    }

    /// Other bytes where ours must stand freeze patching.
    fn check_ours(
        &mut self,
        target: &(impl TargetMemory + ?Sized),
        edits: &Edits,
    ) -> Result<(), ApplyError> {
        for (_, edit) in edits.numbered().filter(|(_, edit)| edit.is_ours) {
            if let Err(error) = self.look_at(target, &edit.poke) {
                return Err(self.written.freeze(error));
            }
        }
        Ok(())
    }

    /// The steps at whose sites somebody else's bytes stand: they are his.
    fn foreign(&self, target: &(impl TargetMemory + ?Sized), edits: &Edits) -> InTheWay {
        let all = edits.numbered().filter(|(_, edit)| !edit.is_ours);
        let foreign = all.filter_map(|(step, edit)| {
            let error = self.look_at(target, &edit.poke).err()?;
            Some((step, error))
        });
        foreign.collect()
    }

    /// The steps that displace instructions which are not executed in the ring that the window is for.
    fn of_other_rings(
        &self,
        memory: &(impl PhysicalMemory + ?Sized),
        vcpus: &[VcpuRegisters],
        edits: &Edits,
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
        edits.displacing().filter(other).map(why).collect()
    }

    /// The steps that would displace instructions among which the guest has probes of its own.
    fn among_kprobes(&self, memory: &(impl PhysicalMemory + ?Sized), edits: &Edits) -> InTheWay {
        let displaced = edits.displacing().map(|(step, edit)| {
            let length = edit.poke.expected.as_slice().len() as u64;
            let Poke { function, at, .. } = edit.poke;
            (step, (function, at, at.wrapping_add(length)))
        });
        beside_kprobes(
            self.image,
            self.inside,
            memory,
            &displaced.collect::<Vec<_>>(),
        )
    }

    /// The steps that close places at which threads may continue.
    fn inhabited<T: StoppedTarget + ?Sized>(
        &self,
        target: &T,
        edits: &Edits,
    ) -> Result<InTheWay, ApplyError> {
        let closed = edits.numbered().flat_map(|(step, edit)| {
            let places = edit.closes.iter();
            places.map(move |at| (*at, step, edit.poke))
        });
        occupied(self.image, target, closed.collect())
    }

    /// The steps that close places, while the guest runs.
    fn joining<T: LiveTarget + ?Sized>(
        &self,
        _: &T,
        edits: &Edits,
    ) -> Result<InTheWay, ApplyError> {
        let joining = edits
            .numbered()
            .filter(|(_, edit)| edit.joins_instructions());
        let needs_stop = |(step, edit): (usize, &Edit)| {
            let symbol = symbol(self.image, edit.poke.function);
            let at = edit.poke.at;
            (step, PokeError::NeedsStop { symbol, at })
        };
        Ok(joining.map(needs_stop).collect())
    }

    /// Text, and the words of data that go with it. The journal knows of every place before it is written, and for as
    /// long as it can be ours.
    fn write<T: TextMemory + ?Sized>(
        &mut self,
        target: &mut T,
        made: &[&Step],
        edits: &Edits,
        write: Write<T>,
    ) -> Result<(), ApplyError> {
        let words = || made.iter().filter_map(|step| step.word());
        word::check(target, words())?;
        if let Some(foothold) = &mut self.foothold {
            let edits = edits.0.iter();
            let noted = edits.filter_map(|one| self.written.sites.after(&one.edit, one.sessions));
            foothold.journal.note(target, noted)?;
        }
        let written = self.write_text(target, edits, words, write);
        if written.is_err() {
            self.journal(target, edits);
        }
        written
    }

    /// Has the journal say of the places of these edits what the table of sites says. What cannot be written there now
    /// is an entry too many: whoever reads it finds other bytes in its place, and leaves them.
    fn journal<T: WindowMemory + ?Sized>(&mut self, target: &mut T, edits: &Edits) {
        let Some(foothold) = &mut self.foothold else {
            return;
        };
        let places = edits.0.iter().map(|one| one.edit.poke.at);
        let (ours, gone): (Vec<Gva>, _) =
            places.partition(|at| self.written.sites.get(*at).is_some());
        let ours = ours
            .into_iter()
            .filter_map(|at| self.written.sites.get(at).copied());
        let _ = foothold.journal.note(target, ours);
        let _ = foothold.journal.cross_out(target, gone);
    }

    /// Forgets the places in text that is gone.
    fn forget_gone<T: WindowMemory + ?Sized>(&mut self, target: &mut T) {
        if self.written.gone_places == self.points.functions.gone_so_far() {
            return;
        }
        self.written.gone_places = self.points.functions.gone_so_far();
        let functions = &self.points.functions;
        let gone = self
            .written
            .sites
            .forget(|function| functions.is_gone(function));
        if let Some(foothold) = &mut self.foothold {
            let _ = foothold.journal.cross_out(target, gone);
        }
    }

    fn write_text<'s, T: TextMemory + ?Sized, W: Iterator<Item = &'s WordWrite>>(
        &mut self,
        target: &mut T,
        edits: &Edits,
        words: impl Fn() -> W,
        write: Write<T>,
    ) -> Result<(), ApplyError> {
        let pokes: Vec<Poke> = edits.numbered().map(|(_, edit)| edit.poke).collect();
        let written = write(target, self.image, &pokes);
        self.written.note(written)?;
        if let Err(error) = word::write(target, words().collect::<Vec<_>>()) {
            let back: Vec<Poke> = pokes.iter().rev().map(|poke| poke.reverse()).collect();
            let written = write(target, self.image, &back);
            self.written.note(written)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Everybody knows what has been made.
    fn made(&mut self, made: &[&Step], edits: &Edits) -> Applied {
        let mut applied = Applied::default();
        for step in made {
            let before = self.is_patched(step);
            self.points.applied(step);
            match (before, self.is_patched(step)) {
                (_, Some(true)) => applied.patched += 1,
                (Some(true), Some(false)) => applied.restored += 1,
                _ => {}
            }
        }
        for OfStep { edit, sessions, .. } in &edits.0 {
            self.written.sites.edited(edit, *sessions);
        }
        applied
    }

    /// Whether the function that a step is about is patched; none for a step about something else.
    fn is_patched(&self, step: &Step) -> Option<bool> {
        let function = step.function()?;
        Some(self.points.functions.state(function).is_patched())
    }

    fn look_at(&self, target: &(impl TargetMemory + ?Sized), poke: &Poke) -> Result<(), PokeError> {
        let (at, expected) = (poke.at, poke.expected);
        let found = read_site(target, self.image, poke)?;
        if found == expected {
            return Ok(());
        }
        let symbol = symbol(self.image, poke.function);
        Err(PokeError::Unexpected {
            symbol,
            at,
            expected,
            found,
        })
    }
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
