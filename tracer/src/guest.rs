//! What tracing needs of a virtual machine: a VMM implements it for machines of its own or of others,
//! `crate::mock` for tests. What a provider cannot do is an error with a name, never a guess.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::page::{Beat, Beats, ClockPage};
use crate::clock::{RunClock, VcpuClocks};
use crate::host_events::HostEvents;
use crate::target::{AtomicTarget, LiveTarget, MemoryError, StoppedTarget, WindowMemory};
use crate::waits::Waits;
use terms::addr::{Gpa, Gva};
use terms::region::Region;
use trace::export::uftrace::PauseSpread;

/// How long the pauses of a guest took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pauses {
    /// From the request until every vCPU stood still.
    pub parked: PauseSpread,
    /// From the request until the last vCPU continued. Pauses that the user asked for are not in it.
    pub released: PauseSpread,
    /// The first of those that `released` counts, in their order: as many as are kept.
    pub each: Vec<Paused>,
}

/// One pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paused {
    /// The host's counter when it was asked for.
    pub counter: u64,
    /// From then until the last vCPU continued.
    pub length: Duration,
}

/// A virtual machine that runs, or could.
pub trait Guest {
    /// Its physical memory while it runs. Clones are the same memory.
    type Memory: SharedMemory + Clone;
    /// All its vCPUs are out of it while this lives.
    type Stopped<'g>: StoppedGuest
    where
        Self: 'g;
    /// Its text may be written while it runs, for as long as this lives.
    type Live<'g>: LiveGuest
    where
        Self: 'g;
    /// Aligned words of its text may be exchanged while it runs.
    type Running<'g>: AtomicTarget
    where
        Self: 'g;

    /// How many vCPUs it has.
    fn vcpus(&self) -> u16;

    /// Its memory.
    fn memory(&self) -> &Self::Memory;

    /// Memory that it and we share, above its RAM: in no memory map of the guest's.
    fn window(&self) -> Region;

    /// Where an address of its kernel lies as it was loaded, and how many bytes follow it in the same segment. The
    /// guest's page tables are not asked.
    fn locate(&self, at: Gva) -> Option<(Gpa, u64)>;

    /// Takes all vCPUs out of the guest, each consistent, until the returned value is dropped.
    ///
    /// # Errors
    /// [`StopError`] names the vCPU in the way; then the guest runs on.
    fn stop(&self) -> Result<Self::Stopped<'_>, StopError>;

    /// Whether somebody else holds it stopped for a longer time.
    fn is_held(&self) -> bool;

    /// Whether it goes on when tracing has ended: then it is not held for as long as a trace is completed.
    fn goes_on(&self) -> bool;

    /// How long the guest was stopped last, from the request until its last vCPU continued. Waits a moment for
    /// that; zero when it is held anyway.
    fn last_pause(&self) -> Duration;

    /// How long its pauses took so far.
    fn pauses(&self) -> Pauses;

    /// Lets its text be written while it runs; none where nobody serves breakpoints.
    ///
    /// # Errors
    /// [`NotLive`] says why it cannot be now.
    fn live(&self) -> Result<Option<Self::Live<'_>>, NotLive>;

    /// Lets aligned words of its text be exchanged while it runs; none where its memory is not mapped here.
    fn running(&self) -> Option<Self::Running<'_>>;

    /// Ticks of its vCPUs' counters in a millisecond.
    fn khz(&self) -> u32;

    /// The counters of its vCPUs.
    fn clocks(&self) -> &Arc<VcpuClocks>;

    /// Whether the vCPUs' counters can be other ones than the host's. Can take some milliseconds.
    fn has_own_clocks(&self) -> bool;

