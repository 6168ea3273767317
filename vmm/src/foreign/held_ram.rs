//! The RAM of another VMM's guest while all its vCPUs are held: what is read of it again and again, page tables above all, is
//! copied from that process once.
//!
//! A remote read costs a call, whether of 8 bytes or of a page, and one look at the window takes some hundred: most of a pause.
//! So a page of which a little is read is copied whole, and what else is read of it comes from the copy. **Copies live for one
//! pause at most**, and which pages one pause has read the next one copies with one call: they are the same page tables. Who stops the guest makes a new value of this, which ends before a vCPU runs on. Each write of ours drops them
//! all, so that what is read after it, to see what was written, is what is there. The window is never copied: it is mapped here, and
//! our own threads write to it during a pause.

use std::cell::RefCell;

use terms::addr::Gpa;
use terms::region::Region;
use tracer::target::{MemoryError, PhysicalMemory};

use crate::all_memory::AllMemory;

const PAGE: usize = 4096;
/// What is kept at most. A guest chooses how many pages its tables are.
const PAGES_MAX: usize = 64;
/// Of those, how many are copied for the next pause before it asks for them.
const EXPECTED_MAX: usize = 16;
/// Reads of more than this are made as they are: whoever reads so much reads it once.
const LITTLE: usize = 64;

/// All memory of a guest that is held, `ram`, with copies of some of its pages.
#[derive(Debug)]
pub(super) struct HeldRam<R> {
    ram: R,
    /// Where copies are made of.
    regions: Vec<Region>,
    copies: RefCell<Vec<Copied>>,
    /// Pages that are likely to be read, until the first of them is.
    expected: RefCell<Vec<Gpa>>,
    /// The first pages that were read.
    wanted: RefCell<Vec<Gpa>>,
}

/// A page as it was when it was read.
#[derive(Debug)]
struct Copied {
    start: Gpa,
    bytes: Box<[u8; PAGE]>,
}

impl<R: AllMemory> HeldRam<R> {
    /// Of a guest whose vCPUs are held for as long as this is. `expected` are the pages that the pause before has read.
    pub fn new(ram: R, expected: Vec<Gpa>) -> Self {
        Self {
            regions: ram.ram(),
            ram,
            copies: RefCell::default(),
            expected: RefCell::new(expected),
            wanted: RefCell::default(),
        }
    }

    /// The pages that were read, as many as the next pause is to expect.
    pub fn wanted(&self) -> Vec<Gpa> {
        self.wanted.borrow().clone()
    }

    /// Copies `into` out of the copy of the page that holds all of it. False when there can be none.
    fn read_copied(&self, at: Gpa, into: &mut [u8]) -> bool {
        let start = page_of(at);
        let end = (at.0 - start.0).saturating_add(into.len() as u64);
        let is_little = into.len() <= LITTLE && end <= PAGE as u64;
        let mut regions = self.regions.iter();
        if !is_little || !regions.any(|region| region.holds(start, PAGE as u64)) {
            return false;
        }
        self.want(start);
        if !self.has(start) && self.copy(&[start]).is_err() {
            return false;
        }
        self.read_kept(at, into)
    }

    /// The same, of a page of which there is a copy.
    fn read_kept(&self, at: Gpa, into: &mut [u8]) -> bool {
        let start = page_of(at);
        let copies = self.copies.borrow();
        let copied = copies.iter().find(|copied| copied.start == start);
        let offset = usize::try_from(at.0 - start.0).unwrap_or(PAGE);
        let part = copied.and_then(|copied| copied.bytes.get(offset..offset + into.len()));
        part.map(|part| into.copy_from_slice(part)).is_some()
    }

    /// Notes that a page is read. With the first of those that are expected all of them are copied.
    fn want(&self, start: Gpa) {
        let mut wanted = self.wanted.borrow_mut();
        if wanted.len() < EXPECTED_MAX && !wanted.contains(&start) {
            wanted.push(start);
        }
        if !self.expected.borrow().contains(&start) {
            return;
        }
        let mut expected = self.expected.take();
        expected.retain(|start| !self.has(*start));
        if let Err(error) = self.copy(&expected) {
            // One of them is none any more: each that is asked for is copied alone.
            log::debug!("what the pause before has read: {error}");
        }
    }

