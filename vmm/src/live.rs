//! Changing the guest's text while it runs: the machine as a [`LiveTarget`].
//!
//! **Synchronising** kicks each vCPU out of guest mode once, one after the other's work, without a common
//! stop. On its way back the vCPU's thread executes `iretq`, which serialises the core, and the entry into
//! the guest comes after it in the same thread: whatever the guest fetches from then on is as memory was
//! when the kick was sent, or newer. A vCPU that is parked is out of the guest and executes the same
//! instruction before it continues.
//!
//! **Breakpoints** are served by the guest: the bundled one has a handler that goes back to the
//! breakpoint while a word of its memory says that somebody outside changes its text: it is odd then, and
//! counted up before and after each change, so that the handler can tell whether one came in between while it
//! looked. That word is how we know of the handler.

use std::time::{Duration, Instant};

use image::Image;
use terms::addr::{Gpa, Gva};
use tracer::target::{
    LiveTarget, MemoryError, NotSynchronised, PhysicalMemory, TargetMemory, TextMemory,
    WindowMemory,
};

use crate::all_memory::AllMemory;
use crate::loader::ElfLayout;
use crate::memory::Ram;
use crate::quiesce::Holders;
use crate::scatter::{Piece, loaded_pieces, read_pieces, write_pieces};
use crate::trial::features::software_breakpoints_of_ring3_exit;

/// The word of a guest that serves breakpoints from outside.
const SERVICE: &str = "breakpoints_from_outside";
/// The word says that breakpoints are not served.
const NOT_SERVED: u64 = 1 << 63;

/// Why text cannot be changed while the guest runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The guest does not know of it.
    #[error(
        "live patching is not possible: nobody would serve its breakpoints, for this kernel has no `{SERVICE}` and {}", no_host(*.hands_over)
    )]
    NoService {
        /// Whether this KVM hands breakpoints over to the host, as far as a trial can tell.
        hands_over: bool,
    },
    /// The guest says that it cannot.
    #[error(
        "live patching is not possible: the guest's `{SERVICE}` is {value:#x}, so its handler does not serve breakpoints (with ring=0 it cannot)"
    )]
    Refused {
        /// What the word is.
        value: u64,
    },
    /// The word cannot be reached.
    #[error("the guest's `{SERVICE}` cannot be reached: {0}")]
    Memory(#[from] MemoryError),
    /// A vCPU is nowhere to be found.
    #[error("{0}; nothing was changed")]
    Vcpu(#[from] NotSynchronised),
}

/// Why the host does not serve breakpoints.
fn no_host(hands_over: bool) -> &'static str {
    if hands_over {
        "the host, to which this KVM would hand them over (KVM_GUESTDBG_USE_SW_BP), does not serve them yet"
    } else {
        "this KVM does not hand `int3` over to the host (KVM_GUESTDBG_USE_SW_BP was tried; see vmm doctor)"
    }
}

/// The guest's handler of breakpoints, and the word that switches it.
#[derive(Debug, Clone, Copy)]
pub struct BreakpointService {
    word: Gpa,
}

impl BreakpointService {
    /// Looks for it in the image.
    ///
    /// # Errors
    /// [`LiveError::NoService`].
    pub fn find(image: &Image, layout: &ElfLayout) -> Result<Self, LiveError> {
        let at = image.symbols.address_of(SERVICE);
        let at = at.and_then(|at| layout.locate(at)).filter(|at| at.1 >= 8);
        at.map(|(word, _)| Self { word })
            .ok_or_else(|| LiveError::NoService {
                hands_over: software_breakpoints_of_ring3_exit().unwrap_or_default(),
            })
    }

    /// Has the guest go back to breakpoints.
    fn begin(self, ram: &Ram) -> Result<u64, LiveError> {
        let mut bytes = [0; 8];
        ram.read(self.word, &mut bytes)?;
        let value = u64::from_le_bytes(bytes);
        if value & NOT_SERVED != 0 || value % 2 != 0 {
            return Err(LiveError::Refused { value });
        }
        ram.write(self.word, &(value + 1).to_le_bytes())?;
        Ok(value)
    }

    fn end(self, ram: &Ram, before: u64) {
        let after = (before + 2) & !NOT_SERVED;
        // It could be written before, and memory does not go away.
        let _ = ram.write(self.word, &after.to_le_bytes());
    }
}

/// A machine whose text may be written while its vCPUs run.
#[derive(Debug)]
pub struct Live<'m> {
    holders: &'m Holders,
    ram: &'m Ram,
    service: BreakpointService,
    /// What its word was.
    before: u64,
    /// Where its text was loaded.
    layout: &'m ElfLayout,
    patience: Duration,
    /// What each vCPU has lost before.
    away: Vec<Duration>,
}

impl<'m> Live<'m> {
    pub(crate) fn begin(
        holders: &'m Holders,
        ram: &'m Ram,
        layout: &'m ElfLayout,
        service: BreakpointService,
        patience: Duration,
    ) -> Result<Self, LiveError> {
        let before = service.begin(ram)?;
        let away = holders.away();
        let mut live = Self {
            holders,
            ram,
            service,
            before,
            layout,
            patience,
            away,
        };
        live.synchronise()?;
        Ok(live)
    }

    /// The most that one vCPU can have been kept from its work so far: from each kick until it was on its way
    /// again. What it spent at breakpoints is not in it.
    #[must_use]
    pub fn lost(&self) -> Duration {
        let now = self.holders.away();
        let lost = now.iter().zip(&self.away);
        lost.map(|(now, before)| now.saturating_sub(*before))
            .max()
            .unwrap_or_default()
    }
}

impl Live<'_> {
    /// Where so many bytes of what was loaded lie.
    fn pieces(&self, at: Gva, length: usize) -> Result<Vec<Piece>, MemoryError> {
        loaded_pieces(at, length, |here| self.layout.locate(here))
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.service.end(self.ram, self.before);
    }
}

impl PhysicalMemory for Live<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.ram.read_physical(at, into)
    }
}

impl WindowMemory for Live<'_> {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ram.write_window(at, bytes)
    }
}

impl TargetMemory for Live<'_> {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        read_pieces(self.ram, &self.pieces(at, into.len())?, into)
    }
}

impl TextMemory for Live<'_> {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ram.write(at, bytes)
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        write_pieces(&self.ram, &self.pieces(at, bytes.len())?, bytes)
    }
}

impl LiveTarget for Live<'_> {
    fn synchronise(&mut self) -> Result<(), NotSynchronised> {
        let deadline = Instant::now() + self.patience;
        let milliseconds = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        let passed = self.holders.pass(deadline);
        passed.map_err(|vcpu| NotSynchronised { vcpu, milliseconds })
    }
}
