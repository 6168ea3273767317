//! The engine: what is traced by whom, and how the guest is brought to it.
//!
//! It owns every decision and no access: each operation is handed the target that it works on, and
//! those that change what the guest executes want a [`StoppedTarget`].

use std::sync::Arc;

use events::PlacedStub;
use events::words::ListError;
use fleeting::KnownModule;
use sessions::Retired;

use crate::addr::{Gpa, Gva};
use crate::event::FunctionId;
use crate::filter::Selection;
use crate::image::{Image, TextRange};
use crate::patch::dynamic::DynamicTable;
use crate::patch::events::{Dispatch, OutOfReach, TracepointTable};
use crate::patch::functions::{Change, FunctionState, FunctionTable, Plan, PlanError, SessionSet};
use crate::patch::live;
use crate::patch::locks::LockPrefixes;
use crate::patch::markers::MarkerTable;
use crate::patch::normalise::normalisations;
use crate::patch::poke::{self, Poke, PokeError, TransactionError, read_site};
use crate::record::FUNCTIONS_MAX;
use crate::session::{Session, SessionId};
use crate::stub::arena::{Arena, ArenaFull};
use crate::stub::cell::{CpuStrategy, GsMoved, NoGsBase, SESSIONS_MAX, TracedCode};
use crate::stub::clock_page::PAGE_BYTES;
use crate::stub::graph::{Hook, SiteShape};
use crate::stub::mirror::Mirror;
use crate::stub::template::{StubError, StubSpec};
use crate::target::{
    LiveTarget, MemoryError, PhysicalMemory, StoppedTarget, TargetMemory, VcpuRegisters,
};
use crate::window::{Extent, Region, Window, WindowError};

/// Room for stubs per function: a few versions of each.
const STUB_BYTES_PER_FUNCTION: u64 = 3072;
/// Pages of stack that the mirror has room for, as a power of two: 32 MiB of stacks in use.
const MIRROR_PAGES_LOG2: u32 = 13;
/// Room for the mirror's claim routine.
const CLAIM_BYTES: u64 = 512;

