//! Return addresses that lead to our hooks get their own put in their place in a copy of a stack, while the copy is made: the
//! mirror's words are overwritten by the next calls in the same slots.

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    Assembled, CodeAssembler, CodeLabel, IcedError, assemble, bind, dword_ptr, lea_fixed, ptr,
    qword_ptr,
};
use terms::addr::Gva;

use super::{Mirror, PAGE, WAYS};

impl Mirror {
    /// The routine, for stubs from `stubs` on, as it lies at `at`. In: how many bytes were copied in rax; where the first of them lay in rcx;
    /// in r11 where the words of a payload begin that have them, four in the upper half of each. Changes flags, and those words.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn own_returns_routine(
        self,
        (stubs, stub_bytes): (Gva, u64),
        at: Gva,
    ) -> Result<Assembled, IcedError> {
        use gpr64::{r8, r9, r11, rax, rbx, rcx, rdi, rdx, rsi};
        let saved = [rax, rbx, rcx, rdx, rsi, rdi, r8, r9];
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let [next, skip, out] = [(); 3].map(|()| a.create_label());
        for register in saved {
            a.push(register)?;
        }
        a.mov(r8, rax)?;
        a.mov(r9, r11)?;
        a.mov(rdi, rcx)?;
        // Return addresses lie at multiples of eight.
        a.test(gpr32::edi, 7)?;
        a.jne(out)?;
        bind(&mut a, next)?;
        a.cmp(r8, 8)?;
        a.jb(out)?;
        a.mov(gpr32::eax, dword_ptr(r9 + 4))?;
        a.mov(gpr32::edx, dword_ptr(r9 + 12))?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
        lea_fixed(&mut a, rdx, stubs.0)?;
        a.sub(rax, rdx)?;
        let bytes = i32::try_from(stub_bytes).unwrap_or(i32::MAX);
        a.cmp(rax, bytes)?;
        a.jae(skip)?;
        self.emit_kept(&mut a, skip)?;
        // Nothing was kept for this slot yet.
        a.test(rax, rax)?;
        a.je(skip)?;
        a.mov(dword_ptr(r9 + 4), gpr32::eax)?;
        a.shr(rax, 32)?;
        a.mov(dword_ptr(r9 + 12), gpr32::eax)?;
        bind(&mut a, skip)?;
        a.lea(r9, ptr(r9 + 16))?;
        a.add(rdi, 8)?;
        a.sub(r8, 8)?;
        a.jmp(next)?;
        bind(&mut a, out)?;
        for register in saved.into_iter().rev() {
            a.pop(register)?;
        }
        a.ret()?;
        assemble(&mut a, at.0)
    }

    /// Loads into rax what is kept for the slot whose address is in rdi; goes to `none` where its page has no place. Changes rbx, rcx, rdx and rsi.
    fn emit_kept(self, a: &mut CodeAssembler, none: CodeLabel) -> Result<(), IcedError> {
        use gpr64::{rax, rbx, rcx, rdi, rdx, rsi};
        let found = a.create_label();
        a.mov(rsi, rdi)?;
        a.shr(rsi, PAGE.trailing_zeros())?;
        a.je(none)?;
        lea_fixed(a, rbx, self.directory.0)?;
        for way in 0..WAYS {
            self.emit_way(a, way)?;
            a.cmp(qword_ptr(rbx + rdx * 8), rsi)?;
            a.je(found)?;
        }
        a.jmp(none)?;
        bind(a, found)?;
        a.shl(rdx, PAGE.trailing_zeros())?;
        a.mov(rcx, rdi)?;
        a.and(rcx, 0xff8)?;
        a.or(rdx, rcx)?;
        lea_fixed(a, rbx, self.pages.0)?;
        a.mov(rax, qword_ptr(rbx + rdx))
    }
}
