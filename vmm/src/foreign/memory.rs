//! The memory of another VMM's guest: its RAM, which lies in that process and is copied from there, and what is mapped here as
//! well: our window, and what of the RAM lies in files that can be (`backing.rs`).

use std::cell::RefCell;
use std::sync::Arc;

use terms::addr::Gpa;
use terms::region::Region;
use tracer::guest::SharedMemory;
use tracer::target::{MemoryError, PhysicalMemory, WindowMemory};

use super::error::ForeignError;
use super::remote;
use crate::all_memory::AllMemory;
use crate::memory::{Memory, Ram};

/// RAM of the guest, and where its VMM has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Where the guest has it.
    pub guest: Region,
    /// Where the VMM has it.
    pub host: u64,
}

/// The RAM of a guest, in its VMM.
#[derive(Debug, Clone)]
pub struct RemoteRam {
    pid: i32,
    ranges: Arc<[Range]>,
}

impl RemoteRam {
    /// RAM of a guest of process `pid`.
    #[must_use]
    pub fn new(pid: i32, ranges: impl Into<Arc<[Range]>>) -> Self {
        let ranges = ranges.into();
        Self { pid, ranges }
    }

    /// Its pieces.
    pub(super) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// How much it is.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.guest.bytes).sum()
    }

    /// Where it ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        let ends = self.ranges.iter().map(|range| range.guest.end());
        ends.max().unwrap_or_default()
    }

    /// Where the VMM has `length` bytes at `at`, all of which are in one range.
    fn host(&self, at: Gpa, length: usize) -> Result<u64, MemoryError> {
        let length_u64 = length as u64;
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|range| range.guest.holds(at, length_u64));
        let range = range.ok_or_else(|| not_memory(at, length))?;
        Ok(range.host + (at.0 - range.guest.start.0))
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        let there = self.host(at, bytes.len())?;
        let written = remote::write(self.pid, there, bytes);
        written.map_err(|error| unreached(at, bytes.len(), &error))
    }
}

/// What is not RAM is refused, as the window is: text is in neither.
impl RemoteRam {
    fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
        let mut pieces = Vec::with_capacity(places.len());
        let first = places.first().map_or(Gpa(0), |(at, _)| *at);
        for (at, into) in places.iter_mut() {
            pieces.push((self.host(*at, into.len())?, &mut **into));
        }
        let length = pieces.iter().map(|(_, into)| into.len()).sum();
        remote::read_all(self.pid, &mut pieces).map_err(|error| unreached(first, length, &error))
    }

    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        let mut pieces = Vec::with_capacity(places.len());
        let first = places.first().map_or(Gpa(0), |(at, _)| *at);
        for (at, bytes) in places {
            pieces.push((self.host(*at, bytes.len())?, *bytes));
        }
        let length = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        remote::write_all(self.pid, &pieces).map_err(|error| unreached(first, length, &error))
    }
}

impl PhysicalMemory for RemoteRam {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let there = self.host(at, into.len())?;
        let length = into.len();
        remote::read(self.pid, there, into).map_err(|error| unreached(at, length, &error))
    }
}

/// The guest's RAM, to be read, and its window. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct ForeignMemory {
    ram: RemoteRam,
    mapped: Memory,
}

impl ForeignMemory {
    /// Its RAM.
    #[must_use]
    pub const fn ram(&self) -> &RemoteRam {
        &self.ram
    }

    /// What of it is mapped here: the window, and some of the RAM.
    #[must_use]
    pub const fn mapped(&self) -> &Memory {
        &self.mapped
    }
}

impl PhysicalMemory for ForeignMemory {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        match self.mapped.contains(at, into.len()) {
            true => self.mapped.read_physical(at, into),
            false => self.ram.read_physical(at, into),
        }
    }
}

impl WindowMemory for ForeignMemory {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.mapped.write_window(at, bytes)
    }
}

