//! A target without a hypervisor, for tests: sparse physical memory, page tables that it builds
//! itself, registers that can be set, and accesses that fail on demand.
//!
//! RAM starts at 0, the window's region at 4 GiB, as in a small virtual machine. Nothing is ever
//! zero by accident: frames come into being, as zeros, when they are first written.

mod guest;
mod kernel;

use std::collections::{BTreeMap, BTreeSet};

use image::Image;
use terms::addr::{Gpa, Gva};
use terms::region::Region;

use crate::paging::{PAGE_2M, PAGE_4K, PageTableRoot, bits, translate};
use crate::target::{
    AtomicTarget, LiveTarget, MemoryError, NotProvided, NotSynchronised, PhysicalMemory,
    StoppedTarget, TargetMemory, TextMemory, VcpuRegisters, WindowMemory,
};

pub use guest::{HOST, Meanwhile, MockGuest, MockMemory, MockRunning, MockStopped, NoPollers};
pub use kernel::MockKernel;

/// Bytes of RAM, from 0 on.
pub const RAM_BYTES: u64 = 256 << 20;
/// Where the window's region starts.
pub const REGION_START: Gpa = Gpa(1 << 32);
/// Distance of the GS bases of the vCPUs.
pub const GS_DISTANCE: u64 = 4096;
/// The GS base of vCPU 0.
pub const GS_BASE: u64 = 0xffff_ffff_8800_0000;

const TABLES_START: u64 = 0x20_0000;
const TABLES_END: u64 = 0x100_0000;
const TEXT_START: u64 = TABLES_END;
const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;

/// What a mapping allows: the bits that its entries get beside *present*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Ring 3 may use it.
    pub user: bool,
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
}

impl Rights {
    /// Everything.
    pub const ALL: Self = Self {
        user: true,
        write: true,
        execute: true,
    };

    const fn bits(self) -> u64 {
        let user = if self.user { bits::USER } else { 0 };
        let write = if self.write { bits::WRITE } else { 0 };
        let no_execute = if self.execute { 0 } else { bits::NO_EXECUTE };
        bits::PRESENT | user | write | no_execute
    }
}

/// Accesses by virtual address that go wrong: each entry is the address of a byte.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Reads of these bytes fail.
    pub unreadable: BTreeSet<Gva>,
    /// Writes of these bytes fail and change nothing.
    pub unwritable: BTreeSet<Gva>,
    /// These bytes can be written once: after that, writes of them fail.
    pub once: BTreeSet<Gva>,
    /// Writes of these bytes succeed, and the bytes stay what they were.
    pub sticky: BTreeSet<Gva>,
    /// Physical writes that touch these bytes fail and change nothing.
    pub unwritable_physical: BTreeSet<Gpa>,
}

/// A stopped machine made of maps.
#[derive(Debug, Clone)]
pub struct MockTarget {
    frames: BTreeMap<u64, Vec<u8>>,
    region: Region,
    vcpus: Vec<VcpuRegisters>,
    next_table: u64,
    /// What goes wrong.
    pub faults: Faults,
    /// What it says is RAM; if nothing, what has been written to.
    pub ram: Vec<Region>,
    /// Whether its processors have pages of 1 GiB.
    pub has_gigabyte_pages: bool,
    /// What the guest was given of the window's region.
    pub provided: Vec<Region>,
    /// How many virtual writes were made, whatever became of them.
    pub writes: u64,
}

