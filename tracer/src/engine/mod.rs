//! The engine: what is traced by whom, and how the guest is brought to it.
//!
//! It owns every decision and no access: each operation is handed the target that it works on, and
//! those that change what the guest executes want a [`StoppedTarget`].
//!
//! It only joins those who know something: what does not stay of the guest (`transient`), who wants something where
//! (`points`), the sessions, what the window holds (`foothold`), and what was written (`commit`). A plan is made by a
//! policy with what `planning` gives it, and carried out by the one commit.

use std::sync::Arc;

use image::Image;
use terms::addr::Gva;
use terms::event_format::EventId;
use terms::function::FunctionId;
use terms::region::Region;

use announcer::Announcer;
use call_values::CallValuesError;
pub use commit::Applied;
use commit::Commit;
pub(crate) use commit::noted;
pub use error::{ApplyError, AttachError};
use events::Events;
pub use foothold::{Apart, Foothold};
pub use leaving::{Inside, Leaving};
use locks::LockError;
use plan::{Plan, PlanStep, What};
use planning::Planning;
pub use points::Points;
use probes::{NewProbe, ProbeError, ProbeId};
#[cfg(feature = "foreign")]
pub use restoring::{RestoreError, Restored, restore};
pub use sessions::Sessions;
pub use task_block::TaskFilterError;
pub use transient::Moved;
use transient::Transient;

use crate::capture::Capture;
use crate::filter::Selection;
use crate::introspection::ModuleError;
use crate::points::dynamic::{self, RetargetError};
use crate::points::events::{Callback, Dispatch};
use crate::points::locks::LockPrefixes;
use crate::session::{SessionConfig, SessionId};
use crate::stub::cell::{CpuStrategy, TracedCode};
use crate::target::{
    LiveTarget, PhysicalMemory, StoppedTarget, TextMemory, VcpuRegisters, WindowMemory,
};
pub use crate::text::frozen::{Frozen, FrozenBy};
use crate::text::sites::Sites;
use crate::text::sites::as_linked::starts;
use trace::event::Moment;

/// Everything that is known of tracing one guest.
#[derive(Debug)]
pub struct Engine {
    image: Arc<Image>,
    transient: Transient,
    points: Points,
    sessions: Sessions,
    foothold: Option<Foothold>,
    sites: Sites,
}

impl Engine {
    /// An engine for a guest that was loaded from `image`.
    #[must_use]
    pub fn new(image: Arc<Image>) -> Self {
        let to_come = image.parts.iter().filter(|part| !part.at_start);
        let to_come = to_come.flat_map(|part| image.functions_of(part));
        Self {
            sites: Sites::without(to_come),
            transient: Transient::of(&image),
            points: Points::new(&image),
            image,
            sessions: Sessions::default(),
            foothold: None,
        }
    }

    /// The same with this way from tracepoints to their callbacks.
    #[must_use]
    pub fn with_dispatch(mut self, dispatch: Dispatch) -> Self {
        self.points.events = Events::new(&self.image, dispatch);
        self
    }

    /// The host sees to vCPUs that leave the guest by a write to this port: [`Engine::detours`] says where they
    /// continue.
    #[must_use]
    pub fn serving_traps(mut self, port: u8) -> Self {
        self.points.probes.trap_port = Some(port);
        self
    }

    /// The host sees to vCPUs that write to this port: modules are announced by it, where the guest can.
    #[must_use]
    pub fn announcing_by(mut self, port: u8) -> Self {
        let has_modules = self.transient.has_modules();
        self.points.announcer = Announcer::of(&self.image, port).filter(|_| has_modules);
        self
    }

    /// The image.
    #[must_use]
    pub const fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// What there is of the guest that does not stay.
    #[must_use]
    pub const fn transient(&self) -> &Transient {
        &self.transient
    }

    /// Who wants something at which places of the text.
    #[must_use]
    pub const fn points(&self) -> &Points {
        &self.points
    }

    /// The same, to be told what nobody wants any more.
    pub const fn points_mut(&mut self) -> &mut Points {
        &mut self.points
    }

