//! What an attached guest has of ours: a window with room for stubs, cells and the journal, and how stubs know their vCPU.

use std::collections::BTreeMap;

use image::Image;
use terms::addr::{Gpa, Gva};
use terms::region::Region;

use super::AttachError;
use super::task_block::TaskBlock;
use crate::clock::layout::PAGE_BYTES;
use crate::paging::{PAGE_4K, PageUse};
use crate::record::FUNCTIONS_MAX;
use crate::ring::turnstile::Turnstile;
use crate::session::SessionId;
use crate::stub::arena::Arena;
use crate::stub::cell::{CellPlace, Cells, CpuStrategy, NoGsBase, SESSIONS_MAX, TracedCode};
use crate::stub::gs_list;
use crate::stub::halt::HALTS_MAX;
use crate::stub::mirror::Mirror;
use crate::stub::reach::{Reach, Routines};
use crate::stub::spec::{Hook, ReturnHook};
use crate::stub::store::{StoreError, StubStore};
use crate::stub::template::StubError;
use crate::target::StoppedTarget;
use crate::text::journal::Journal;
use crate::text::sites::Sites;
use crate::window::title::{MIRROR_PAGES_LOG2, MirrorMemory};
use crate::window::{Extent, Places, Window};

/// Room for stubs per function: a few versions of each.
const STUB_BYTES_PER_FUNCTION: u64 = 3072;
/// Places that the journal has room for beside two for each function: those of probes, events and what comes later.
const JOURNAL_ENTRIES: u64 = 1 << 14;
/// Room for the stubs of probes.
const PROBES_BYTES: u64 = 3 << 19;

/// A window with room for stubs and cells.
#[derive(Debug)]
pub struct Foothold {
    pub(super) window: Window,
    pub(super) stubs: StubStore,
    pub(super) cells: Extent,
    pub(super) journal: Journal,
    pub(super) strategy: CpuStrategy,
    no_gs: Option<NoGsBase>,
    /// Whether the guest had its borders before it when the window was opened.
    starts: bool,
    /// The clock page: where stubs and where the host find it.
    clock_page: (Gva, Gpa),
    /// Made for the first graph session.
    pub(super) mirror: Option<Mirror>,
    /// Made for the first session that waits for long calls: beside the mirror.
    pub(super) entered: Option<i32>,
    /// Made for the first graph that asks for tasks: beside the mirror.
    pub(super) heard: Option<i32>,
    /// Made for the first capture that reads memory.
    reach: Option<Reach>,
    /// Made for the first session that loses nothing.
    pub(super) turnstile: Option<Turnstile>,
    /// Where the host finds its directory.
    pub(super) mirror_physical: Option<Gpa>,
    /// What stubs read to know whom they record, of each number of a session that has asked.
    pub(super) task_blocks: BTreeMap<SessionId, TaskBlock>,
}

/// Whether the vCPUs are told apart.
#[derive(Debug)]
pub enum Apart {
    /// As they were, or were not, when the window was opened.
    Before,
    /// From now on, and the cells are elsewhere: who has some must be told (`CellsMoved::give_to`).
    By(CellsMoved),
    /// They cannot be.
    No(NoGsBase),
}

/// Where the cells of all sessions are now.
#[derive(Debug)]
pub struct CellsMoved {
    strategy: CpuStrategy,
    cells: Extent,
}

impl CellsMoved {
    /// Those of session number `id`: for stubs, and for the host.
    pub(super) fn of(&self, id: u8) -> (CellPlace, Vec<Gpa>) {
        let Cells { place, offsets } = self.strategy.cells(self.cells.at, id);
        let physical = self.cells.physical;
        let offsets = offsets.into_iter();
        (place, offsets.map(|at| physical.wrapping_add(at)).collect())
    }
}

/// Where the clock page lies in the extent of the cells: after them.
fn clock_offset(strategy: &CpuStrategy) -> u64 {
    strategy.span().next_multiple_of(PAGE_BYTES)
}

/// Where the words lie that say how often halts still do something: after it.
fn halts_offset(strategy: &CpuStrategy) -> u64 {
    clock_offset(strategy) + PAGE_BYTES
}

/// Where, after the clock page, the words lie that say who is waited for: after those of halts.
const AWAITED: u64 = PAGE_BYTES + PAGE_BYTES / 2;
const _: () = assert!(
    8 * SESSIONS_MAX * HALTS_MAX as u64 <= PAGE_BYTES / 2,
    "words of halts are in its first half"
);

/// Where stubs lie: not in the first page. Where a kernel maps memory at its own address, entries of its page tables, old
/// ones too, are numbers that are addresses there, and would look like threads that go on in a stub.
const fn arena(code: Extent) -> Arena {
    Arena::new(
        code.at.wrapping_add(PAGE_4K),
        code.physical.wrapping_add(PAGE_4K),
        code.bytes.saturating_sub(PAGE_4K),
    )
}

