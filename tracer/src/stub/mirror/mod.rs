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

pub mod give_back;
mod own;
pub mod stacks;

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    AsmMemoryOperand, AsmRegister64, Assembled, CodeAssembler, CodeLabel, IcedError, assemble,
    indexed, lea_fixed, qword_ptr,
};
use terms::addr::Gva;

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

    fn index_mask(self) -> i32 {
        (1 << self.pages_log2) - 1
    }

    /// From a stack slot to its place in the pages, when the first way is its.
    fn place_mask(self) -> i32 {
        (self.index_mask() << PAGE.trailing_zeros()) | 0xff8
    }

    /// Appends the look-up of the mirror word of the stack slot whose address is in `slot`: leaves the
    /// word's distance from the first page there. Changes r11, `page`, `index` and flags. What runs when
    /// the first way is not the slot's is left to be emitted out of the way; it goes to `none` when
    /// there is no place for the slot, if that can be.
    ///
    /// The common case is one load and one branch that is not taken.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit_lookup(
        self,
        a: &mut CodeAssembler,
        slot: AsmRegister64,
        [page, index]: [AsmRegister64; 2],
        none: Option<CodeLabel>,
    ) -> Result<Claim, IcedError> {
        let label = a.create_label();
        let mut back = a.create_label();
        self.emit_first_way(a, slot, [page, index], label)?;
        a.set_label(&mut back)?;
        Ok(Claim {
            label,
            back,
            none,
            slot,
            routine: self.claim,
        })
    }

    /// The look-up as far as it is needed when the first way is the slot's; goes to `other` when it is
    /// not.
    pub(super) fn emit_first_way(
        self,
        a: &mut CodeAssembler,
        slot: AsmRegister64,
        [page, index]: [AsmRegister64; 2],
        other: CodeLabel,
    ) -> Result<(), IcedError> {
        a.mov(page, slot)?;
        a.shr(page, PAGE.trailing_zeros())?;
        a.mov(index, page)?;
        a.and(index, self.index_mask())?;
        let tag = indexed(a, self.directory.0, index, 8, gpr64::r11)?;
        a.cmp(tag, page)?;
        a.jne(other)?;
        self.emit_first_place(a, slot)
    }

    /// From the address of a slot whose page has its first way to the mirror word's distance.
    pub(super) fn emit_first_place(
        self,
        a: &mut CodeAssembler,
        slot: AsmRegister64,
    ) -> Result<(), IcedError> {
        // The first way's index and the place in the page are neighbours in the slot's address.
        a.and(slot, self.place_mask())
    }

    /// The mirror word whose distance is in `place`. Changes r11.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn word(
        self,
        a: &mut CodeAssembler,
        place: AsmRegister64,
    ) -> Result<AsmMemoryOperand, IcedError> {
        indexed(a, self.pages.0, place, 1, gpr64::r11)
    }

    /// From the directory's index in rdx and the slot in rcx to the mirror word's distance in r11.
    fn emit_place(a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rcx, rdx};
        a.mov(r11, rdx)?;
        a.shl(r11, PAGE.trailing_zeros())?;
        a.and(rcx, 0xff8)?;
        a.or(r11, rcx)
    }

    /// The routine that stubs call when the first way is not theirs: looks at all ways, then claims
    /// an empty one. In: the slot in r11. Out: the distance of its mirror word in r11, negative when
    /// there is none. Changes flags only.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn claim_routine(self) -> Result<Assembled, IcedError> {
        use gpr64::{r11, rax, rcx, rdx, rsi};
        let saved = [rax, rcx, rdx, rsi];
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let mut found = a.create_label();
        let mut none = a.create_label();
        let mut out = a.create_label();
        saved
            .into_iter()
            .try_for_each(|register| a.push(register))?;
        a.mov(rcx, r11)?;
        a.mov(rsi, r11)?;
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
        a.mov(r11, -1i64)?;
        a.jmp(out)?;
        a.set_label(&mut found)?;
        Self::emit_place(&mut a)?;
        a.set_label(&mut out)?;
        let saved = saved.into_iter().rev();
        saved.clone().try_for_each(|register| a.pop(register))?;
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
    slot: AsmRegister64,
    routine: Gva,
}

impl Claim {
    /// Appends the code.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit(mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::r11;
        a.set_label(&mut self.label)?;
        a.mov(r11, self.slot)?;
        a.call(self.routine.0)?;
        // Deeper than anything that the guest calls there itself, the return address would stay for good, and look like a
        // thread that goes on here.
        a.mov(qword_ptr(gpr64::rsp - 8), 0)?;
        if let Some(none) = self.none {
            a.test(r11, r11)?;
            a.js(none)?;
        }
        a.mov(self.slot, r11)?;
        a.jmp(self.back)
    }
}
