//! The guest's physical memory: RAM, and above it the window region that no memory map mentions.
//!
//! Two capabilities: a [`Memory`] reads all of it and writes the window, and everybody who needs it has a clone; the one
//! [`Ram`] writes the rest, and the machine has it: it lends it to who has stopped the guest, or serves its breakpoints.
//!
//! All access is by volatile copy: no reference into live guest memory exists anywhere.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terms::addr::Gpa;
use terms::region::Region;
use tracer::target::{MemoryError, PhysicalMemory, WindowMemory};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap, MmapRegion, VolatileMemory, VolatileSlice,
};

use crate::all_memory::AllMemory;
use crate::layout;

/// Bytes of a page of the host.
const PAGE: usize = 4096;

/// Why the guest's memory could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum CreateMemoryError {
    /// Fewer MiB than any guest could use.
    #[error(
        "--memory {mib}: a guest needs at least {} MiB",
        layout::MEMORY_MIN_MIB
    )]
    TooSmall {
        /// What was asked for.
        mib: u64,
    },
    /// More than this host could ever back.
    #[error(
        "--memory {mib}: this host has {host_mib} MiB in all; ask for less than that \
         (the guest's RAM is ordinary memory of this process)"
    )]
    MoreThanHost {
        /// What was asked for.
        mib: u64,
        /// What the host has.
        host_mib: u64,
    },
    /// The kernel refused the mapping.
    #[error(
        "cannot reserve {bytes} bytes of address space for the guest at {at}: ask for less with --memory, or raise `ulimit -v`"
    )]
    Map {
        /// Where in the guest.
        at: Gpa,
        /// How much.
        bytes: u64,
        /// What mmap said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// All of the guest's memory, to be written: text and page tables, too. There is one for each machine.
#[derive(Debug)]
pub struct Ram {
    memory: Memory,
}

impl Ram {
    /// Reserves `mib` MiB of RAM and a window region of `window_bytes`. Pages cost nothing until
    /// they are touched.
    ///
    /// # Errors
    /// [`CreateMemoryError`] when the size makes no sense on this host or mmap fails.
    pub fn create(mib: u64, window_bytes: u64) -> Result<Self, CreateMemoryError> {
        let memory = Memory::create(mib, window_bytes)?;
        Ok(Self { memory })
    }

    /// Only what lies in files: a window, which is all of `file`, and parts of the RAM. The other parts are elsewhere.
    ///
    /// # Errors
    /// [`CreateMemoryError::Map`].
    pub fn in_files(
        file: File,
        window: Window,
        ram: Vec<GuestRegionMmap>,
    ) -> Result<Self, CreateMemoryError> {
        let Window { start, bytes } = window;
        let ram_bytes = ram.iter().map(GuestMemoryRegion::len).sum();
        let mut regions = ram;
        regions.push(map_file(file, 0, start, bytes)?);
        let map = GuestMemoryMmap::from_regions(regions);
        let map = Arc::new(map.map_err(|source| map_error(start, bytes, source))?);
        let memory = Memory {
            map,
            ram_bytes,
            window,
        };
        Ok(Self { memory })
    }

    /// What everybody may have.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The mappings, for the loader.
    pub(crate) fn map(&self) -> &GuestMemoryMmap {
        &self.memory.map
    }

    /// Whether the word at `at` is the guest's own and aligned.
    pub(crate) fn can_exchange(&self, at: Gpa) -> bool {
        let bytes = size_of::<u64>();
        let is_window = self.memory.is_window(at, bytes);
        at.0.is_multiple_of(8) && !is_window && self.memory.contains(at, bytes)
    }

    /// Stores `new` in the word at `at`, by one atomic operation, if `old` is there. Says what was there.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when it is not an aligned word of the guest's RAM that is mapped here.
    pub(crate) fn exchange(&self, at: Gpa, old: u64, new: u64) -> Result<u64, MemoryError> {
        let bytes = size_of::<u64>();
        let refused = || not_memory(at, bytes);
        if !self.can_exchange(at) {
            return Err(refused());
        }
        let slice = self.memory.map.get_slice(GuestAddress(at.0), bytes);
        let slice = slice.map_err(|_| refused())?;
        let word = slice.get_atomic_ref::<AtomicU64>(0);
        let word = word.map_err(|_| refused())?;
        let swapped = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        Ok(swapped.unwrap_or_else(|found| found))
    }

    /// Copies guest memory at `at` into `into`.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when any byte lies outside the guest's memory.
    pub fn read(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }

    /// Copies `bytes` into guest memory at `at`.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when any byte lies outside the guest's memory; then nothing was written.
    pub fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, bytes)
    }
}

