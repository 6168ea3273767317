//! The routine that the stub calls of the function in which a guest lets a new task run for the first time: what is recorded
//! of it, for each session that follows forks.
//!
//! It writes the byte of the new task's number each time, whatever that was before. So a number that comes again says
//! nothing of the task that had it before, and the end of a task needs not be noticed.

use insn::asm::registers::{gpr8, gpr32, gpr64};
use insn::asm::{
    AsmRegister64, CodeAssembler, IcedError, assemble, bind, byte_ptr, dword_ptr, lea_fixed,
};
use terms::addr::Gva;

use super::{NUMBERS, PROCESS, RECORDED, TaskCheck, WAITS};

/// The routine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ForkRoutine {
    /// What each session asks that follows forks. All of them find tasks in memory.
    pub checks: Vec<TaskCheck>,
    /// The routine at which it continues; without one it returns.
    pub go_on: Option<Gva>,
}

/// What it changes, and gives back.
const SAVED: [AsmRegister64; 5] = [gpr64::rax, gpr64::rcx, gpr64::rdx, gpr64::r8, gpr64::r11];

impl ForkRoutine {
    /// Its code at `at`. It is called with the address of the new task in rdi, and changes nothing but flags.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn code(&self, at: Gva) -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        SAVED.iter().try_for_each(|register| a.push(*register))?;
        self.checks
            .iter()
            .try_for_each(|check| check.emit_child(&mut a))?;
        SAVED
            .iter()
            .rev()
            .try_for_each(|register| a.pop(*register))?;
        match self.go_on {
            Some(go_on) => a.jmp(go_on.0)?,
            None => a.ret()?,
        }
        Ok(assemble(&mut a, at.0)?.bytes)
    }
}

impl TaskCheck {
    /// The new task whose address is in rdi is recorded if the task that runs is, which makes it; or as its number says
    /// that has waited for it.
    fn emit_child(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr8::{al, dl};
        use gpr32::ecx;
        use gpr64::{r8, rcx, rdi};
        let Some(task) = self.current.task else {
            return Ok(());
        };
        let (waited, written) = (a.create_label(), a.create_label());
        self.emit_ask(a)?;
        a.setne(al)?;
        a.mov(ecx, dword_ptr(rdi + task.pid))?;
        a.and(ecx, (NUMBERS - 1).cast_signed())?;
        lea_fixed(a, r8, self.table().0)?;
        a.mov(dl, byte_ptr(r8 + rcx))?;
        a.test(dl, i32::from(WAITS))?;
        a.jne(waited)?;
        a.and(dl, i32::from(!(RECORDED | PROCESS)))?;
        a.or(dl, al)?;
        a.jmp(written)?;
        bind(a, waited)?;
        a.and(dl, i32::from(!WAITS))?;
        bind(a, written)?;
        a.mov(byte_ptr(r8 + rcx), dl)
    }
}