    /// The sessions.
    #[must_use]
    pub const fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The same, to be told what they want.
    pub const fn sessions_mut(&mut self) -> &mut Sessions {
        &mut self.sessions
    }

    /// What the window holds, once it is open.
    #[must_use]
    pub const fn foothold(&self) -> Option<&Foothold> {
        self.foothold.as_ref()
    }

    /// The same, to make what is there when somebody needs it.
    ///
    /// # Errors
    /// [`AttachError::NotAttached`].
    pub fn foothold_mut(&mut self) -> Result<&mut Foothold, AttachError> {
        self.foothold.as_mut().ok_or(AttachError::NotAttached)
    }

    /// What stands where in the text.
    #[must_use]
    pub const fn sites(&self) -> &Sites {
        &self.sites
    }

    /// The same, for the kill switch.
    pub const fn sites_mut(&mut self) -> &mut Sites {
        &mut self.sites
    }

    /// Makes every site one nop, unless the guest does that itself. Only for a guest of which no vCPU has
    /// run yet: a saved instruction pointer could lie between the nops of a site.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing was changed.
    pub fn normalise(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<usize, ApplyError> {
        if self.image.normalises_itself() {
            return Ok(0);
        }
        let made = self.commit().make_normal(target, |_| true)?;
        self.sites.are_normal();
        Ok(made)
    }

    /// Whether [`Self::attach`] wants to know [`kernel_gs_base`] of the vCPUs whose other registers do not
    /// tell the kernel's: those of code that runs in ring 0 only, and when that is not known yet.
    ///
    /// [`kernel_gs_base`]: crate::target::VcpuRegisters::kernel_gs_base
    #[must_use]
    pub fn wants_kernel_gs_base(&self) -> bool {
        self.foothold.as_ref().is_none_or(|foothold| {
            let code = TracedCode::Supervisor;
            matches!(&foothold.strategy, CpuStrategy::Gs { code: of, .. } if *of == code)
        })
    }

    /// Opens the window and finds out how stubs know their vCPU; checks the window when it is open
    /// already.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn attach(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        region: Region,
    ) -> Result<(), AttachError> {
        if let Some(foothold) = &self.foothold {
            return foothold.verify(target);
        }
        let (image, sites) = (&self.image, &mut self.sites);
        let starts = starts(target, image);
        if starts || !image.normalises_itself() {
            sites.look(target, image);
        }
        self.foothold = Some(Foothold::open(target, image, region, sites, starts)?);
        Ok(())
    }

