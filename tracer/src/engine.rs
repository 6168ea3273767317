//! The engine: what is traced by whom, and how the guest is brought to it.
//!
//! It owns every decision and no access: each operation is handed the target that it works on, and
//! those that change what the guest executes want a [`StoppedTarget`].

use std::collections::BTreeMap;
use std::sync::Arc;

use announcer::Announcer;
use call_values::CallCaptures;
pub use commit::Applied;
pub use error::{ApplyError, AttachError, Frozen, FrozenBy};
use events::PlacedStub;
use fleeting::KnownModule;
use image::Image;
use probes::{Probe, ProbeId};
use sessions::Retired;
use terms::addr::{Gpa, Gva};
use terms::function::FunctionId;
use terms::region::Region;

use crate::event_formats::EventFormats;
use crate::linux::Kernel;
use crate::paging::PageUse;
use crate::patch::dynamic::DynamicTable;
use crate::patch::events::{Dispatch, TracepointTable};
use crate::patch::functions::{FunctionState, FunctionTable};
use crate::patch::locks::LockPrefixes;
use crate::patch::markers::MarkerTable;
use crate::patch::normalise::normalisations;
use crate::patch::probes::ProbeTable;
use crate::record::FUNCTIONS_MAX;
use crate::session::Session;
use crate::stub::arena::Arena;
use crate::stub::cell::{CpuStrategy, NoGsBase, TracedCode};
use crate::stub::clock_page::PAGE_BYTES;
use crate::stub::gs_list;
use crate::stub::mirror::Mirror;
use crate::stub::reach::{Reach, Routines};
use crate::stub::template::StubError;
use crate::target::StoppedTarget;
use crate::text::journal::Journal;
use crate::text::poke::{self, Poke, TransactionError};
use crate::text::sites::Sites;
use crate::window::{Extent, Places, Window};

/// Room for stubs per function: a few versions of each.
const STUB_BYTES_PER_FUNCTION: u64 = 3072;
/// Pages of stack that the mirror has room for, as a power of two: 32 MiB of stacks in use.
const MIRROR_PAGES_LOG2: u32 = 13;
/// Room for the mirror's claim routine.
const CLAIM_BYTES: u64 = 512;
/// Places that the journal has room for beside two for each function: those of probes, events and what comes later.
const JOURNAL_ENTRIES: u64 = 1 << 14;
/// Room for the stubs of probes.
const PROBES_BYTES: u64 = 3 << 19;

/// What an attached guest has: a window with room for stubs and cells.
#[derive(Debug)]
struct Ground {
    window: Window,
    arena: Arena,
    cells: Extent,
    journal: Journal,
    strategy: CpuStrategy,
    no_gs: Option<NoGsBase>,
    /// Made for the first graph session.
    mirror: Option<Mirror>,
    /// Made for the first capture that reads memory.
    reach: Option<Reach>,
    /// Where the host finds its directory.
    mirror_physical: Option<Gpa>,
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
        let shown = self.window.map(target, directory + pages, PageUse::Data)?;
        let (claim, physical) = self.arena.allocate(CLAIM_BYTES)?;
        let mirror = Mirror {
            pages: shown.at,
            directory: shown.at.wrapping_add(pages),
            pages_log2: MIRROR_PAGES_LOG2,
            claim,
        };
        let routine = mirror.claim_routine().map_err(StubError::from)?;
        target
            .write_window(physical, &routine.bytes)
            .and_then(|()| {
                let first = shown.physical.wrapping_add(pages);
                target.write_window(first, &Mirror::NOBODY.to_le_bytes())
            })
            .map_err(AttachError::Claim)?;
        self.mirror = Some(mirror);
        self.mirror_physical = Some(shown.physical.wrapping_add(pages));
        Ok(())
    }

    /// The routines that read the guest's memory, which the first capture that needs them makes.
    fn make_reach(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if self.reach.is_some() {
            return Ok(());
        }
        let routines = Routines::new(self.window.make_alias(target)?)?;
        let (at, physical) = self.arena.allocate(routines.bytes.len() as u64)?;
        target
            .write_window(physical, &routines.bytes)
            .map_err(AttachError::Claim)?;
        self.reach = Some(routines.at(at));
        Ok(())
    }
}

/// What makes every site of the image one nop.
fn normalised(image: &Image) -> impl Iterator<Item = Poke> {
    normalisations(image).into_iter()
}

/// Where the clock page lies in the extent of the cells: behind them.
fn clock_offset(strategy: &CpuStrategy) -> u64 {
    strategy.span().next_multiple_of(PAGE_BYTES)
}