    /// Measures the counter of each vCPU. From then on they are looked at again and again: by its own threads, or in pauses that are made
    /// for something else.
    ///
    /// # Errors
    /// [`RegisterError`] when one cannot be read.
    fn measure_clocks(&self, stopped: &mut Self::Stopped<'_>) -> Result<(), RegisterError>;

    /// Looks at the counters once more, so that nothing that was recorded before is in doubt. Of one that cannot be read that is said
    /// where records end that nothing vouches for.
    fn check_clocks(&self, stopped: &mut Self::Stopped<'_>);

    /// Keeps the clock page at `at` in the window. When this returns, the page holds the time. `continues` when
    /// another keeper has just had it: the time between the two is then looked at as that between two beats.
    ///
    /// # Errors
    /// [`NoClockPage`] says why it cannot be kept.
    fn keep_clock_page(
        &self,
        at: Gpa,
        clock: RunClock,
        beat: Beat,
        beats: Arc<Beats>,
        continues: bool,
    ) -> Result<Box<dyn ClockPage>, NoClockPage>;

    /// Where vCPUs continue that leave the guest at a probe: from a place of its text to a stub. Replaces all of
    /// them; the vCPUs are stopped while the text is changed with them.
    fn set_detours(&self, places: Vec<(Gva, Gva)>);

    /// How often a vCPU has left the guest at a probe.
    fn detours(&self) -> u64;

    /// Where its vCPUs wait for readers, if they can.
    fn waits(&self) -> Option<&Arc<Waits>> {
        None
    }

    /// What the host does with its vCPUs, where that is told.
    fn host_events(&self) -> Option<&Arc<HostEvents>> {
        None
    }
}

/// A guest of which no vCPU runs.
pub trait StoppedGuest: StoppedTarget {
    /// Fills in [`crate::target::VcpuRegisters::kernel_gs_base`], which a stop alone does not, of every vCPU whose
    /// other registers do not tell with which GS base its ring 0 executes.
    ///
    /// # Errors
    /// [`RegisterError`] when one cannot be read.
    fn fetch_kernel_gs_base(&mut self) -> Result<(), RegisterError>;

    /// Where 64-bit system calls enter the kernel, by what a vCPU was told (`IA32_LSTAR`); 0 when it was told
    /// nothing yet.
    ///
    /// # Errors
    /// [`RegisterError`] when it cannot be read.
    fn syscall_entry(&mut self, vcpu: u16) -> Result<Gva, RegisterError>;
}

/// A guest that runs while its text is written.
pub trait LiveGuest: LiveTarget {
    /// The most that one vCPU can have been kept from its work so far.
    fn lost(&self) -> Duration;
}

/// Physical memory that the guest may write at any moment, read and written one whole word at a time.
pub trait SharedMemory: WindowMemory + Debug + Send + Sync + 'static {
    /// A word, and with it all that was written before it was. The address is a multiple of 8.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`].
    fn load(&self, at: Gpa) -> Result<u64, MemoryError>;

    /// Writes a word of the window after all that was written before. The address is a multiple of 8.
    ///
    /// # Errors
    /// [`MemoryError::NotWindow`].
    fn store(&self, at: Gpa, word: u64) -> Result<(), MemoryError>;

    /// Writes `new` to a word of the window, in one step and after all that was written before, if `old` is there. Whether
    /// it was. The address is a multiple of 8.
    ///
    /// # Errors
    /// [`MemoryError::NotWindow`].
    fn exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, MemoryError>;

    /// Copies words: each is seen whole or not at all. The address is a multiple of 8.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`]; then `into` is as it was.
    fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError>;

    /// These bytes are about to be used: memory that is only promised is made real. Only speed depends on it.
    fn populate(&self, at: Gpa, bytes: u64);
}

/// Why a guest could not be stopped. It runs on unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// One vCPU did not get out of the guest in time.
    #[error("vCPU {vcpu} did not pause within {deadline:?}; the guest runs on unchanged")]
    Missed {
        /// Which one.
        vcpu: u16,
        /// The time it had.
        deadline: Duration,
    },
    /// One vCPU's registers could not be read.
    #[error("vCPU {vcpu} paused, but KVM did not give its registers; the guest runs on unchanged")]
    NoRegisters {
        /// Which one.
        vcpu: u16,
    },
    /// Who executes the guest could not be held.
    #[error("the guest cannot be paused: {why}")]
    Refused {
        /// Who, and what was said.
        why: String,
    },
    /// One vCPU's registers are not those of the kernel that is traced.
    #[error(
        "vCPU {vcpu} executed a guest of the guest, or its firmware, whenever it was stopped, for {deadline:?}, so the registers of the traced kernel are not to be had; the guest runs on unchanged; try again when that guest is idle"
    )]
    Nested {
        /// Which one.
        vcpu: u16,
        /// How long it was tried.
        deadline: Duration,
    },
}

/// A register of a stopped vCPU could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a register of the guest cannot be read: {why}")]
pub struct RegisterError {
    /// Which vCPU, which register, and what was said.
    pub why: String,
}

/// Text cannot be written while the guest runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotLive {
    /// Who is missing or did not answer.
    pub why: String,
}

/// The clock page cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NoClockPage {
    /// What is missing.
    pub why: String,
}