    /// Makes a session that traces nothing yet. Its rings are in the guest; a reader has to set their
    /// cells.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn create_session(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        config: SessionConfig,
    ) -> Result<SessionId, AttachError> {
        let functions = self.image.functions.len();
        let foothold = self.foothold.as_mut();
        self.sessions.create(foothold, target, config, functions)
    }

    /// Deletes a session that traces nothing any more: switches its cells off and keeps its memory
    /// from everything that a late writer could damage. Nobody may read its rings any more.
    ///
    /// # Errors
    /// [`ApplyError::NoSession`] or [`ApplyError::StillTracing`]; then the session is still there.
    pub fn delete_session(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        id: SessionId,
    ) -> Result<(), ApplyError> {
        let session = self.sessions.get(id)?;
        let functions = self.sites.traced_by(id.0);
        let events = self.points.recorded_by(&self.image, &self.sites, id);
        if functions + events > 0 {
            return Err(ApplyError::StillTracing {
                name: session.config.name.clone(),
                functions,
                events,
            });
        }
        self.sessions.delete(memory, id)
    }

    /// Gives a session its event rings, if it has none, in which a record holds the fields of every event of the
    /// image and at least `payload_bytes`. A reader has to set their cells.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn make_event_rings(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        id: SessionId,
        payload_bytes: u64,
    ) -> Result<(), AttachError> {
        let events = self.image.events();
        let of_image = events.map(|(_, format)| 8 * format.words() as u64).max();
        let payload_bytes = payload_bytes.max(of_image.unwrap_or(0));
        let foothold = self.foothold.as_mut();
        let sessions = &mut self.sessions;
        sessions.make_event_rings(foothold, target, id, payload_bytes)
    }

    /// Says what can be captured of a function's calls at a moment. What was said first stays.
    ///
    /// # Errors
    /// A [`CallValuesError`].
    pub fn add_call_capture(
        &mut self,
        function: FunctionId,
        moment: Moment,
        capture: Capture,
    ) -> Result<(), CallValuesError> {
        let Points { calls, formats, .. } = &mut self.points;
        let formats = Arc::make_mut(formats);
        calls.know(&self.image, formats, function, moment, capture)
    }

    /// Whether these probes can be set, all of them at once, as far as the image says: who serves breakpoints may be
    /// known at the attach only.
    ///
    /// # Errors
    /// A [`ProbeError`] about the first that cannot.
    pub fn check_probes(&self, all: &[NewProbe]) -> Result<(), ProbeError> {
        let foothold = self.foothold.as_ref();
        self.points.probes.check(&self.image, foothold, all)
    }

    /// Registers a probe, which nobody records yet; one that was there before, and whose text has come again, keeps its number.
    ///
    /// # Errors
    /// A [`ProbeError`].
    pub fn add_probe(&mut self, new: NewProbe) -> Result<ProbeId, ProbeError> {
        let foothold = self.foothold.as_ref();
        let Points {
            probes, formats, ..
        } = &mut self.points;
        let formats = Arc::make_mut(formats);
        probes.add(&self.image, foothold, &self.sites, formats, new)
    }

    /// Notes which probes were in text that is gone. Says which are so since the last time.
    pub fn take_lost_probes(&mut self) -> Vec<ProbeId> {
        let probes = &mut self.points.probes;
        probes.take_lost(&self.image, &self.sites, &self.transient)
    }

    /// The probes at which vCPUs leave the guest now, and where each continues.
    #[must_use]
    pub fn detours(&self) -> Vec<(Gva, Gva)> {
        let foothold = self.foothold.as_ref();
        let probes = &self.points.probes;
        probes.detours(&self.image, &self.sites, foothold)
    }

    /// Looks what the guest has given back since the last time, and forgets it. While the guest is
    /// stopped the answer holds until it continues; else it may be late, never wrong.
    pub fn look(&mut self, memory: &(impl PhysicalMemory + ?Sized)) -> Moved {
        let sites = &mut self.sites;
        self.transient.look(memory, &self.image, sites)
    }

    /// As [`Self::look`], and takes in the functions of modules that have come, as many as one look may read: first of
    /// all those of the module whose description is at `announced`, whose init function is about to be called.
    ///
    /// # Errors
    /// A [`ModuleError`] when the list of modules cannot be read; then those are known that were.
    pub fn read_modules(
        &mut self,
        memory: &(impl PhysicalMemory + ?Sized),
        announced: Option<Gva>,
    ) -> Result<Moved, ModuleError> {
        let (image, sites) = (&mut self.image, &mut self.sites);
        self.transient.read_modules(memory, image, sites, announced)
    }

    /// Looks whether the guest still executes the text that was changed, with the window where it was put; puts back
    /// what it has cleared of that. `vcpus` are its registers.
    ///
    /// # Errors
    /// What is lost; then nothing was written.
    pub fn check_foothold<T: TextMemory + ?Sized>(
        &mut self,
        target: &mut T,
        vcpus: &[VcpuRegisters],
    ) -> Result<(), FrozenBy> {
        // In the place of a module that is gone there may be anything.
        self.look(target);
        let Some(foothold) = &self.foothold else {
            return Ok(());
        };
        // Before the window: a kernel that was loaded anew at the same place has the same tables, with nothing in them.
        if self.sites.has_lost_its_jumps(target) {
            return Err(FrozenBy::Replaced);
        }
        Ok(foothold.window.verify_with_text(target, vcpus)?)
    }

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
        self.sessions.get(id)?;
        self.look(memory);
        let (points, mut with) = self.planning(memory);
        points.plan_functions(&mut with, id, selection)
    }

    /// Plans that these callbacks are called at events, or are not called there any more. Writes the stubs and
    /// lists that this needs, which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub fn plan_events(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        calls: &[(EventId, Vec<Callback>)],
        on: bool,
    ) -> Result<Plan, ApplyError> {
        let (points, mut with) = self.planning(memory);
        points.events.plan(&mut with, calls, on)
    }

    /// Plans who records these probes: a session, which has event rings, or nobody. Writes the stubs that this needs,
    /// which nothing leads to yet: the guest may run.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing has changed.
    pub fn plan_probes(
        &mut self,
        memory: &mut (impl WindowMemory + ?Sized),
        wanted: &[(ProbeId, Option<SessionId>)],
    ) -> Result<Plan, ApplyError> {
        let (points, mut with) = self.planning(memory);
        points.plan_probes(&mut with, wanted)
    }

    /// Plans that each named function leads to the target named beside it, or with none to its default. Nothing of it
    /// needs the window.
    ///
    /// # Errors
    /// A [`RetargetError`] for the first that is not possible.
    pub fn plan_dynamic<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<Plan, RetargetError> {
        let changes = dynamic::plan(&self.image, &mut self.sites, changes)?;
        let steps = changes.into_iter().map(|(to, edit)| {
            let what = What::Dynamic(edit.poke.at, to);
            PlanStep::one(what, edit)
        });
        Ok(Plan::whole(steps.collect()))
    }

    /// Switches all listed lock prefixes of a machine that has `vcpus` vCPUs, started or not. Says how
    /// many were switched.
    ///
    /// # Errors
    /// A [`LockError`]; then nothing was changed.
    pub fn switch_locks(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        to: LockPrefixes,
        vcpus: usize,
    ) -> Result<usize, LockError> {
        let plan = locks::plan(&self.image, &mut self.sites, to, vcpus)?;
        if !plan.is_empty() {
            self.apply(target, &plan)?;
        }
        Ok(plan.steps.len())
    }

    /// Brings the guest's text to what `plan` says, all of it or nothing.
    ///
    /// # Errors
    /// An [`ApplyError`]; then nothing was changed.
    pub fn apply(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        self.look(target);
        noted(self, target, plan, |engine, target| {
            engine.commit().apply(target, plan)
        })
    }

    /// The same while the guest runs. Whoever executes what is changed meanwhile does what was there before or what is
    /// there afterwards; of several sites one can be changed while another is not yet.
    ///
    /// # Errors
    /// As [`Self::apply`]. Several instructions become one only while the guest is stopped.
    pub fn apply_live(
        &mut self,
        target: &mut (impl LiveTarget + ?Sized),
        plan: &Plan,
    ) -> Result<Applied, ApplyError> {
        self.look(target);
        noted(self, target, plan, |engine, target| {
            engine.commit().apply_live(target, plan)
        })
    }

    /// The one way from a plan to the guest's text.
    pub(crate) fn commit(&mut self) -> Commit<'_> {
        Commit {
            image: &self.image,
            inside: self.transient.inside.as_deref(),
            points: &mut self.points,
            sites: &mut self.sites,
            foothold: self.foothold.as_mut(),
        }
    }

    fn planning<'a, M: ?Sized>(
        &'a mut self,
        memory: &'a mut M,
    ) -> (&'a mut Points, Planning<'a, M>) {
        let with = Planning {
            image: &self.image,
            sites: &mut self.sites,
            sessions: &self.sessions,
            foothold: self.foothold.as_mut(),
            memory,
        };
        (&mut self.points, with)
    }
}

mod announced;
mod announcer;
pub mod call_values;
mod commit;
mod error;
pub mod events;
mod foothold;
mod functions;
mod halts;
mod kprobes;
mod leaving;
pub mod locks;
pub mod plan;
mod planning;
mod points;
pub mod probes;
mod proof;
#[cfg(feature = "foreign")]
mod restoring;
mod retired;
mod reuse;
mod rings;
pub mod saved;
mod sessions;
mod steps;
mod task_block;
pub mod tasks;
#[cfg(test)]
mod tests;
pub mod transient;
