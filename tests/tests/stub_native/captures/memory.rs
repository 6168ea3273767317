//! A guest's memory made up in this process: RAM in pieces, page tables in it, and everything that can be wrong with
//! them.

use std::sync::atomic::{AtomicU64, Ordering};

use terms::addr::{Gpa, Gva};
use tracer::paging::{PageTableRoot, bits, translate};
use tracer::target::{MemoryError, PhysicalMemory};
use tracer::window::shown::{GuestMemory, Root, Shown};

use crate::ground::Ground;
use crate::random::Random;

const PIECE: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Where each piece of RAM starts; the last one is the stack of the ground.
const STARTS: [u64; 3] = [0, 0x1_0000_0000, 0x2_4000_0000];
/// Bytes of the stack that are mapped, from its top down.
pub const STACK_BYTES: u64 = 0x1_0000;
/// The topmost table.
const TOP: u64 = PAGE;
/// Rows of pages: mapped, mapped, absent, out of RAM, mapped, the last page of a piece, the one after it, mapped.
const ROWS: [u64; 3] = [
    0xffff_8880_0001_0000,
    0x7fff_f7fc_0000,
    0xffff_ffff_ffff_8000,
];
/// 2 MiB of which one is RAM, and 1 GiB of which one MiB is.
const LARGE: u64 = 0xffff_8890_0020_0000;
const HUGE: u64 = 0xffff_8900_4000_0000;
/// Not canonical; its table is no RAM; nothing on any level.
const WRONG: [u64; 3] = [0x0123_8880_0001_0000, 0xffff_8a00_0000_0000, 0x1000];

/// It.
pub struct Memory<'a> {
    ground: &'a Ground,
    ram: Box<[AtomicU64]>,
    levels: u8,
    free: u64,
    /// Addresses worth reading at.
    pub addresses: Vec<u64>,
    /// Text that lies at some of them.
    pub texts: Vec<Vec<u8>>,
}

impl<'a> Memory<'a> {
    pub fn new(ground: &'a Ground, levels: u8, random: &mut Random) -> Self {
        let mut memory = Self {
            ground,
            ram: (0..2 * PIECE / 8).map(|_| AtomicU64::new(0)).collect(),
            levels,
            free: 2 * PAGE,
            addresses: Vec::new(),
            texts: Vec::new(),
        };
        for row in ROWS {
            let behind = STARTS[1] + PIECE;
            let to = [
                Some(0x8_0000),
                Some(STARTS[1] + 0x3000),
                None,
                Some(0x7000_0000),
                Some(0x8_1000),
                Some(behind - PAGE),
                Some(behind),
                Some(0x8_2000),
            ];
            for (number, to) in (0..).zip(to) {
                if let Some(to) = to {
                    memory.map(row + number * PAGE, to, 1);
                }
                memory.addresses.push(row + number * PAGE);
                memory.addresses.push(row + number * PAGE + 100);
            }
            memory.addresses.push(row.wrapping_add(8 * PAGE));
        }
        memory.map(LARGE, STARTS[1], 2);
        memory.map(HUGE, 0, 3);
        let halves = [LARGE, LARGE + PIECE, HUGE + 0x8_0000, HUGE + PIECE];
        memory.addresses.extend(halves);
        let entry = memory.entry(WRONG[1], 3);
        memory.put(entry, 0x5000_0000 | bits::PRESENT);
        memory.addresses.extend(WRONG);
        let stack = memory.stack();
        for page in (0..STACK_BYTES).step_by(PAGE as usize) {
            memory.map(stack + page, STARTS[2] + page, 1);
        }
        memory.fill(random);
        memory
    }

    fn stack(&self) -> u64 {
        self.ground.stack_top() - STACK_BYTES
    }