impl MockTarget {
    /// A machine with `vcpus` vCPUs, all running in long mode on the same empty page tables, each
    /// with a GS base of its own, and with a window region of `region_bytes`.
    #[must_use]
    pub fn new(vcpus: u64, region_bytes: u64) -> Self {
        let running = |vcpu: u64| VcpuRegisters {
            online: true,
            rip: 0xffff_ffff_8000_0000,
            cr0: 1 << 31 | 1,
            cr3: TABLES_START,
            cr4: 1 << 5,
            efer: 1 << 8 | 1 << 10 | 1 << 11,
            gs_base: GS_BASE + vcpu * GS_DISTANCE,
            ..VcpuRegisters::default()
        };
        Self {
            frames: BTreeMap::new(),
            region: Region {
                start: REGION_START,
                bytes: region_bytes,
            },
            vcpus: (0..vcpus).map(running).collect(),
            next_table: TABLES_START + PAGE_4K,
            faults: Faults::default(),
            ram: Vec::new(),
            has_gigabyte_pages: true,
            provided: Vec::new(),
            writes: 0,
        }
    }

    /// The machine with the text of `image` mapped by 4 KiB pages, `int3` everywhere but at the sites.
    ///
    /// # Errors
    /// A [`MemoryError`] when the text does not fit.
    pub fn with_image(
        vcpus: u64,
        region_bytes: u64,
        image: &Image,
        rights: Rights,
    ) -> Result<Self, MemoryError> {
        let mut target = Self::new(vcpus, region_bytes);
        let mut physical = TEXT_START;
        for range in &image.text {
            let mut page = range.start.0 & !(PAGE_4K - 1);
            while page < range.end.0 {
                target.map(Gva(page), Gpa(physical), PAGE_4K, rights)?;
                target.write_physical(Gpa(physical), &[0xcc; 4096])?;
                page += PAGE_4K;
                physical += PAGE_4K;
            }
        }
        for site in &image.sites {
            match site.form.displaced() {
                Some(bytes) => target.write(site.address, bytes.as_slice())?,
                None => target.write(site.address, &site.original)?,
            }
        }
        target.writes = 0;
        Ok(target)
    }

    /// The window's region.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// The registers, to be changed.
    pub fn vcpus_mut(&mut self) -> &mut [VcpuRegisters] {
        &mut self.vcpus
    }

    /// The page tables that the vCPUs started with.
    #[must_use]
    pub fn root(&self) -> PageTableRoot {
        PageTableRoot {
            table: Gpa(TABLES_START),
            levels: 4,
            no_execute: true,
        }
    }

    /// Maps a page of `size` bytes (4 KiB, 2 MiB or 1 GiB) at `at` to `to`, making the tables that
    /// this needs; a large page on the way is written over.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when there is no room for tables.
    pub fn map(&mut self, at: Gva, to: Gpa, size: u64, rights: Rights) -> Result<(), MemoryError> {
        let (level, large) = match size {
            PAGE_4K => (1, 0),
            PAGE_2M => (2, bits::LARGE),
            _ => (3, bits::LARGE),
        };
        let entry = self.entry(at, level)?;
        self.write_word(entry, to.0 | rights.bits() | large)
    }

    /// The address of the entry for `at` at `level`, with all tables above it made.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when there is no room for tables.
    pub fn entry(&mut self, at: Gva, level: u32) -> Result<Gpa, MemoryError> {
        let mut table = TABLES_START;
        for upper in (level + 1..=4).rev() {
            let entry = entry_of(table, at, upper);
            let mut value = self.read_word(entry)?;
            if value & bits::PRESENT == 0 || (upper < 4 && value & bits::LARGE != 0) {
                value = self.new_table()? | Rights::ALL.bits();
                self.write_word(entry, value)?;
            }
            table = value & ADDRESS_MASK;
        }
        Ok(entry_of(table, at, level))
    }

    /// What is in the guest's own memory: pages that are not zero, by their address.
    #[must_use]
    pub fn own_memory(&self) -> BTreeMap<u64, Vec<u8>> {
        let frames = self.frames.iter();
        let all = frames.map(|(number, frame)| (number * PAGE_4K, frame));
        let own = all.filter(|(at, frame)| {
            let of_window = self.region.holds(Gpa(*at), 1);
            !of_window && frame.iter().any(|byte| *byte != 0)
        });
        own.map(|(at, frame)| (at, frame.clone())).collect()
    }