impl PhysicalMemory for Ram {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl AllMemory for Ram {
    fn ram(&self) -> Vec<Region> {
        self.memory.ram()
    }

    fn contains(&self, at: Gpa, length: usize) -> bool {
        self.memory.contains(at, length)
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.write(at, bytes)
    }

    fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.clone().write_window(at, bytes)
    }
}

/// The guest's RAM, to be read, and its window region. Clones share the same memory.
#[derive(Debug, Clone)]
pub struct Memory {
    map: Arc<GuestMemoryMmap>,
    ram_bytes: u64,
    window: Window,
}

/// Where the window region is: guest physical memory for stubs and rings, outside every memory map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First address.
    pub start: Gpa,
    /// Size in bytes.
    pub bytes: u64,
}

impl Memory {
    fn create(mib: u64, window_bytes: u64) -> Result<Self, CreateMemoryError> {
        if mib < layout::MEMORY_MIN_MIB {
            return Err(CreateMemoryError::TooSmall { mib });
        }
        if let Some(host_mib) = host_memory_mib().filter(|host| mib > *host) {
            return Err(CreateMemoryError::MoreThanHost { mib, host_mib });
        }
        let ram_bytes = mib.saturating_mul(layout::MIB);
        let window = Window {
            start: layout::window_start(ram_bytes),
            bytes: window_bytes,
        };
        let mut regions = Vec::new();
        for (start, length) in layout::ram_ranges(ram_bytes) {
            regions.push(reserve(start, length)?);
        }
        regions.push(reserve(window.start, window_bytes)?);
        let map = GuestMemoryMmap::from_regions(regions)
            .map_err(|source| map_error(Gpa(0), ram_bytes, source))?;
        let memory = Self {
            map: Arc::new(map),
            ram_bytes,
            window,
        };
        memory.keep_to_ourselves();
        Ok(memory)
    }