    /// Bytes that are worth copying: text of every length, some of it up to the end of a page.
    fn fill(&mut self, random: &mut Random) {
        for page in [
            0x8_0000,
            0x8_1000,
            0x8_2000,
            STARTS[1] + 0x3000,
            STARTS[1] + PIECE - PAGE,
        ] {
            let mut at = 0;
            while at < PAGE {
                let length = u64::from(random.below(60));
                let text: Vec<u8> = (0..length).map(|_| 1 + random.below(255) as u8).collect();
                for (byte, place) in text.iter().chain([&0]).zip(at..PAGE) {
                    self.put_byte(page + place, *byte);
                }
                if at < 200 {
                    self.texts.push(text);
                }
                at += length + 1;
            }
        }
        for row in ROWS {
            for page in 0..8 {
                self.addresses
                    .push(row + page * PAGE + u64::from(random.below(4096)));
            }
        }
    }

    /// What the routines are made for.
    pub fn described(&self) -> GuestMemory {
        let at = self.ram.as_ptr() as u64;
        let places = [at, at + PIECE, self.stack()];
        let shown = STARTS
            .into_iter()
            .zip(places)
            .zip([PIECE, PIECE, STACK_BYTES]);
        GuestMemory {
            root: Root::Table(Gpa(TOP)),
            levels: self.levels,
            ram: shown
                .map(|((start, at), bytes)| Shown {
                    start: Gpa(start),
                    bytes,
                    at: Gva(at),
                })
                .collect(),
        }
    }

    /// The words of its RAM, tables and all, for whoever wants to change them while they are read.
    pub fn words(&self) -> &[AtomicU64] {
        &self.ram
    }

    /// A byte of the guest's, if there is one.
    pub fn byte(&self, at: u64) -> Option<u8> {
        let root = PageTableRoot {
            table: Gpa(TOP),
            levels: self.levels,
            no_execute: true,
        };
        let seen = translate(self, root, Gva(at)).ok()?;
        self.get_byte(seen.physical.0)
    }

    fn get_byte(&self, at: u64) -> Option<u8> {
        let inside = |piece: usize| at.checked_sub(STARTS[piece]);
        if let Some(place) = inside(2).filter(|place| *place < STACK_BYTES) {
            return Some(self.ground.read(self.stack() + place, 1)[0]);
        }
        let piece = (0..2).find(|piece| inside(*piece).is_some_and(|place| place < PIECE))?;
        let place = inside(piece)? + piece as u64 * PIECE;
        Some(self.get(place).to_le_bytes()[(place % 8) as usize])
    }

    fn put_byte(&mut self, at: u64, byte: u8) {
        let piece = usize::from(at >= STARTS[1]);
        let place = at - STARTS[piece] + piece as u64 * PIECE;
        let mut word = self.get(place).to_le_bytes();
        word[(place % 8) as usize] = byte;
        self.put(place, u64::from_le_bytes(word));
    }

    fn get(&self, at: u64) -> u64 {
        self.ram[(at / 8) as usize].load(Ordering::Relaxed)
    }

    fn put(&mut self, at: u64, word: u64) {
        self.ram[(at / 8) as usize].store(word, Ordering::Relaxed);
    }

    /// The entry for `at` at `level`, with the tables above it.
    fn entry(&mut self, at: u64, level: u32) -> u64 {
        let mut table = TOP;
        for upper in (level + 1..=self.levels.into()).rev() {
            let entry = table + 8 * (at >> (3 + 9 * upper) & 0x1ff);
            let mut value = self.get(entry);
            if value & bits::PRESENT == 0 {
                value = self.free | bits::PRESENT | bits::NO_EXECUTE | bits::ACCESSED;
                self.free += PAGE;
                self.put(entry, value);
            }
            table = value & 0xf_f000;
        }
        table + 8 * (at >> (3 + 9 * level) & 0x1ff)
    }

    fn map(&mut self, at: u64, to: u64, level: u32) {
        let entry = self.entry(at, level);
        let large = if level > 1 { bits::LARGE } else { 0 };
        self.put(entry, to | bits::PRESENT | bits::NO_EXECUTE | large);
    }
}

impl PhysicalMemory for Memory<'_> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        let length = into.len();
        for (byte, place) in into.iter_mut().zip(at.0..) {
            let found = self.get_byte(place);
            *byte = found.ok_or(MemoryError::NotMemory {
                address: at,
                length,
            })?;
        }
        Ok(())
    }
}
