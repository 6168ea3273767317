//! The routine that looks a task up in the lists of names and cgroups, for filters that say more than numbers.
//!
//! It is the same for all stubs of a session, and goes by the lists as they are: another name or cgroup changes no code.

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    AsmRegister64, CodeAssembler, CodeLabel, IcedError, assemble, bind, byte_ptr, dword_ptr,
    lea_fixed, ptr, qword_ptr,
};
use terms::addr::Gva;

use super::{
    CGROUP_BYTES, CGROUP_LIST, CGROUPS, IS_NOT, NAME_ENTRY, NAME_LIST, NAMES, NUMBERS, PROCESS,
    RECORDED, TABLE,
};
use crate::current_task::{CgroupFields, TaskFields};

/// The routine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskRoutine {
    /// The distance from the GS base of the word that leads to the task that runs.
    pub current: i32,
    /// What lies there.
    pub task: TaskFields,
    /// Where the lists and the table lie.
    pub block: Gva,
}

/// What it changes beside r11, and gives back.
const SAVED: [AsmRegister64; 4] = [gpr64::rax, gpr64::rcx, gpr64::rdx, gpr64::rsi];

impl TaskRoutine {
    /// Its code at `at`. It leaves *zero* in the flags when the task that runs is not recorded, and changes r11.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn code(&self, at: Gva) -> Result<Vec<u8>, IcedError> {
        use gpr32::eax;
        use gpr64::{r11, rax, rdx};
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let (matches, decided) = (a.create_label(), a.create_label());
        SAVED.iter().try_for_each(|register| a.push(*register))?;
        lea_fixed(&mut a, rdx, self.block.0)?;
        a.mov(r11, qword_ptr(self.current).gs())?;
        // A byte that says otherwise than what matches nothing decides.
        emit_byte(&mut a, self.task.pid)?;
        a.and(eax, i32::from(RECORDED))?;
        a.cmp(rax, word(IS_NOT))?;
        a.jne(decided)?;
        emit_byte(&mut a, self.task.process)?;
        a.test(eax, i32::from(PROCESS))?;
        a.jne(matches)?;
        self.emit_names(&mut a, matches)?;
        if let Some(cgroup) = self.task.cgroup {
            emit_cgroups(&mut a, &cgroup, matches)?;
        }
        a.mov(rax, word(IS_NOT))?;
        a.jmp(decided)?;
        bind(&mut a, matches)?;
        a.mov(rax, word(IS_NOT))?;
        a.xor(rax, 1)?;
        bind(&mut a, decided)?;
        a.test(eax, eax)?;
        SAVED
            .iter()
            .rev()
            .try_for_each(|register| a.pop(*register))?;
        a.ret()?;
        Ok(assemble(&mut a, at.0)?.bytes)
    }

    /// Goes to `matches` when the name of the task is in the list.
    fn emit_names(&self, a: &mut CodeAssembler, matches: CodeLabel) -> Result<(), IcedError> {
        use gpr64::{r11, rax, rcx};
        let [next, none] = emit_list(a, NAMES, NAME_LIST)?;
        let other = a.create_label();
        for (half, is_last) in [(0, false), (8, true)] {
            let entry = 2 * half;
            a.mov(rax, qword_ptr(r11 + self.task.name + half))?;
            a.and(rax, qword_ptr(rcx + entry))?;
            a.cmp(rax, qword_ptr(rcx + entry + 8))?;
            match is_last {
                false => a.jne(other)?,
                true => a.je(matches)?,
            }
        }
        bind(a, other)?;
        emit_list_end(a, NAME_ENTRY, [next, none])
    }
}

/// A word of the block, whose address is in rdx.
fn word(offset: u64) -> insn::asm::AsmMemoryOperand {
    qword_ptr(gpr64::rdx + i32::try_from(offset).unwrap_or(i32::MAX))
}

/// Leaves the byte of the table in eax for the number that the task has at this offset; changes rcx.
fn emit_byte(a: &mut CodeAssembler, offset: i32) -> Result<(), IcedError> {
    use gpr32::{eax, ecx};
    use gpr64::{r11, rcx, rdx};
    let table = i32::try_from(TABLE).unwrap_or(i32::MAX);
    a.mov(ecx, dword_ptr(r11 + offset))?;
    a.and(ecx, (NUMBERS - 1).cast_signed())?;
    a.movzx(eax, byte_ptr(rdx + rcx + table))
}

/// Begins to go through a list whose number of entries is at `count`: leaves the address of an entry in rcx, and counts in
/// rsi. What follows is done for each; the labels are for [`emit_list_end`].
fn emit_list(a: &mut CodeAssembler, count: u64, list: u64) -> Result<[CodeLabel; 2], IcedError> {
    use gpr64::{rcx, rdx, rsi};
    let (next, none) = (a.create_label(), a.create_label());
    a.mov(rsi, word(count))?;
    a.lea(rcx, ptr(rdx + i32::try_from(list).unwrap_or(i32::MAX)))?;
    bind(a, next)?;
    a.sub(rsi, 1)?;
    a.jb(none)?;
    Ok([next, none])
}

/// What stands after the code for an entry.
fn emit_list_end(
    a: &mut CodeAssembler,
    bytes: u64,
    [next, none]: [CodeLabel; 2],
) -> Result<(), IcedError> {
    a.add(gpr64::rcx, i32::try_from(bytes).unwrap_or(i32::MAX))?;
    a.jmp(next)?;
    bind(a, none)
}

/// Goes to `matches` when the task is in a cgroup of the list, or below one. Changes r11.
///
/// Another vCPU can move the task meanwhile, and free its set when every vCPU has been in a place where interrupts are
/// allowed: so none are while this follows the set's pointers.
fn emit_cgroups(
    a: &mut CodeAssembler,
    way: &CgroupFields,
    matches: CodeLabel,
) -> Result<(), IcedError> {
    use gpr64::{r11, rax, rcx};
    let (found, none_wanted) = (a.create_label(), a.create_label());
    a.cmp(word(CGROUPS), 0)?;
    a.je(none_wanted)?;
    a.pushfq()?;
    a.cli()?;
    a.mov(r11, qword_ptr(r11 + way.set))?;
    a.mov(r11, qword_ptr(r11 + way.cgroup))?;
    let list = emit_list(a, CGROUPS, CGROUP_LIST)?;
    let other = a.create_label();
    a.mov(rax, qword_ptr(rcx))?;
    a.cmp(dword_ptr(r11 + way.level), gpr32::eax)?;
    a.jl(other)?;
    a.mov(rax, qword_ptr(r11 + rax * 8 + way.ancestors))?;
    for offset in way.number.into_iter().flatten() {
        a.mov(rax, qword_ptr(rax + offset))?;
    }
    a.cmp(rax, qword_ptr(rcx + 8))?;
    a.je(found)?;
    bind(a, other)?;
    emit_list_end(a, CGROUP_BYTES, list)?;
    a.popfq()?;
    a.jmp(none_wanted)?;
    bind(a, found)?;
    a.popfq()?;
    a.jmp(matches)?;
    bind(a, none_wanted)
}