/// Why tracing could not be set up in the guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The window cannot be opened.
    #[error("cannot attach: {0}")]
    Window(#[from] WindowError),
    /// The image has no text.
    #[error("cannot attach: the image has no executable segment")]
    NoText,
    /// A record cannot number so many functions.
    #[error("cannot attach: the image has {0} functions, {FUNCTIONS_MAX} can be told apart")]
    TooManyFunctions(usize),
    /// Stubs would write to another vCPU's ring, or to no ring.
    #[error("cannot attach: {0}")]
    GsMoved(#[from] GsMoved),
    /// No such session.
    #[error("there is no session number {0}")]
    NoSession(u8),
    /// No room for the mirror's routine.
    #[error("cannot attach: {0}")]
    Arena(#[from] ArenaFull),
    /// The mirror's routine could not be assembled.
    #[error("cannot attach: {0}")]
    Stub(#[from] StubError),
    /// The mirror's routine could not be written.
    #[error("cannot attach: the mirror's routine cannot be written: {0}")]
    Claim(MemoryError),
    /// The counters of a profile would take too much memory.
    #[error(
        "cannot make session '{name}': the counters of {functions} functions take too much memory with GS bases that lie as these do"
    )]
    ProfileTooLarge {
        /// The name asked for.
        name: String,
        /// How many functions.
        functions: usize,
    },
    /// The counters could not be set to 0.
    #[error("cannot make session '{name}': its counters cannot be written: {source}")]
    Counters {
        /// The name asked for.
        name: String,
        /// Why not.
        source: MemoryError,
    },
    /// Sixteen sessions are there.
    #[error("cannot make session '{name}': there are {SESSIONS_MAX} already, delete one")]
    TooManySessions {
        /// The name asked for.
        name: String,
    },
    /// Another session has that name.
    #[error("cannot make session '{name}': there is one of that name")]
    NameTaken {
        /// The name asked for.
        name: String,
    },
}

/// Why a change of what is traced was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// No such session.
    #[error("there is no session number {0}")]
    NoSession(u8),
    /// A session that is to go still has its stubs at sites.
    #[error(
        "session '{name}' still traces {functions} functions and {events} events: stop it first"
    )]
    StillTracing {
        /// Its name.
        name: String,
        /// How many functions lead to it.
        functions: usize,
        /// At how many tracepoints it is called.
        events: usize,
    },
    /// The cells of a session could not be switched off.
    #[error("the cells of session '{name}' cannot be reached: {source}")]
    Cells {
        /// Its name.
        name: String,
        /// Why not.
        source: MemoryError,
    },
    /// Nothing is attached yet.
    #[error("tracing is not attached to the guest yet")]
    NotAttached,
    /// The plan could not be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A tracepoint cannot lead where it should.
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    /// The callbacks of a tracepoint could not be changed.
    #[error("nothing was changed: {0}")]
    List(#[from] ListError),
    /// A stub could not be written.
    #[error("cannot write a stub: {0}")]
    Stub(MemoryError),
    /// The window is gone.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The plan is older than the last change.
    #[error("something else was changed since this was planned: plan again")]
    Stale,
    /// A poke failed; all were taken back.
    #[error("nothing was changed: {0}")]
    Transaction(#[from] TransactionError),
    /// Patching is frozen.
    #[error("patching is frozen: {0}")]
    Frozen(Frozen),
}

/// The kill switch: something that must not be was found in the guest's text. Nothing is written any
/// more until someone has looked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; nothing will be patched until this has been looked into, the guest goes on")]
pub struct Frozen(pub PokeError);

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
type Write<T> = fn(&mut T, &Image, &[Poke]) -> Result<(), TransactionError>;

/// What an attached guest has: a window with room for stubs and cells.
#[derive(Debug)]
struct Ground {
    window: Window,
    arena: Arena,
    cells: Extent,
    strategy: CpuStrategy,
    no_gs: Option<NoGsBase>,
    /// Made for the first graph session.
    mirror: Option<Mirror>,
}

impl Ground {
    /// The mirror, which the first graph session makes.
    fn make_mirror(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if self.mirror.is_some() {
            return Ok(());
        }
        let (directory, pages) = Mirror::bytes(MIRROR_PAGES_LOG2);
        let shown = self.window.map(target, directory + pages, false)?;
        let (claim, physical) = self.arena.allocate(CLAIM_BYTES)?;
        let mirror = Mirror {
            pages: shown.at,
            directory: shown.at.wrapping_add(pages),
            pages_log2: MIRROR_PAGES_LOG2,
            claim,
        };
        let routine = mirror.claim_routine().map_err(StubError::from)?;
        target
            .write_physical(physical, &routine.bytes)
            .and_then(|()| {
                let first = shown.physical.wrapping_add(pages);
                target.write_physical(first, &Mirror::NOBODY.to_le_bytes())
            })
            .map_err(AttachError::Claim)?;
        self.mirror = Some(mirror);
        Ok(())
    }
}

/// What makes every site of the image one nop.
fn normalised(image: &Image) -> impl Iterator<Item = Poke> {
    normalisations(image).into_iter().map(Poke::from)
}

/// Where the clock page lies in the extent of the cells: behind them.
fn clock_offset(strategy: &CpuStrategy) -> u64 {
    strategy.span().next_multiple_of(PAGE_BYTES)
}

/// What the stub of the functions that `set` traces does.
fn stub_spec(
    sessions: &[Option<Session>],
    set: SessionSet,
    shape: SiteShape,
    mirror: Option<Mirror>,
    arena: &Arena,
) -> StubSpec {
    let of = |id: u8| sessions.get(usize::from(id)).and_then(Option::as_ref);
    let traced_by: Vec<&Session> = set.iter().filter_map(of).collect();
    let graph = traced_by
        .iter()
        .find(|session| session.config.tracer.hooks_returns());
    let hook = graph.zip(mirror).map(|(session, mirror)| Hook {
        variant: session.config.return_hook,
        mirror,
        stubs: arena.start(),
        stub_bytes: u32::try_from(arena.bytes()).unwrap_or(u32::MAX >> 1),
    });
    let shape = if hook.is_some() {
        shape
    } else {
        SiteShape::Entry
    };
    StubSpec {
        recorders: traced_by.iter().filter_map(|one| one.recorder).collect(),
        profiles: traced_by.iter().filter_map(|one| one.profile).collect(),
        shape,
        hook,
    }
}

/// Everything that is known of tracing one guest.
#[derive(Debug)]
pub struct Engine {
    image: Arc<Image>,
    table: FunctionTable,
    dynamic: DynamicTable,
    tracepoints: TracepointTable,
    markers: MarkerTable,
    event_stubs: Vec<PlacedStub>,
    ground: Option<Ground>,
    sessions: Vec<Option<Session>>,
    retired: Vec<Retired>,
    frozen: Option<Frozen>,
    locks: LockPrefixes,
    /// Whether the guest has freed the text that it needed to start.
    init_is_gone: bool,
    modules: Vec<KnownModule>,
}

impl Engine {
    /// An engine for a guest that was loaded from `image`.
    #[must_use]
    pub fn new(image: Arc<Image>) -> Self {
        let table = FunctionTable::new(&image);
        let dynamic = DynamicTable::new(&image);
        let tracepoints = TracepointTable::new(&image, Dispatch::default());
        let markers = MarkerTable::new(&image);
        Self {
            image,
            table,
            dynamic,
            tracepoints,
            markers,
            event_stubs: Vec::new(),
            ground: None,
            sessions: Vec::new(),
            retired: Vec::new(),
            frozen: None,
            locks: LockPrefixes::On,
            init_is_gone: false,
            modules: Vec::new(),
        }
    }

    /// The same with this way from tracepoints to their callbacks.
    #[must_use]
    pub fn with_dispatch(mut self, dispatch: Dispatch) -> Self {
        self.tracepoints = TracepointTable::new(&self.image, dispatch);
        self
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Makes every site one nop, unless the guest does that itself. Only for a guest of which no vCPU has
    /// run yet: a saved instruction pointer could lie between the nops of a site.
    ///
    /// # Errors
    /// [`TransactionError`]; then nothing was changed.
    pub fn normalise(
        &self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<usize, TransactionError> {
        if self.image.normalises_itself() {
            return Ok(0);
        }
        let is_there = |poke: &Poke| !self.table.is_gone(poke.function);
        let pokes: Vec<Poke> = normalised(&self.image).filter(is_there).collect();
        poke::apply(target, &self.image, &pokes).map(|()| pokes.len())
    }

    /// Whether [`Self::attach`] wants to know [`kernel_gs_base`] of the vCPUs whose other registers do not
    /// tell the kernel's: those of code that runs in ring 0 only, and when that is not known yet.
    ///
    /// [`kernel_gs_base`]: crate::target::VcpuRegisters::kernel_gs_base
    #[must_use]
    pub fn wants_kernel_gs_base(&self) -> bool {
        self.ground.as_ref().is_none_or(|ground| {
            let code = TracedCode::Supervisor;
            matches!(&ground.strategy, CpuStrategy::Gs { code: of, .. } if *of == code)
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
        if let Some(ground) = &self.ground {
            ground.window.verify(target)?;
            return Ok(ground.strategy.verify(target.vcpus())?);
        }
        let functions = self.image.functions.len();
        if functions >= FUNCTIONS_MAX as usize {
            return Err(AttachError::TooManyFunctions(functions));
        }
        let mut window = Window::open(target, region, self.traceable_text()?)?;
        let code = if window.is_user() {
            TracedCode::User
        } else {
            TracedCode::Supervisor
        };
        let (strategy, no_gs) = CpuStrategy::choose(target.vcpus(), code);
        let room = STUB_BYTES_PER_FUNCTION * self.image.sites.len() as u64;
        let extents = window.map(target, room, true).and_then(|code| {
            let shared = clock_offset(&strategy) + PAGE_BYTES;
            Ok((code, window.map(target, shared, false)?))
        });
        let (code, cells) = match extents {
            Ok(extents) => extents,
            Err(error) => {
                window.close(target);
                return Err(error.into());
            }
        };
        let arena = Arena::new(code.at, code.physical, code.bytes);
        self.ground = Some(Ground {
            window,
            arena,
            cells,
            strategy,
            no_gs,
            mirror: None,
        });
        Ok(())
    }

    /// From the first site to the last: what stubs must be near to.
    fn traceable_text(&self) -> Result<TextRange, AttachError> {
        match (self.image.sites.first(), self.image.sites.last()) {
            (Some(first), Some(last)) => {
                let end = self
                    .image
                    .text
                    .last()
                    .map_or(last.address, |range| range.end);
                Ok(TextRange {
                    start: first.address,
                    end: end.max(last.address),
                })
            }
            _ => Err(AttachError::NoText),
        }
    }

    /// Whether the window is open.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.ground.is_some()
    }

    /// How stubs know their vCPU, and why not by *gs* when they do not.
    #[must_use]
    pub fn strategy(&self) -> Option<(&CpuStrategy, Option<NoGsBase>)> {
        self.ground
            .as_ref()
            .map(|ground| (&ground.strategy, ground.no_gs))
    }

    /// The clock page: where stubs and where the host find it.
    #[must_use]
    pub fn clock_page(&self) -> Option<(Gva, Gpa)> {
        let ground = self.ground.as_ref()?;
        let offset = clock_offset(&ground.strategy);
        let Extent { at, physical, .. } = ground.cells;
        Some((at.wrapping_add(offset), physical.wrapping_add(offset)))
    }

    /// Bytes of stubs in the guest.
    #[must_use]
    pub fn stub_bytes(&self) -> u64 {
        self.ground.as_ref().map_or(0, |ground| ground.arena.used())
    }

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
        let ground = self.ground.as_mut().ok_or(ApplyError::NotAttached)?;
        let mut wanted = vec![false; self.image.functions.len()];
        for function in &selection.selected {
            if let Some(slot) = wanted.get_mut(function.index()) {
                *slot = function.0 < limit;
            }
        }
        let sessions = &self.sessions;
        let (mirror, arena) = (ground.mirror, ground.arena);
        let spec =
            |set: SessionSet, shape: SiteShape| stub_spec(sessions, set, shape, mirror, &arena);
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
        let plan = self
            .table
            .plan(&self.image, after, spec, &mut ground.arena)?;
        let mut unwritten = self.table.take_unwritten().into_iter();
        while let Some(stub) = unwritten.next() {
            if let Err(error) = memory.write_physical(stub.physical, &stub.bytes) {
                // The table hands these stubs out again: they must not be forgotten.
                self.table.still_unwritten(unwritten.chain([stub]));
                return Err(ApplyError::Stub(error));
            }
        }
        Ok(plan)
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
        self.carry_out(target, &vcpus, plan, poke::apply)
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
        self.carry_out(target, &vcpus, plan, live::apply)
    }

    fn carry_out<T: TargetMemory + PhysicalMemory + ?Sized>(
        &mut self,
        target: &mut T,
        vcpus: &[VcpuRegisters],
        plan: &Plan,
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
        let (changes, skipped) = self.inspect(target, plan)?;
        let pokes: Vec<Poke> = changes.iter().map(|change| change.poke).collect();
        let written = write(target, &self.image, &pokes);
        self.note(written)?;
        let mut applied = Applied::default();
        for change in &changes {
            self.table.applied(change);
            match change.stub {
                Some(_) => applied.patched += 1,
                None => applied.restored += 1,
            }
        }
        for (function, why) in &skipped {
            self.table.skipped(*function, why.clone());
        }
        applied.skipped = skipped;
        Ok(applied)
    }

    /// Freezes when something could not be taken back.
    fn note(&mut self, written: Result<(), TransactionError>) -> Result<(), ApplyError> {
        if let Err(error) = &written
            && let Some(stuck) = error.stuck.first()
        {
            self.frozen = Some(Frozen(stuck.clone()));
        }
        Ok(written?)
    }

    fn freeze(&mut self, why: PokeError) -> ApplyError {
        let frozen = Frozen(why);
        self.frozen = Some(frozen.clone());
        ApplyError::Frozen(frozen)
    }

    fn check_frozen(&self) -> Result<(), ApplyError> {
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

    fn look_at(&self, target: &(impl TargetMemory + ?Sized), poke: &Poke) -> Result<(), PokeError> {
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

    /// The state of one function.
    #[must_use]
    pub fn state(&self, function: FunctionId) -> &FunctionState {
        self.table.state(function)
    }

    /// How many functions have our jump in them.
    #[must_use]
    pub fn patched(&self) -> usize {
        self.table.patched()
    }

    /// Why patching is frozen, if it is.
    #[must_use]
    pub fn frozen(&self) -> Option<&Frozen> {
        self.frozen.as_ref()
    }

    /// Takes the kill switch back, after somebody has looked into it.
    pub fn thaw(&mut self) {
        self.frozen = None;
    }

    /// Whether `address` lies in a stub.
    #[must_use]
    pub fn is_stub(&self, address: Gva) -> bool {
        self.ground
            .as_ref()
            .is_some_and(|ground| ground.arena.contains(address))
    }
}

mod announced;
mod dynamic;
pub mod events;
pub mod fleeting;
pub mod locks;
mod sessions;
#[cfg(test)]
mod tests;