impl SharedMemory for ForeignMemory {
    fn load(&self, at: Gpa) -> Result<u64, MemoryError> {
        if self.mapped.contains(at, size_of::<u64>()) {
            return SharedMemory::load(&self.mapped, at);
        }
        let mut word = [0; 8];
        self.ram.read_physical(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn store(&self, at: Gpa, word: u64) -> Result<(), MemoryError> {
        SharedMemory::store(&self.mapped, at, word)
    }

    fn exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, MemoryError> {
        SharedMemory::exchange(&self.mapped, at, old, new)
    }

    fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError> {
        SharedMemory::copy_words(&self.mapped, at, into)
    }

    fn populate(&self, at: Gpa, bytes: u64) {
        SharedMemory::populate(&self.mapped, at, bytes);
    }
}

/// All of it, to be written: there is one for each guest.
#[derive(Debug)]
pub(crate) struct ForeignRam {
    memory: ForeignMemory,
    mapped: Ram,
    /// The pages that the last pause has read.
    wanted: RefCell<Vec<Gpa>>,
}

impl ForeignRam {
    /// `ram`, of which `mapped` has some parts, and beside it the window.
    pub fn new(ram: RemoteRam, mapped: Ram) -> Self {
        let memory = ForeignMemory {
            ram,
            mapped: mapped.memory().clone(),
        };
        Self {
            memory,
            mapped,
            wanted: RefCell::default(),
        }
    }

    /// The pages that the last pause has read, once.
    pub fn take_wanted(&self) -> Vec<Gpa> {
        self.wanted.take()
    }

    /// A pause that has read these pages is over.
    pub fn set_wanted(&self, pages: Vec<Gpa>) {
        self.wanted.replace(pages);
    }

    /// What everybody may have.
    pub const fn memory(&self) -> &ForeignMemory {
        &self.memory
    }

    /// What of it is mapped here, if any of the RAM is.
    pub fn mapped(&self) -> Option<&Ram> {
        let has_ram = !self.mapped.memory().ram().is_empty();
        has_ram.then_some(&self.mapped)
    }

    fn is_mapped(&self, at: Gpa, length: usize) -> bool {
        self.memory.mapped.contains(at, length)
    }
}

impl PhysicalMemory for ForeignRam {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read_physical(at, into)
    }
}

impl AllMemory for ForeignRam {
    fn ram(&self) -> Vec<Region> {
        let ranges = self.memory.ram.ranges.iter();
        ranges.map(|range| range.guest).collect()
    }

    fn contains(&self, at: Gpa, length: usize) -> bool {
        self.is_mapped(at, length) || self.memory.ram.host(at, length).is_ok()
    }

    fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
        let mut remote = Vec::with_capacity(places.len());
        for (at, into) in places {
            match self.is_mapped(*at, into.len()) {
                true => self.mapped.read(*at, into)?,
                false => remote.push((*at, &mut **into)),
            }
        }
        self.memory.ram.read_all(&mut remote)
    }

    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        let is_mapped = |(at, bytes): &(Gpa, &[u8])| self.is_mapped(*at, bytes.len());
        let (mapped, remote): (Vec<_>, Vec<_>) = places.iter().copied().partition(is_mapped);
        self.memory.ram.write_all(&remote)?;
        self.mapped.write_all(&mapped)
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.is_mapped(at, bytes.len()) {
            true => self.mapped.write(at, bytes),
            false => self.memory.ram.write(at, bytes),
        }
    }

    fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.mapped.write_window(at, bytes)
    }
}

/// RAM that the system did not let us reach: the library knows memory or none. Why is for who looks for it.
fn unreached(at: Gpa, length: usize, error: &ForeignError) -> MemoryError {
    log::debug!("{error}");
    not_memory(at, length)
}

const fn not_memory(address: Gpa, length: usize) -> MemoryError {
    MemoryError::NotMemory { address, length }
}