    /// How much RAM the guest has.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        self.ram_bytes
    }

    /// Where the window region is.
    #[must_use]
    pub fn window(&self) -> Window {
        self.window
    }

    /// A word, and with it all that was written before it was.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`].
    pub(crate) fn load_word(&self, at: Gpa) -> Result<u64, MemoryError> {
        let word = self.map.load(GuestAddress(at.0), Ordering::Acquire);
        word.map_err(|_| not_memory(at, size_of::<u64>()))
    }

    /// Copies words: each is seen whole or not at all.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`]; then `into` is as it was.
    pub(crate) fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError> {
        let length = size_of_val(into);
        let refused = || not_memory(at, length);
        let slice = self.map.get_slice(GuestAddress(at.0), length);
        let slice = slice.map_err(|_| refused())?;
        let words = slice.get_array_ref::<u64>(0, into.len());
        // Word by word, volatile.
        words.map_err(|_| refused())?.copy_to(into);
        Ok(())
    }

    /// A part of the window, to be written by volatile or atomic operations only.
    ///
    /// # Errors
    /// [`MemoryError::NotWindow`] when it is not all of the window.
    pub(crate) fn window_slice(
        &self,
        at: Gpa,
        length: usize,
    ) -> Result<VolatileSlice<'_>, MemoryError> {
        let refused = || not_window(at, length);
        if !self.is_window(at, length) {
            return Err(refused());
        }
        let slice = self.map.get_slice(GuestAddress(at.0), length);
        slice.map_err(|_| refused())
    }

    fn is_window(&self, at: Gpa, length: usize) -> bool {
        let Window { start, bytes } = self.window;
        Region { start, bytes }.holds(at, length as u64)
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        let refused = not_memory(at, bytes.len());
        if !self.contains(at, bytes.len()) {
            return Err(refused);
        }
        let there = GuestAddress(at.0);
        // A word is written by one store: the guest may be reading it.
        let written = match <[u8; 8]>::try_from(bytes) {
            Ok(word) if at.0.is_multiple_of(8) => {
                let word = u64::from_ne_bytes(word);
                self.map.store(word, there, Ordering::Release)
            }
            _ => self.map.write_slice(bytes, there),
        };
        written.map_err(|_| refused)
    }

    /// Every region as (guest address, bytes, host address), in address order.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (Gpa, u64, u64)> + '_ {
        self.map.iter().map(|region| {
            let start = Gpa(region.start_addr().0);
            (start, region.len(), region.as_ptr() as u64)
        })
    }

    /// All of it but the window.
    #[must_use]
    pub fn ram(&self) -> Vec<Region> {
        let own = self.regions();
        let own = own.filter(|(start, ..)| *start != self.window.start);
        own.map(|(start, bytes, _)| Region { start, bytes })
            .collect()
    }

    /// The host address of `length` bytes at `at`, when they lie in one region. For the ring
    /// reader and the clock page, which access it by volatile or atomic operations only.
    #[must_use]
    pub(crate) fn host_address(&self, at: Gpa, length: u64) -> Option<*mut u8> {
        let end = at.checked_add(length)?;
        self.regions().find_map(|(start, bytes, host)| {
            let inside = at >= start && end.0 <= start.0.saturating_add(bytes);
            inside.then(|| (host + (at.0 - start.0)) as *mut u8)
        })
    }

    /// How much of the window the host has backed with memory; none where it does not say.
    #[must_use]
    pub fn backed_window(&self) -> Option<u64> {
        let Window { start, bytes } = self.window;
        let at = self.host_address(start, bytes)?;
        let length = usize::try_from(bytes).ok()?;
        let mut pages = vec![0_u8; length.div_ceil(PAGE)];
        // SAFETY: the range is a mapping that `self` owns, and there is a byte for each of its pages. Nothing in it changes.
        let failed = unsafe { libc::mincore(at.cast(), length, pages.as_mut_ptr()) };
        let backed = pages.iter().filter(|page| **page & 1 != 0).count();
        (failed == 0).then_some((backed * PAGE) as u64)
    }

    /// Has the host back `bytes` at `at` with memory now, in large pages where it can, so that the
    /// guest's first writes do not each cost a fault. Only speed depends on it.
    pub fn populate(&self, at: Gpa, bytes: u64) {
        self.advise(at, bytes, &[libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE]);
    }

    /// Has the host leave all of it out of core dumps, and out of processes that we start: between fork and exec they would share
    /// it, and each page that the guest writes then would be copied.
    fn keep_to_ourselves(&self) {
        for (start, bytes, _) in self.regions() {
            self.advise(start, bytes, &[libc::MADV_DONTDUMP, libc::MADV_DONTFORK]);
        }
    }

    /// Tells the host how the range will be used. What it refuses is logged.
    fn advise(&self, at: Gpa, bytes: u64, advices: &[i32]) {
        let (Some(start), Ok(length)) = (self.host_address(at, bytes), usize::try_from(bytes))
        else {
            return;
        };
        for &advice in advices {
            // SAFETY: the range lies in one mapping that `self` owns; none of the advices that are given here changes
            // what the memory holds.
            let refused = unsafe { libc::madvise(start.cast(), length, advice) } != 0;
            if refused {
                log::debug!("madvise {advice}: {}", std::io::Error::last_os_error());
            }
        }
    }

    /// Whether all of the range is memory.
    #[must_use]
    pub fn contains(&self, at: Gpa, length: usize) -> bool {
        self.map.check_range(GuestAddress(at.0), length)
    }
}

impl PhysicalMemory for Memory {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.map
            .read_slice(into, GuestAddress(at.0))
            .map_err(|_| not_memory(at, into.len()))
    }
}

impl WindowMemory for Memory {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.is_window(at, bytes.len()) {
            true => self.write(at, bytes),
            false => Err(not_window(at, bytes.len())),
        }
    }
}

/// A part of a file as guest memory at `start`.
///
/// # Errors
/// [`CreateMemoryError::Map`], also when the file is shorter.
pub(crate) fn map_file(
    file: File,
    offset: u64,
    start: Gpa,
    bytes: u64,
) -> Result<GuestRegionMmap, CreateMemoryError> {
    let length = usize::try_from(bytes).map_err(|source| map_error(start, bytes, source))?;
    let mapping = MmapRegion::from_file(FileOffset::new(file, offset), length)
        .map_err(|source| map_error(start, bytes, source))?;
    let region = GuestRegionMmap::new(mapping, GuestAddress(start.0));
    region.ok_or_else(|| map_error(start, bytes, "it passes the end"))
}

const fn not_memory(address: Gpa, length: usize) -> MemoryError {
    MemoryError::NotMemory { address, length }
}

const fn not_window(address: Gpa, length: usize) -> MemoryError {
    MemoryError::NotWindow { address, length }
}