    fn new_table(&mut self) -> Result<u64, MemoryError> {
        let table = self.next_table;
        if table >= TABLES_END {
            return Err(MemoryError::NotMemory {
                address: Gpa(table),
                length: 4096,
            });
        }
        self.next_table += PAGE_4K;
        Ok(table)
    }

    /// Gives a vCPU a copy of the three upper levels of the tables, so that it no longer sees what is
    /// changed in the others.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`] when there is no room for tables.
    pub fn separate(&mut self, vcpu: usize) -> Result<(), MemoryError> {
        self.separate_above(vcpu, 2)
    }

    /// The same of the levels from the topmost one down to `lowest`; what lies below is shared.
    ///
    /// # Errors
    /// As [`Self::separate`].
    pub fn separate_above(&mut self, vcpu: usize, lowest: u32) -> Result<(), MemoryError> {
        let copy = self.copy_table(TABLES_START, 4, lowest)?;
        if let Some(registers) = self.vcpus.get_mut(vcpu) {
            registers.cr3 = copy;
        }
        Ok(())
    }

    fn copy_table(&mut self, table: u64, level: u32, lowest: u32) -> Result<u64, MemoryError> {
        let copy = self.new_table()?;
        for index in 0..512 {
            let mut value = self.read_word(Gpa(table + 8 * index))?;
            if level > lowest && value & bits::PRESENT != 0 && value & bits::LARGE == 0 {
                let below = self.copy_table(value & ADDRESS_MASK, level - 1, lowest)?;
                value = below | value & !ADDRESS_MASK;
            }
            self.write_word(Gpa(copy + 8 * index), value)?;
        }
        Ok(copy)
    }

    /// Reads a word of physical memory.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`].
    pub fn read_word(&self, at: Gpa) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read_physical(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a word of physical memory.
    ///
    /// # Errors
    /// [`MemoryError::NotMemory`].
    pub fn write_word(&mut self, at: Gpa, value: u64) -> Result<(), MemoryError> {
        self.write_physical(at, &value.to_le_bytes())
    }

    fn is_memory(&self, at: Gpa, length: usize) -> bool {
        let end = at.0.checked_add(length as u64);
        let holds = |start: u64, bytes: u64| {
            at.0 >= start && end.is_some_and(|end| end <= start.saturating_add(bytes))
        };
        holds(0, RAM_BYTES) || holds(self.region.start.0, self.region.bytes)
    }

    /// Where a byte lies, by the tables of the first running vCPU.
    fn physical(&self, at: Gva, length: usize) -> Result<Gpa, MemoryError> {
        let running = self.vcpus.iter().find(|vcpu| vcpu.online);
        let root = running.and_then(|registers| PageTableRoot::of(registers).ok());
        translate(self, root.unwrap_or(self.root()), at)
            .map(|seen| seen.physical)
            .map_err(|_| MemoryError::NotMapped {
                address: at,
                length,
            })
    }
}

fn entry_of(table: u64, at: Gva, level: u32) -> Gpa {
    Gpa(table + 8 * (at.0 >> (3 + 9 * level) & 0x1ff))
}

fn addresses(at: Gva, length: usize) -> impl Iterator<Item = Gva> {
    (0..length as u64).map(move |offset| at.wrapping_add(offset))
}

impl PhysicalMemory for MockTarget {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let length = into.len();
        if !self.is_memory(at, length) {
            return Err(MemoryError::NotMemory {
                address: at,
                length,
            });
        }
        let (mut at, mut rest) = (at.0, into);
        while !rest.is_empty() {
            let offset = usize::try_from(at % PAGE_4K).unwrap_or_default();
            let (now, later) = rest.split_at_mut(rest.len().min(4096 - offset));
            let frame = self.frames.get(&(at / PAGE_4K));
            match frame.and_then(|frame| frame.get(offset..offset + now.len())) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => now.fill(0),
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }
}

impl WindowMemory for MockTarget {
    fn write_window(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        let length = bytes.len();
        if !self.region.holds(at, length as u64) {
            let address = at;
            return Err(MemoryError::NotWindow { address, length });
        }
        self.write_physical(at, bytes)
    }
}

impl TargetMemory for MockTarget {
    fn read(&self, at: Gva, into: &mut [u8]) -> Result<(), MemoryError> {
        let length = into.len();
        for (byte, address) in into.iter_mut().zip(addresses(at, length)) {
            if self.faults.unreadable.contains(&address) {
                return Err(MemoryError::NotMapped { address, length });
            }
            let physical = self.physical(address, length)?;
            self.read_physical(physical, std::slice::from_mut(byte))?;
        }
        Ok(())
    }
}

impl TextMemory for MockTarget {
    fn write_physical(&mut self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        let length = bytes.len();
        let end = Gpa(at.0.saturating_add(length as u64));
        let is_faulty = self
            .faults
            .unwritable_physical
            .range(at..end)
            .next()
            .is_some();
        if is_faulty || !self.is_memory(at, length) {
            return Err(MemoryError::NotMemory {
                address: at,
                length,
            });
        }
        for (byte, address) in bytes.iter().zip(at.0..) {
            let offset = usize::try_from(address % PAGE_4K).unwrap_or_default();
            let frame = self.frames.entry(address / PAGE_4K);
            let frame = frame.or_insert_with(|| vec![0; 4096]);
            if let Some(slot) = frame.get_mut(offset) {
                *slot = *byte;
            }
        }
        Ok(())
    }

