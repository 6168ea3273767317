//! The mirror: where real return addresses are kept while a function's return is hooked.
//!
//! It is keyed by the *stack slot*, the address at which the return address lies. Two calls that are
//! open at the same time have different slots, whatever threads they run in, so nothing need be
//! known of the guest's threads. Each page of stack that is used gets a page of the mirror, once and
//! for good, through a directory of tags; a slot's place in its page is its place on the stack. So a
//! stack that is reused finds its page again, and no entry is ever given back.
//!
//! The directory is a hash of page numbers with [`WAYS`] places for each. A page is claimed by one
//! locked compare-and-exchange of an empty tag. Tags are never changed again: that is why the look-up
//! needs no lock, and why two threads that claim for the same page end at the same place. When all
//! ways are taken the call is not hooked, and says so in its record.
//!
//! An empty tag is 0, which is also the number of the first page of the address space. A stack there
//! would take every empty place for its own, so it gets none: the claim routine refuses it, and the
//! one place that the look-up tries first for it never holds 0 ([`Mirror::NOBODY`]).

use crate::addr::Gva;
use crate::insn::asm::registers::{gpr32, gpr64};
use crate::insn::asm::{
    Assembled, CodeAssembler, CodeLabel, IcedError, assemble, lea_fixed, qword_ptr,
};

/// Places in the directory for one page number.
pub const WAYS: u32 = 4;
/// Bytes of a page, of the stack and of the mirror.
pub const PAGE: u64 = 4096;

/// Where the mirror lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mirror {
    /// The directory: a word for each page, the number of the stack page that has it, or 0.
    pub directory: Gva,
    /// The pages, in the order of the directory.
    pub pages: Gva,
    /// How many pages, a power of two, as its exponent.
    pub pages_log2: u32,
    /// Where the claim routine lies ([`Mirror::claim_routine`]).
    pub claim: Gva,
}

impl Mirror {
    /// The number of no page. Whoever makes a mirror stores it at [`Mirror::directory`]; all other
    /// memory of a new mirror is zero.
    pub const NOBODY: u64 = u64::MAX;

    /// Bytes of a directory and pages for `2^pages_log2` pages of stack.
    #[must_use]
    pub const fn bytes(pages_log2: u32) -> (u64, u64) {
        (8 << pages_log2, PAGE << pages_log2)
    }

    fn index_mask(self) -> u32 {
        (1 << self.pages_log2) - 1
    }

    /// From a stack slot to its place in the pages, when the first way is its.
    fn place_mask(self) -> u32 {
        (self.index_mask() << PAGE.trailing_zeros()) | 0xff8
    }

    /// Appends the look-up of the mirror word for the stack slot whose address is in rcx: r11 + rdx
    /// is its address. Changes rax and flags. What runs when the first way is not the slot's is left
    /// to be emitted out of the way; it goes to `none` when there is no place for the slot, if that
    /// can be.
    ///
    /// The common case is one load and one branch that is not taken.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit_lookup(
        self,
        a: &mut CodeAssembler,
        none: Option<CodeLabel>,
    ) -> Result<Claim, IcedError> {
        use gpr64::{r11, rax, rcx, rdx};
        let label = a.create_label();
        let mut back = a.create_label();
        a.mov(rax, rcx)?;
        a.shr(rax, PAGE.trailing_zeros())?;
        a.mov(gpr32::edx, gpr32::eax)?;
        a.and(gpr32::edx, self.index_mask())?;
        lea_fixed(a, r11, self.directory.0)?;
        a.cmp(qword_ptr(r11 + rdx * 8), rax)?;
        a.jne(label)?;
        // The first way's index and the place in the page are neighbours in the slot's address.
        a.mov(gpr32::edx, gpr32::ecx)?;
        a.and(gpr32::edx, self.place_mask())?;
        lea_fixed(a, r11, self.pages.0)?;
        a.set_label(&mut back)?;
        Ok(Claim {
            label,
            back,
            none,
            routine: self.claim,
        })
    }

    /// From the directory's index in rdx and the slot in rcx to the mirror word's address in rdx.
    fn emit_place(self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rax, rdx};
        a.shl(rdx, PAGE.trailing_zeros())?;
        lea_fixed(a, r11, self.pages.0)?;
        a.add(rdx, r11)?;
        a.mov(gpr32::eax, gpr32::ecx)?;
        a.and(gpr32::eax, 0xff8)?;
        a.add(rdx, rax)
    }

    /// The routine that stubs call when the first way is not theirs: looks at all ways, then claims
    /// an empty one. In: the slot in rcx. Out: the address of its mirror word in rdx, or 0 when there
    /// is none. Changes rax, r11 and flags.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn claim_routine(self) -> Result<Assembled, IcedError> {
        use gpr64::{r11, rax, rcx, rdx, rsi};
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let mut found = a.create_label();
        let mut none = a.create_label();
        let mut out = a.create_label();
        a.push(rsi)?;
        a.mov(rsi, rcx)?;
        a.shr(rsi, PAGE.trailing_zeros())?;
        a.je(none)?;
        lea_fixed(&mut a, r11, self.directory.0)?;
        for way in 0..WAYS {
            self.emit_way(&mut a, way)?;
            a.cmp(qword_ptr(r11 + rdx * 8), rsi)?;
            a.je(found)?;
        }
        for way in 0..WAYS {
            self.emit_way(&mut a, way)?;
            a.xor(gpr32::eax, gpr32::eax)?;
            a.lock().cmpxchg(qword_ptr(r11 + rdx * 8), rsi)?;
            a.je(found)?;
            a.cmp(rax, rsi)?;
            a.je(found)?;
        }
        a.set_label(&mut none)?;
        a.xor(gpr32::edx, gpr32::edx)?;
        a.jmp(out)?;
        a.set_label(&mut found)?;
        self.emit_place(&mut a)?;
        a.set_label(&mut out)?;
        a.pop(rsi)?;
        a.ret()?;
        assemble(&mut a, self.claim.0)
    }

    /// The directory's index of one way for the page number in rsi, in rdx.
    fn emit_way(self, a: &mut CodeAssembler, way: u32) -> Result<(), IcedError> {
        a.mov(gpr32::edx, gpr32::esi)?;
        a.and(gpr32::edx, self.index_mask())?;
        a.xor(gpr32::edx, way)
    }
}

/// The part of a look-up that runs when the first way is not the slot's.
#[derive(Debug)]
pub struct Claim {
    label: CodeLabel,
    back: CodeLabel,
    none: Option<CodeLabel>,
    routine: Gva,
}

impl Claim {
    /// Appends the code.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit(mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::rdx;
        a.set_label(&mut self.label)?;
        a.call(self.routine.0)?;
        if let Some(none) = self.none {
            a.test(rdx, rdx)?;
            a.je(none)?;
        }
        a.mov(gpr32::r11d, 0)?;
        a.jmp(self.back)
    }
}
