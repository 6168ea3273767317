//! What the tracer needs of the traced system. The provider (for KVM: the `vmm` crate) implements
//! these traits; `MockTarget` implements them for tests.
//!
//! ```text
//!   PhysicalMemory   read anything by physical address              whoever looks
//!   WindowMemory     and write what guest and host share            whoever makes stubs and rings, while the guest runs
//!   TargetMemory     read anything by the guest's own addresses
//!   TextMemory       and write text, page tables, data: anything    by a proof alone: StoppedTarget or LiveTarget
//!   AtomicTarget     and exchange one aligned word of text          by a proof: nothing else can be written through it
//! ```
//!
//! Two capabilities, two types: who has the window cannot write text, for there is nothing to call:
//!
//! ```compile_fail,E0599
//! use terms::addr::Gpa;
//! use tracer::target::WindowMemory;
//!
//! fn patch(memory: &mut impl WindowMemory) {
//!     let _ = memory.write_physical(Gpa(0x10_0000), &[0xcc]);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! use terms::addr::Gva;
//! use tracer::guest::Guest;
//! use tracer::target::TextMemory;
//!
//! fn patch(guest: &impl Guest) {
//!     let _ = guest.memory().clone().write(Gva(0x10_0000), &[0xcc]);
//! }
//! ```
//!
//! Who may exchange words while the guest runs can do nothing but that:
//!
//! ```compile_fail,E0599
//! use terms::addr::Gva;
//! use tracer::target::{AtomicTarget, TextMemory};
//!
//! fn patch(running: &mut impl AtomicTarget) {
//!     let _ = running.write(Gva(0x10_0000), &[0xcc]);
//! }
//! ```
//!
//! ```compile_fail,E0599
//! use terms::addr::Gpa;
//! use tracer::target::{AtomicTarget, TextMemory, WindowMemory};
//!
//! fn patch(running: &mut impl AtomicTarget) {
//!     let _ = running.write_window(Gpa(0x10_0000), &[0xcc]);
//! }
//! ```
//!
//! And who has the guest's memory cannot exchange them:
//!
//! ```compile_fail,E0599
//! use terms::addr::Gva;
//! use tracer::guest::Guest;
//! use tracer::target::AtomicTarget;
//!
//! fn patch(guest: &impl Guest) {
//!     let _ = guest.memory().clone().exchange(Gva(0x10_0000), 0, 1);
//! }
//! ```
//!
//! Who has stopped the guest can write what he likes:
//!
//! ```
//! use terms::addr::Gva;
//! use tracer::guest::Guest;
//! use tracer::target::TextMemory;
//!
//! fn patch(guest: &impl Guest) -> Option<()> {
//!     guest.stop().ok()?.write(Gva(0x10_0000), &[0xcc]).ok()
//! }
//! ```

use terms::addr::{Gpa, Gva};
use terms::region::Region;

/// Why guest memory could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The guest's page tables map nothing there.
    #[error("guest address {address} is not mapped (bytes {address}..+{length})")]
    NotMapped {
        /// First address of the access.
        address: Gva,
        /// Bytes asked for.
        length: usize,
    },
    /// The physical address is in no memory of the guest.
    #[error("guest physical address {address} is not memory (bytes {address}..+{length})")]
    NotMemory {
        /// First address of the access.
        address: Gpa,
        /// Bytes asked for.
        length: usize,
    },
    /// The physical address is not in the window's region.
    #[error("guest physical address {address} is not in the window (bytes {address}..+{length})")]
    NotWindow {
        /// First address of the access.
        address: Gpa,
        /// Bytes asked for.
        length: usize,
    },
}

/// Guest physical memory, to be read. Accesses cross no hole: all of it or an error.
pub trait PhysicalMemory {
    /// Copies guest memory at `at` into `into`.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when any byte lies outside the guest's memory.
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError>;
}

impl<T: PhysicalMemory + ?Sized> PhysicalMemory for &T {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        (**self).read_physical(at, into)
    }
}