    fn write(&mut self, at: Gva, bytes: &[u8]) -> Result<(), MemoryError> {
        self.writes += 1;
        let length = bytes.len();
        let mut places = Vec::with_capacity(length);
        for address in addresses(at, length) {
            if self.faults.unwritable.contains(&address) {
                return Err(MemoryError::NotMapped { address, length });
            }
            places.push((address, self.physical(address, length)?));
        }
        for ((address, physical), byte) in places.into_iter().zip(bytes) {
            if !self.faults.sticky.contains(&address) {
                self.write_physical(physical, std::slice::from_ref(byte))?;
            }
            if self.faults.once.remove(&address) {
                self.faults.unwritable.insert(address);
            }
        }
        Ok(())
    }
}

impl StoppedTarget for MockTarget {
    fn vcpus(&self) -> &[VcpuRegisters] {
        &self.vcpus
    }

    fn ram(&self) -> Vec<Region> {
        match self.ram.is_empty() {
            true => self.touched(),
            false => self.ram.clone(),
        }
    }

    fn touched(&self) -> Vec<Region> {
        let is_ram = |frame: &&u64| **frame * PAGE_4K < self.region.start.0;
        let frames = self.frames.keys().filter(is_ram);
        let region = |frame: &u64| Region {
            start: Gpa(*frame * PAGE_4K),
            bytes: PAGE_4K,
        };
        frames.map(region).collect()
    }

    fn has_gigabyte_pages(&self) -> bool {
        self.has_gigabyte_pages
    }

    fn provide(&mut self, part: Region) -> Result<(), NotProvided> {
        self.provided.push(part);
        Ok(())
    }
}

/// Nobody comes between the look and the store.
impl AtomicTarget for MockTarget {
    fn reaches(&self, at: Gva) -> bool {
        self.physical(at, 1).is_ok()
    }

    fn exchange(&mut self, at: Gva, old: u64, new: u64) -> Result<u64, MemoryError> {
        let mut found = [0; 8];
        TargetMemory::read(self, at, &mut found)?;
        let found = u64::from_le_bytes(found);
        if found == old {
            TextMemory::write(self, at, &new.to_le_bytes())?;
        }
        Ok(found)
    }
}

/// Its vCPUs execute nothing, so they have always seen everything.
impl LiveTarget for MockTarget {
    fn synchronise(&mut self) -> Result<(), NotSynchronised> {
        Ok(())
    }
}