/// How stubs know their vCPU, and why not by *gs* when they do not. In a guest that `starts`, the vCPUs need not be told
/// apart yet.
fn choose(
    target: &(impl StoppedTarget + ?Sized),
    image: &Image,
    is_user: bool,
    starts: bool,
) -> (CpuStrategy, Option<NoGsBase>) {
    let code = match is_user {
        true => TracedCode::User,
        false => TracedCode::Supervisor,
    };
    let vcpus = target.recorded().len();
    match gs_list::listed(image, target, vcpus) {
        Ok(listed) => CpuStrategy::choose(target.recorded(), code, &listed),
        Err(_) if starts => (CpuStrategy::First { vcpus, code }, None),
        Err(reason) => (CpuStrategy::Shared, Some(reason)),
    }
}

impl Foothold {
    /// Opens the window in `region`, and begins the journal with what is ours already. A guest that `starts` has its
    /// borders before it.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub(super) fn open(
        target: &mut (impl StoppedTarget + ?Sized),
        image: &Image,
        region: Region,
        sites: &mut Sites,
        starts: bool,
    ) -> Result<Self, AttachError> {
        let functions = image.functions.len();
        if functions >= FUNCTIONS_MAX as usize {
            return Err(AttachError::TooManyFunctions(functions));
        }
        let places = Places::of(image, starts).ok_or(AttachError::NoText)?;
        let mut window = Window::open(target, region, places)?;
        let (strategy, no_gs) = choose(target, image, window.is_user(), starts);
        let functions = STUB_BYTES_PER_FUNCTION * image.sites.len() as u64;
        let room = functions + PROBES_BYTES;
        let journal_at = halts_offset(&strategy) + PAGE_BYTES;
        let places = JOURNAL_ENTRIES + 2 * image.sites.len() as u64;
        let mut opened = || {
            let code = window.map(target, room, PageUse::Code)?;
            let shared = journal_at + Journal::bytes(places);
            let cells = window.map(target, shared, PageUse::Data)?;
            let at = cells.physical.wrapping_add(journal_at);
            let mut journal = Journal::begin(target, at, places)?;
            let stubs = arena(code);
            window.entitle(target, (stubs.start(), stubs.bytes()), at)?;
            // What can be changed without a window.
            sites.begin(&mut journal, target)?;
            Ok::<_, AttachError>((code, cells, journal))
        };
        let (code, cells, journal) = match opened() {
            Ok(opened) => opened,
            Err(error) => {
                window.close(target);
                return Err(error);
            }
        };
        let clock = clock_offset(&strategy);
        Ok(Self {
            window,
            stubs: StubStore::new(arena(code)),
            starts,
            clock_page: (
                cells.at.wrapping_add(clock),
                cells.physical.wrapping_add(clock),
            ),
            cells,
            journal,
            strategy,
            no_gs,
            mirror: None,
            entered: None,
            heard: None,
            reach: None,
            turnstile: None,
            mirror_physical: None,
            task_blocks: BTreeMap::new(),
        })
    }

    /// Checks that all is as it was when the window was opened.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub(super) fn verify(
        &self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        self.window.verify(target)?;
        Ok(self.strategy.verify(target.vcpus())?)
    }

    /// Whether the guest had its borders before it when the window was opened.
    #[must_use]
    pub const fn starts(&self) -> bool {
        self.starts
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> &Window {
        &self.window
    }

    /// What lies in it to be executed.
    #[must_use]
    pub const fn stubs(&self) -> &StubStore {
        &self.stubs
    }

    /// Bytes of stubs in the guest.
    #[must_use]
    pub const fn stub_bytes(&self) -> u64 {
        self.stubs.arena().used()
    }

    /// How stubs know their vCPU, and why not by *gs* when they do not.
    #[must_use]
    pub const fn strategy(&self) -> (&CpuStrategy, Option<NoGsBase>) {
        (&self.strategy, self.no_gs)
    }

    /// The clock page: where stubs and where the host find it.
    #[must_use]
    pub const fn clock_page(&self) -> (Gva, Gpa) {
        self.clock_page
    }

    /// The words that say how often halts still do something: for stubs and for the host. They stay where they are when the
    /// cells move, as the clock page does.
    pub(super) const fn halts_at(&self) -> (Gva, Gpa) {
        let (page, physical) = self.clock_page;
        (
            page.wrapping_add(PAGE_BYTES),
            physical.wrapping_add(PAGE_BYTES),
        )
    }

    /// The guest has set up what tells its processors apart: where only the first one was known, each gets the cells that
    /// it finds by its GS base. Where that cannot be, all use those of the first one from now on.
    ///
    /// # Errors
    /// An [`AttachError`]; then everything is as before.
    pub fn tell_vcpus_apart(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
        image: &Image,
    ) -> Result<Apart, AttachError> {
        let CpuStrategy::First { vcpus, code } = self.strategy else {
            return Ok(Apart::Before);
        };
        let (strategy, why_not) = match gs_list::listed(image, target, vcpus) {
            Ok(listed) => CpuStrategy::choose(target.recorded(), code, &listed),
            Err(reason) => (CpuStrategy::Shared, Some(reason)),
        };
        if let Some(why_not) = why_not {
            // A cell that is found by its address can be anybody's: its slots are reserved with a lock prefix.
            (self.strategy, self.no_gs) = (strategy, Some(why_not));
            return Ok(Apart::No(why_not));
        }
        self.cells = self.window.map(target, strategy.span(), PageUse::Data)?;
        self.strategy = strategy.clone();
        Ok(Apart::By(CellsMoved {
            strategy,
            cells: self.cells,
        }))
    }

    /// Where the journal of changed text is.
    #[must_use]
    pub const fn journal_at(&self) -> Gpa {
        self.journal.at()
    }

    /// The mirror, which the first graph session makes, or the first return that is captured.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn make_mirror(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if self.mirror.is_some() {
            return Ok(());
        }
        let (directory, pages) = Mirror::bytes(MIRROR_PAGES_LOG2);
        let shown = self.window.map(target, directory + pages, PageUse::Data)?;
        let mirror = Mirror {
            pages: shown.at,
            directory: shown.at.wrapping_add(pages),
            pages_log2: MIRROR_PAGES_LOG2,
            claim: self.stubs.arena().next(),
        };
        let routine = mirror.claim_routine().map_err(StubError::from)?;
        self.stubs.put(target, &routine.bytes)?;
        let directory = shown.physical.wrapping_add(pages);
        target
            .write_window(directory, &Mirror::NOBODY.to_le_bytes())
            .map_err(StoreError::Write)?;
        self.window.entitle_mirror(
            target,
            MirrorMemory {
                directory,
                pages: shown.physical,
                count: 1 << MIRROR_PAGES_LOG2,
            },
        )?;
        self.mirror = Some(mirror);
        self.mirror_physical = Some(directory);
        Ok(())
    }

    /// Makes the turnstile, if there is none.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn make_turnstile(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if self.turnstile.is_none() {
            let shown = self.window.map_without_memory(target)?;
            let (page, physical) = self.clock_page;
            self.turnstile = Some(Turnstile {
                at: shown.at,
                physical: shown.physical,
                awaited: page.wrapping_add(AWAITED),
                awaited_physical: physical.wrapping_add(AWAITED),
            });
        }
        Ok(())
    }

    /// Where vCPUs wait for readers, once that was made.
    #[must_use]
    pub const fn turnstile(&self) -> Option<Turnstile> {
        self.turnstile
    }

    /// Makes what captures of memory need, if it is not there.
    ///
    /// # Errors
    /// An [`AttachError`]: where there is no place for it, values in registers can still be captured.
    pub fn make_reach(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        if self.reach.is_some() {
            return Ok(());
        }
        let routines = Routines::new(self.window.make_alias(target)?)?;
        let at = self.stubs.put(target, &routines.bytes)?;
        self.reach = Some(routines.at(at));
        Ok(())
    }

    /// Makes what copies of stacks need, if it is not there: the mirror, which has the return addresses of calls that are hooked, too.
    ///
    /// # Errors
    /// An [`AttachError`].
    pub fn make_stacks(
        &mut self,
        target: &mut (impl StoppedTarget + ?Sized),
    ) -> Result<(), AttachError> {
        self.make_mirror(target)?;
        self.make_reach(target)?;
        let (Some(mirror), Some(reach)) = (self.mirror, self.reach.as_mut()) else {
            return Ok(());
        };
        if reach.own_returns.is_none() {
            let arena = self.stubs.arena();
            let (stubs, at) = ((arena.start(), arena.bytes()), arena.next());
            let routine = mirror.own_returns_routine(stubs, at);
            let routine = routine.map_err(StubError::from)?;
            reach.own_returns = Some(self.stubs.put(target, &routine.bytes)?);
        }
        Ok(())
    }

    /// The routines that read the guest's memory, once [`Self::make_reach`] has made them.
    #[must_use]
    pub const fn reach(&self) -> Option<Reach> {
        self.reach
    }

    /// Where the host finds the mirror, once there is one.
    pub(super) fn mirror_memory(&self) -> Option<MirrorMemory> {
        let (mirror, directory) = (self.mirror?, self.mirror_physical?);
        let (_, pages) = Mirror::bytes(mirror.pages_log2);
        Some(MirrorMemory {
            directory,
            pages: Gpa(directory.0.checked_sub(pages)?),
            count: 1 << mirror.pages_log2,
        })
    }

    /// How stubs hook returns, once there is a mirror.
    pub(super) fn hook(&self) -> Option<Hook> {
        let stubs = self.stubs.arena();
        Some(Hook {
            variant: ReturnHook::default(),
            mirror: self.mirror?,
            stubs: stubs.start(),
            stub_bytes: u32::try_from(stubs.bytes()).unwrap_or(u32::MAX >> 1),
        })
    }
}