/// The window's region, which the host shares with the guest and no memory map mentions: it can be written while the guest
/// runs, for nothing of the guest's own is there.
pub trait WindowMemory: PhysicalMemory {
    /// Copies `bytes` into the window's region at `at`.
    ///
    /// # Errors
    /// [`MemoryError::NotWindow`] when any byte lies outside of it; then nothing was written.
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError>;
}

/// Guest memory by virtual address, through the guest's own translation, to be read.
pub trait TargetMemory {
    /// Copies guest memory at `at` into `into`.
    ///
    /// # Errors
    /// A [`MemoryError`] that names the first byte that could not be read.
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError>;

    /// A word of 64 bits.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_word(&self, at: Gva) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The address that lies there.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_address(&self, at: Gva) -> Result<Gva, MemoryError> {
        self.read_word(at).map(Gva)
    }

    /// So many words of 64 bits that lie one after the other.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_words(&self, at: Gva, count: usize) -> Result<Vec<u64>, MemoryError> {
        let mut bytes = vec![0; 8 * count];
        self.read(at, &mut bytes)?;
        let words = bytes.as_chunks::<8>().0.iter();
        Ok(words.map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// The same of many places at once, where that is less work.
    ///
    /// # Errors
    /// A [`MemoryError`] about the first, or another, that could not be read.
    fn read_all(&self, places: &mut [(Gva, &mut [u8])]) -> Result<(), MemoryError> {
        let mut all = places.iter_mut();
        all.try_for_each(|(at, into)| self.read(*at, into))
    }
}

/// All of the guest's memory, to be written. Only what proves that text may be written now implements it: a
/// [`StoppedTarget`] or a [`LiveTarget`].
pub trait TextMemory: TargetMemory + WindowMemory {
    /// Copies `bytes` into guest memory at `at`: into its page tables, for example.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when any byte lies outside the guest's memory; then nothing was
    /// written.
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError>;

    /// Copies `bytes` into guest memory at `at`, whatever the guest's write protection says.
    ///
    /// # Errors
    /// A [`MemoryError`]; then nothing was written.
    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError>;

    /// The same of many places at once, where that is less work.
    ///
    /// # Errors
    /// A [`MemoryError`]; then some may have been written.
    fn write_all(&mut self, places: &[(Gva, &[u8])]) -> Result<(), MemoryError> {
        let mut all = places.iter();
        all.try_for_each(|(at, bytes)| self.write(*at, bytes))
    }
}

/// A target of which no vCPU can execute an instruction while this value lives, and every vCPU is
/// *consistent* (no half-done I/O). Text is written through nothing else: the borrow is the proof
/// that the machine is stopped.
pub trait StoppedTarget: TextMemory {
    /// The registers of every vCPU, indexed by vCPU number. Empty before the first one has started.
    fn vcpus(&self) -> &[VcpuRegisters];

    /// Those of the vCPUs that can have rings: of the first ones, without any that has come since the guest was found.
    fn recorded(&self) -> &[VcpuRegisters] {
        self.vcpus()
    }

    /// All memory that the guest has, whether anybody has touched it or not. Where it may have more than is known all that it could
    /// have is among it.
    fn ram(&self) -> Vec<Region>;

    /// What of it can hold a word that a vCPU comes back to: nobody has touched the rest. What is among it and cannot be read is told by
    /// reading it.
    fn touched(&self) -> Vec<Region> {
        self.ram()
    }

    /// Whether its processors have pages of 1 GiB.
    fn has_gigabyte_pages(&self) -> bool;

    /// Lets the guest reach `part` of the window's region. What has not been provided is no memory for it, whatever its
    /// page tables say.
    ///
    /// # Errors
    /// [`NotProvided`]; then the guest does not reach it.
    fn provide(&mut self, part: Region) -> Result<(), NotProvided>;
}

/// The guest did not get memory of the window's region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the host does not let the guest have {bytes} bytes of tracing memory at {at}: {why}")]
pub struct NotProvided {
    /// Where.
    pub at: Gpa,
    /// How much.
    pub bytes: u64,
    /// What the host said.
    pub why: String,
}

