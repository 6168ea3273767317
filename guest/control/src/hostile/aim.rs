//! Aims at what matters most: the cell and the ring of the vCPU that the attack runs on. Where they are is in the machine code
//! that a traced function leads to, which can be read by whoever may execute it.

use core::arch::asm;

use super::Chance;
use crate::kernel_call::WindowPage;

/// A jump with a displacement of 32 bits.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: u64 = 5;
/// `mov r11, gs:[...]`: the displacement follows.
const LOAD_HEAD: [u8; 5] = [0x65, 0x4c, 0x8b, 0x1c, 0x25];
/// So much of the code is looked at.
const CODE_BYTES: u64 = 192;
/// Words of a cell after the head, and a record.
const WORD: u64 = 8;
/// A ring's number is in the bits of a head from here on.
const RING_SHIFT: u64 = 54;
/// The size of a ring that the tests ask for.
const RING_BYTES: u64 = 64 << 10;
/// The bits of a record that say the function: all of them say one that there is not.
const FUNCTION: u64 = 0x3ffff << 10;
/// Records back from the head: those that have probably not been read.
const BACK: u64 = 64;
/// How long a cell is wrong, in looks at it.
const WRONG_FOR: u64 = 1 << 19;

/// What the code gives away.
#[derive(Clone, Copy)]
pub struct Aim {
    /// The head's distance from the GS base.
    head: u64,
    /// Where ring 0 begins, and the words beside it; perhaps.
    arrays: [Option<u64>; 2],
}

fn byte(at: u64) -> u8 {
    // SAFETY: text of ours, or what it leads to: whoever may execute it may read it. If not, this thread ends here.
    unsafe { (at as *const u8).read_volatile() }
}

/// The four bytes there as a number with a sign.
fn displacement(at: u64) -> u64 {
    let bytes = [byte(at), byte(at + 1), byte(at + 2), byte(at + 3)];
    i64::from(i32::from_le_bytes(bytes)).cast_unsigned()
}

impl Aim {
    /// By the code that the function at `function` leads to, if it finds its cell by the GS base.
    pub fn by(function: u64, pages: &[Option<WindowPage>]) -> Option<Self> {
        if byte(function) != JUMP {
            return None;
        }
        let stub = displacement(function + 1).wrapping_add(function + JUMP_BYTES);
        let is_load = |at: &u64| {
            (0u64..)
                .zip(LOAD_HEAD)
                .all(|(by, one)| byte(at + by) == one)
        };
        let load = (stub..stub + CODE_BYTES).find(is_load)?;
        let head = displacement(load + LOAD_HEAD.len() as u64);
        let mut places = (load..load + CODE_BYTES)
            .map(displacement)
            .filter(|at| is_writable(*at, pages));
        let arrays = [places.next(), places.next()];
        Some(Self { head, arrays })
    }

    /// Makes a word of the cell wrong for a while.
    pub fn spoil_cell(self, chance: &mut Chance) {
        let place = self.head.wrapping_add(chance.below(3) * WORD);
        let old = of_vcpu(place);
        let word = match chance.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => old ^ 1 << chance.below(64),
            3 => old.wrapping_sub(chance.below(1 << 12) * WORD),
            4 => old.wrapping_add(1 << RING_SHIFT),
            _ => chance.next(),
        };
        set_of_vcpu(place, word);
        for _ in 0..WRONG_FOR {
            let _ = of_vcpu(place);
        }
        // Perhaps that of another vCPU by now.
        set_of_vcpu(place, old);
    }

    /// Has the last records name functions that there are not, or be others.
    pub fn spoil_records(self, pages: &[Option<WindowPage>], chance: &mut Chance) {
        let head = of_vcpu(self.head);
        for back in 1..=BACK {
            let slot = head.wrapping_sub(back * WORD) & (RING_BYTES - 1);
            let of_ring = (head >> RING_SHIFT).wrapping_mul(RING_BYTES) + slot;
            let arrays = self.arrays.into_iter().flatten();
            arrays.for_each(|array| spoil_word(array.wrapping_add(of_ring), pages, chance));
        }
    }
}

/// Makes the word at `at` wrong, if that is the window's.
fn spoil_word(at: u64, pages: &[Option<WindowPage>], chance: &mut Chance) {
    if !is_writable(at, pages) {
        return;
    }
    // SAFETY: nothing of ours is in the window; if it is not mapped, this thread ends here.
    let old = unsafe { (at as *const u64).read_volatile() };
    let word = match chance.below(4) {
        0 => chance.next(),
        _ => old | FUNCTION,
    };
    // SAFETY: as above.
    unsafe { (at as *mut u64).write_volatile(word) };
}

/// Whether a word there lies in a page of the window that can be written to.
fn is_writable(at: u64, pages: &[Option<WindowPage>]) -> bool {
    let holds = |page: &WindowPage| at.wrapping_sub(page.start) <= super::PAGE_BYTES - WORD;
    let mut pages = pages.iter().flatten();
    pages.any(|page| page.may_write && holds(page))
}

/// A word at this distance from the GS base of the vCPU.
fn of_vcpu(distance: u64) -> u64 {
    let value: u64;
    // SAFETY: reads a word; if nothing is mapped there, this thread ends here.
    unsafe {
        asm!("mov {value}, gs:[{distance}]", value = out(reg) value, distance = in(reg) distance,
            options(nostack, preserves_flags, readonly));
    }
    value
}

fn set_of_vcpu(distance: u64, value: u64) {
    // SAFETY: nothing of ours is in a cell; if nothing is mapped there, this thread ends here.
    unsafe {
        asm!("mov gs:[{distance}], {value}", value = in(reg) value, distance = in(reg) distance,
            options(nostack, preserves_flags));
    }
}