    fn has(&self, start: Gpa) -> bool {
        let copies = self.copies.borrow();
        copies.iter().any(|copied| copied.start == start)
    }

    /// Copies these pages with one call.
    fn copy(&self, starts: &[Gpa]) -> Result<(), MemoryError> {
        let mut pages = vec![[0; PAGE]; starts.len()];
        let places = starts.iter().zip(&mut pages);
        let mut places: Vec<_> = places.map(|(at, page)| (*at, &mut page[..])).collect();
        self.ram.read_all(&mut places)?;
        let mut copies = self.copies.borrow_mut();
        for (start, bytes) in starts.iter().zip(pages) {
            if copies.len() >= PAGES_MAX {
                copies.remove(0);
            }
            let (start, bytes) = (*start, Box::new(bytes));
            copies.push(Copied { start, bytes });
        }
        Ok(())
    }

    fn forget(&self) {
        self.copies.borrow_mut().clear();
    }
}

impl<R: AllMemory> PhysicalMemory for HeldRam<R> {
    fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
        match self.read_copied(at, into) {
            true => Ok(()),
            false => self.ram.read_physical(at, into),
        }
    }
}

impl<R: AllMemory> AllMemory for HeldRam<R> {
    fn ram(&self) -> Vec<Region> {
        self.ram.ram()
    }

    fn contains(&self, at: Gpa, length: usize) -> bool {
        self.ram.contains(at, length)
    }

    /// What there are copies of comes from those.
    fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
        let places = places.iter_mut().map(|(at, into)| (*at, &mut **into));
        let mut others: Vec<_> = places
            .filter_map(|(at, into)| (!self.read_kept(at, into)).then_some((at, into)))
            .collect();
        match others.is_empty() {
            true => Ok(()),
            false => self.ram.read_all(&mut others),
        }
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.forget();
        self.ram.write(at, bytes)
    }

    fn write_all(&self, places: &[(Gpa, &[u8])]) -> Result<(), MemoryError> {
        self.forget();
        self.ram.write_all(places)
    }

    fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
        self.ram.write_window(at, bytes)
    }
}