fn reserve(start: Gpa, bytes: u64) -> Result<GuestRegionMmap, CreateMemoryError> {
    let length = usize::try_from(bytes).map_err(|source| map_error(start, bytes, source))?;
    let mapping: MmapRegion = MmapRegionBuilder::new(length)
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE)
        .build()
        .map_err(|source| map_error(start, bytes, source))?;
    GuestRegionMmap::new(mapping, GuestAddress(start.0)).ok_or_else(|| {
        map_error(
            start,
            bytes,
            "the range passes the end of the address space",
        )
    })
}

fn map_error(
    at: Gpa,
    bytes: u64,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> CreateMemoryError {
    CreateMemoryError::Map {
        at,
        bytes,
        source: source.into(),
    }
}

/// How much of this host's memory this process has; none where `/proc` does not say.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(PAGE as u64))
}

/// What the host has in all, in MiB; `None` where `/proc` does not say.
fn host_memory_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Ram {
        Ram::create(16, layout::MIB).unwrap()
    }

    /// The range of a mapping, of the line that its entry in `smaps` begins with.
    fn mapped(line: &str) -> Option<std::ops::Range<u64>> {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(address(start)?..address(end)?)
    }

    #[test]
    fn no_core_and_no_process_that_is_started_has_any_of_it() {
        let ram = small();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        for (_, _, host) in ram.memory().regions() {
            let is_there = |line: &&str| mapped(line).is_some_and(|range| range.contains(&host));
            let mut lines = maps.lines().skip_while(|line| !is_there(line));
            let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
            let flags: Vec<_> = flags.unwrap().split_whitespace().collect();
            // As the kernel writes them: not copied, not dumped.
            assert!(
                ["dc", "dd"].iter().all(|flag| flags.contains(flag)),
                "{flags:?}"
            );
        }
    }

    /// Who has a clone can write the window, and nothing else.
    #[test]
    fn a_clone_writes_the_window_alone() {
        use tracer::guest::SharedMemory;

        let ram = small();
        let mut memory = ram.memory().clone();
        let Window { start, bytes } = memory.window();
        memory.write_window(start, b"exotrace").unwrap();
        let mut back = [0; 8];
        ram.read(start, &mut back).unwrap();
        assert_eq!(&back, b"exotrace");
        let end = start.wrapping_add(bytes);
        for at in [Gpa(0), Gpa(0x1000), Gpa(start.0 - 4), Gpa(end.0 - 4), end] {
            let refused = Err(MemoryError::NotWindow {
                address: at,
                length: 8,
            });
            assert_eq!(memory.write_window(at, &[1; 8]), refused);
            assert_eq!(memory.store(at, 1), refused);
        }
        assert_eq!(memory.load(start), Ok(u64::from_le_bytes(*b"exotrace")));
        memory.store(start, 7).unwrap();
        assert_eq!(memory.load(start), Ok(7));
    }

    #[test]
    fn ram_and_window_hold_what_was_written() {
        let ram = small();
        for at in [Gpa(0x1000), ram.memory().window().start] {
            ram.write(at, b"exotrace").unwrap();
            let mut back = [0; 8];
            ram.read(at, &mut back).unwrap();
            assert_eq!(&back, b"exotrace");
        }
    }

    #[test]
    fn a_write_over_the_end_changes_nothing() {
        let ram = small();
        let last = Gpa(16 * layout::MIB - 4);
        assert_eq!(
            ram.write(last, &[1; 8]),
            Err(MemoryError::NotMemory {
                address: last,
                length: 8
            })
        );
        let mut back = [9; 4];
        ram.read(last, &mut back).unwrap();
        assert_eq!(back, [0; 4]);
    }

    #[test]
    fn the_hole_is_no_memory() {
        let ram = small();
        let memory = ram.memory();
        assert!(
            memory
                .read_physical(Gpa(16 * layout::MIB), &mut [0])
                .is_err()
        );
        assert!(
            memory
                .read_physical(Gpa(u64::MAX - 1), &mut [0; 4])
                .is_err()
        );
        assert!(memory.host_address(Gpa(u64::MAX), 2).is_none());
    }

    #[test]
    fn absurd_sizes_are_refused_by_name() {
        let text = Ram::create(0, 0).unwrap_err().to_string();
        assert!(text.contains("--memory 0"), "{text}");
        let text = Ram::create(1 << 40, 0).unwrap_err().to_string();
        assert!(text.contains("this host has"), "{text}");
    }
}
