//! The memory of another VMM's guest: its RAM, which lies in that process and is copied from there, and our window, which is
//! mapped here as well.

use std::cell::RefCell;
use std::sync::Arc;

use terms::addr::Gpa;
use terms::region::Region;
use tracer::guest::SharedMemory;
use tracer::target::{MemoryError, PhysicalMemory, WindowMemory};

use super::process::Mapping;
use super::remote;
use super::touched::touched;
use crate::all_memory::AllMemory;
use crate::memory::Memory;

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

    /// What of it holds anything, as far as that can be told: of a guest that is stopped.
    pub(super) fn touched(&self, mappings: &[Mapping]) -> Vec<Region> {
        let ranges = self.ranges.iter();
        let ranges: Vec<_> = ranges.map(|range| (range.guest, range.host)).collect();
        touched(self.pid, &ranges, mappings)
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
        remote::write(self.pid, there, bytes).map_err(|_| not_memory(at, bytes.len()))
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
        let count = pieces.len();
        remote::read_all(self.pid, &mut pieces).map_err(|_| not_memory(first, count))
    }

    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        let mut pieces = Vec::with_capacity(places.len());
        let first = places.first().map_or(Gpa(0), |(at, _)| *at);
        for (at, bytes) in places {
            pieces.push((self.host(*at, bytes.len())?, *bytes));
        }
        let count = pieces.len();
        remote::write_all(self.pid, &pieces).map_err(|_| not_memory(first, count))
    }
}

impl PhysicalMemory for RemoteRam {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let there = self.host(at, into.len())?;
        let length = into.len();
        remote::read(self.pid, there, into).map_err(|_| not_memory(at, length))
    }
}

/// The guest's RAM, to be read, and its window. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct ForeignMemory {
    ram: RemoteRam,
    window: Memory,
}

impl ForeignMemory {
    pub(super) const fn new(ram: RemoteRam, window: Memory) -> Self {
        Self { ram, window }
    }

    /// Its RAM.
    #[must_use]
    pub const fn ram(&self) -> &RemoteRam {
        &self.ram
    }

    /// What it shares with us.
    #[must_use]
    pub const fn window(&self) -> &Memory {
        &self.window
    }
}

impl PhysicalMemory for ForeignMemory {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        match self.window.contains(at, into.len()) {
            true => self.window.read_physical(at, into),
            false => self.ram.read_physical(at, into),
        }
    }
}

impl WindowMemory for ForeignMemory {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.window.write_window(at, bytes)
    }
}

impl SharedMemory for ForeignMemory {
    fn load(&self, at: Gpa) -> Result<u64, MemoryError> {
        if self.window.contains(at, size_of::<u64>()) {
            return SharedMemory::load(&self.window, at);
        }
        let mut word = [0; 8];
        self.ram.read_physical(at, &mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    fn store(&self, at: Gpa, word: u64) -> Result<(), MemoryError> {
        SharedMemory::store(&self.window, at, word)
    }

    fn copy_words(&self, at: Gpa, into: &mut [u64]) -> Result<(), MemoryError> {
        SharedMemory::copy_words(&self.window, at, into)
    }

    fn populate(&self, at: Gpa, bytes: u64) {
        SharedMemory::populate(&self.window, at, bytes);
    }
}

/// All of it, to be written: there is one for each guest.
#[derive(Debug)]
pub(crate) struct ForeignRam {
    memory: ForeignMemory,
    /// The pages that the last pause has read.
    wanted: RefCell<Vec<Gpa>>,
}

impl ForeignRam {
    pub const fn new(memory: ForeignMemory) -> Self {
        let wanted = RefCell::new(Vec::new());
        Self { memory, wanted }
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
        self.memory.window.contains(at, length) || self.memory.ram.host(at, length).is_ok()
    }

    fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
        self.memory.ram.read_all(places)
    }

    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        self.memory.ram.write_all(places)
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        match self.memory.window.contains(at, bytes.len()) {
            true => self.write_window(at, bytes),
            false => self.memory.ram.write(at, bytes),
        }
    }

    fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.memory.window.clone().write_window(at, bytes)
    }
}

const fn not_memory(address: Gpa, length: usize) -> MemoryError {
    MemoryError::NotMemory { address, length }
}