/// Where the page begins that has this byte.
const fn page_of(at: Gpa) -> Gpa {
    Gpa(at.0 - at.0 % PAGE as u64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory::Ram;

    const WINDOW: u64 = 2 << 20;
    const AT: Gpa = Gpa(0x20_0010);

    fn ram() -> Ram {
        Ram::create(64, WINDOW).unwrap()
    }

    fn read(memory: &impl PhysicalMemory, at: Gpa) -> u8 {
        let mut byte = [0];
        memory.read_physical(at, &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn a_page_is_copied_once_and_forgotten_with_the_pause() {
        let ram = ram();
        let held = HeldRam::new(&ram, Vec::new());
        assert_eq!(read(&held, AT), 0);
        // Nobody does this while the guest is held: it shows where the byte comes from.
        ram.write(AT, &[1]).unwrap();
        ram.write(AT.wrapping_add(8), &[2]).unwrap();
        assert_eq!([read(&held, AT), read(&held, AT.wrapping_add(8))], [0, 0]);
        drop(held);
        let next = HeldRam::new(&ram, Vec::new());
        assert_eq!([read(&next, AT), read(&next, AT.wrapping_add(8))], [1, 2]);
    }

    /// How often memory is asked.
    #[derive(Debug)]
    struct Counted<'r>(&'r Ram, Cell<u32>);

    impl PhysicalMemory for Counted<'_> {
        fn read_physical(&self, at: Gpa, into: &mut [u8]) -> Result<(), MemoryError> {
            self.1.set(self.1.get() + 1);
            self.0.read_physical(at, into)
        }
    }

    impl AllMemory for Counted<'_> {
        fn ram(&self) -> Vec<Region> {
            self.0.ram()
        }

        fn contains(&self, at: Gpa, length: usize) -> bool {
            self.0.contains(at, length)
        }

        fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
            self.0.write(at, bytes)
        }

        fn read_all(&self, places: &mut [(Gpa, &mut [u8])]) -> Result<(), MemoryError> {
            self.1.set(self.1.get() + 1);
            self.0.read_all(places)
        }

        fn write_window(&self, at: Gpa, bytes: &[u8]) -> Result<(), MemoryError> {
            self.0.write_window(at, bytes)
        }
    }

    #[test]
    fn what_one_pause_has_read_the_next_one_copies_with_one_call() {
        let ram = ram();
        let pages = [AT, Gpa(0x30_0000), Gpa(0x40_0ff8)];
        let look = |expected| {
            let held = HeldRam::new(Counted(&ram, Cell::new(0)), expected);
            let read: Vec<_> = pages.iter().map(|at| read(&held, *at)).collect();
            let mut bytes = [[9; 2]; 2];
            let mut places = pages.into_iter().zip(&mut bytes);
            let mut places: Vec<_> = places.by_ref().map(|(at, to)| (at, &mut to[..])).collect();
            held.read_all(&mut places).unwrap();
            (read, bytes, held.ram.1.get(), held.wanted())
        };
        ram.write(AT, &[5]).unwrap();
        let (read, bytes, calls, wanted) = look(Vec::new());
        assert_eq!((read, bytes, calls), (vec![5, 0, 0], [[5, 0], [0, 0]], 3));
        ram.write(AT, &[6]).unwrap();
        let (read, bytes, calls, again) = look(wanted.clone());
        assert_eq!((read, bytes, calls), (vec![6, 0, 0], [[6, 0], [0, 0]], 1));
        assert_eq!(wanted, again);
        // Memory that is none any more takes nothing from the others.
        let nowhere = [vec![Gpa(u64::MAX - 0xfff)], wanted].concat();
        let (read, _, calls, again) = look(nowhere);
        assert_eq!((read, calls, again.len()), (vec![6, 0, 0], 4, 3));
    }

    #[test]
    fn each_way_to_write_forgets_what_was_copied() {
        let ram = ram();
        let held = HeldRam::new(&ram, Vec::new());
        let elsewhere = Gpa(0x40_0000);
        type Write = fn(&HeldRam<&Ram>, Gpa, &[u8]) -> Result<(), MemoryError>;
        let ways: [Write; 2] = [
            |held, at, bytes| held.write(at, bytes),
            |held, at, bytes| held.write_all(&[(at, bytes)]),
        ];
        for (write, value) in ways.into_iter().zip(1..) {
            read(&held, AT);
            write(&held, AT, &[value]).unwrap();
            assert_eq!(read(&held, AT), value);
            // Two addresses may be the same memory: a write anywhere drops all.
            ram.write(AT, &[value + 100]).unwrap();
            write(&held, elsewhere, &[1]).unwrap();
            assert_eq!(read(&held, AT), value + 100);
        }
    }

    #[test]
    fn neither_the_window_nor_much_at_once_is_copied() {
        let ram = ram();
        let held = HeldRam::new(&ram, Vec::new());
        let window = crate::layout::window_start(64 << 20);
        for (at, length) in [(window, 8), (AT, LITTLE + 1)] {
            let mut bytes = vec![0; length];
            held.read_physical(at, &mut bytes).unwrap();
            assert_eq!(held.copies.borrow().len(), 0, "{at}");
        }
        // Over the end of a page, and of memory.
        held.read_physical(Gpa(0x20_0ffc), &mut [0; 8]).unwrap();
        held.read_physical(Gpa(u64::MAX - 3), &mut [0; 8])
            .unwrap_err();
        held.read_physical(Gpa(u64::MAX - 3), &mut [0; 2])
            .unwrap_err();
        assert_eq!(held.copies.borrow().len(), 0);
    }

    #[test]
    fn what_a_guest_makes_us_keep_is_bounded() {
        let ram = ram();
        let held = HeldRam::new(&ram, Vec::new());
        for page in 0..2 * PAGES_MAX as u64 {
            let at = Gpa(0x20_0000 + page * PAGE as u64);
            ram.write(at, &[page.to_le_bytes()[0]]).unwrap();
            assert_eq!(read(&held, at), page.to_le_bytes()[0]);
        }
        assert_eq!(held.copies.borrow().len(), PAGES_MAX);
        assert_eq!(held.wanted().len(), EXPECTED_MAX);
    }
}