/// A target whose text is changed while its vCPUs run: breakpoint, rest, first byte.
///
/// This is the other proof, beside [`StoppedTarget`], that text can be written. It may be implemented only
/// where *somebody serves the breakpoints*: a vCPU that executes an `int3` at a site that is being changed
/// comes back to the site, by the guest's own handler or by the host, until another instruction
/// stands there.
///
/// Nobody can say with which page tables its vCPUs run: before the answer could be used they may run with others,
/// and what was a table may be data. So text is where it was loaded, which a pause has shown (`Guest::locate`).
pub trait LiveTarget: TextMemory {
    /// Returns when every vCPU has passed a serialising point since the call: whatever it executes
    /// afterwards it has fetched after every write that was made before.
    ///
    /// # Errors
    /// [`NotSynchronised`] names the vCPU that did not come by.
    fn synchronise(&mut self) -> Result<(), NotSynchronised>;
}

/// A target whose text is changed while its vCPUs run, one naturally aligned quadword at a time.
///
/// This is the third proof, and the weakest: nobody is stopped, nobody is asked to fetch anew. So it can do one thing
/// alone: compare a word and store another by one atomic operation, which the guest's own patching cannot come
/// between. It may be implemented only where the guest's memory is mapped here, and used only where the processor promises
/// that who executes an instruction in that word meanwhile executes the old one or the new one (AMD64 Architecture
/// Programmer's Manual, volume 2, 7.6.1: asynchronous modification).
pub trait AtomicTarget: TargetMemory + PhysicalMemory {
    /// Whether the word that has this byte can be exchanged.
    fn reaches(&self, at: Gva) -> bool;

    /// Stores `new` in the word at `at`, a multiple of 8, if `old` is there. Says what was there: the word was stored if
    /// that is `old`.
    ///
    /// # Errors
    /// A [`MemoryError`]; then nothing was written.
    fn exchange(&mut self, at: Gva, old: u64, new: u64) -> Result<u64, MemoryError>;
}

/// A vCPU did not pass a serialising point in time: it may execute what it fetched long ago.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vCPU {vcpu} did not leave the guest within {milliseconds} ms")]
pub struct NotSynchronised {
    /// Which one.
    pub vcpu: u16,
    /// The time that it had.
    pub milliseconds: u64,
}

/// The registers of one stopped vCPU that tracing decisions need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VcpuRegisters {
    /// Whether it executes 64-bit code. One that waits to be started does not, for the first time or again: it can
    /// execute nothing that is traced, and its other registers mean nothing.
    pub online: bool,
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer, or whatever a function without one keeps in its register.
    pub rbp: u64,
    /// The first argument of a function that is about to run (System V ABI).
    pub rdi: u64,
    /// Current privilege level, 0..=3.
    pub cpl: u8,
    /// Control register 0.
    pub cr0: u64,
    /// Page-table base, with its low control bits.
    pub cr3: u64,
    /// Control register 4.
    pub cr4: u64,
    /// Extended feature enable register.
    pub efer: u64,
    /// The GS base in force.
    pub gs_base: u64,
    /// `IA32_KERNEL_GS_BASE`, what `swapgs` would load. `None` when it was not asked for: reading
    /// it can lengthen a pause by microseconds.
    pub kernel_gs_base: Option<u64>,
}

impl VcpuRegisters {
    /// The GS base with which ring 0 executes on this vCPU: the one in force, or the one that `swapgs`
    /// will bring back when ring 3 has its own now. `None` when only [`Self::kernel_gs_base`] could
    /// tell, and was not asked for.
    ///
    /// A kernel that swaps keeps its base in the upper half of the address space, so a lower one in
    /// ring 0 means that the vCPU is between its entry into the kernel and `swapgs`.
    #[must_use]
    pub fn supervisor_gs_base(&self) -> Option<u64> {
        let is_swapped_out = self.cpl == 3 || self.gs_base >> 63 == 0;
        if is_swapped_out {
            self.kernel_gs_base
        } else {
            Some(self.gs_base)
        }
    }
}