/// Everything that is known of tracing one guest.
#[derive(Debug)]
pub struct Engine {
    image: Arc<Image>,
    /// What can be asked of the guest, if it is a Linux.
    linux: Option<Kernel>,
    table: FunctionTable,
    /// What of the text is ours.
    sites: Sites,
    /// How often text had gone when its places were forgotten last.
    gone_places: u64,
    dynamic: DynamicTable,
    tracepoints: TracepointTable,
    markers: MarkerTable,
    event_stubs: Vec<PlacedStub>,
    formats: Arc<EventFormats>,
    probes: BTreeMap<ProbeId, Probe>,
    places: ProbeTable,
    /// The port by which vCPUs leave the guest at probes, if the host sees to them.
    trap_port: Option<u8>,
    ground: Option<Ground>,
    sessions: Vec<Option<Session>>,
    retired: Vec<Retired>,
    frozen: Option<Frozen>,
    locks: LockPrefixes,
    /// Whether the guest has freed the text that it needed to start.
    init_is_gone: bool,
    modules: Vec<KnownModule>,
    /// What tells of modules that come, if the guest has that and the host sees to it.
    announcer: Option<Announcer>,
    /// What can be captured of calls, and the code that does.
    calls: CallCaptures,
}

impl Engine {
    /// An engine for a guest that was loaded from `image`.
    #[must_use]
    pub fn new(image: Arc<Image>) -> Self {
        let table = FunctionTable::new(&image);
        let dynamic = DynamicTable::new(&image);
        let tracepoints = TracepointTable::new(&image, Dispatch::default());
        let markers = MarkerTable::new(&image);
        let formats = Arc::new(EventFormats::of(&image));
        Self {
            linux: Kernel::of(&image),
            image,
            table,
            sites: Sites::default(),
            gone_places: 0,
            dynamic,
            tracepoints,
            markers,
            event_stubs: Vec::new(),
            formats,
            probes: BTreeMap::new(),
            places: ProbeTable::default(),
            trap_port: None,
            ground: None,
            sessions: Vec::new(),
            retired: Vec::new(),
            frozen: None,
            locks: LockPrefixes::On,
            init_is_gone: false,
            modules: Vec::new(),
            announcer: None,
            calls: CallCaptures::default(),
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
        let places = Places::of(&self.image).ok_or(AttachError::NoText)?;
        let mut window = Window::open(target, region, places)?;
        let code = if window.is_user() {
            TracedCode::User
        } else {
            TracedCode::Supervisor
        };
        let (strategy, no_gs) = match gs_list::listed(&self.image, target, target.vcpus().len()) {
            Ok(listed) => CpuStrategy::choose(target.vcpus(), code, &listed),
            Err(reason) => (CpuStrategy::Shared, Some(reason)),
        };
        let functions = STUB_BYTES_PER_FUNCTION * self.image.sites.len() as u64;
        let room = functions + PROBES_BYTES;
        let journal_at = clock_offset(&strategy) + PAGE_BYTES;
        let places = JOURNAL_ENTRIES + 2 * self.image.sites.len() as u64;
        let mut opened = || {
            let code = window.map(target, room, PageUse::Code)?;
            let shared = journal_at + Journal::bytes(places);
            let cells = window.map(target, shared, PageUse::Data)?;
            let at = cells.physical.wrapping_add(journal_at);
            let mut journal = Journal::begin(target, at, places)?;
            // What can be changed without a window.
            journal.note(target, self.sites.iter().copied())?;
            Ok::<_, AttachError>((code, cells, journal))
        };
        let (code, cells, journal) = match opened() {
            Ok(opened) => opened,
            Err(error) => {
                window.close(target);
                return Err(error);
            }
        };
        let arena = Arena::new(code.at, code.physical, code.bytes);
        self.ground = Some(Ground {
            window,
            arena,
            cells,
            journal,
            strategy,
            no_gs,
            mirror: None,
            reach: None,
            mirror_physical: None,
        });
        Ok(())
    }

    /// Whether the window is open.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.ground.is_some()
    }

    /// The window, once it is open.
    #[must_use]
    pub fn window(&self) -> Option<&Window> {
        self.ground.as_ref().map(|ground| &ground.window)
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

    /// Makes what captures of memory need, if it is not there.
    ///
    /// # Errors
    /// An [`AttachError`]: where there is no place for it, values in registers can still be captured.
    pub fn make_reach(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        let ground = self.ground.as_mut();
        ground.ok_or(AttachError::NotAttached)?.make_reach(target)
    }

    /// The routines that read the guest's memory, once [`Self::make_reach`] has made them.
    #[must_use]
    pub fn reach(&self) -> Option<Reach> {
        self.ground.as_ref()?.reach
    }

    /// Bytes of stubs in the guest.
    #[must_use]
    pub fn stub_bytes(&self) -> u64 {
        self.ground.as_ref().map_or(0, |ground| ground.arena.used())
    }

    /// The state of one function.
    #[must_use]
    pub fn state(&self, function: FunctionId) -> &FunctionState {
        self.table.state(function)
    }

    /// The places of the text where bytes of ours stand.
    #[must_use]
    pub fn sites(&self) -> &Sites {
        &self.sites
    }

    /// Where the journal of changed text is, once the window is open.
    #[must_use]
    pub fn journal_at(&self) -> Option<Gpa> {
        let at = self.ground.as_ref()?.journal.at();
        Some(at)
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
mod announcer;
pub mod call_values;
mod commit;
mod dynamic;
mod error;
pub mod events;
pub mod fleeting;
mod functions;
mod kprobes;
pub mod locks;
mod lost;
pub mod plan;
pub mod probes;
mod reuse;
pub mod saved;
mod sessions;
mod steps;
mod stub_spec;
#[cfg(test)]
mod tests;
