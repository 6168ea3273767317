//! Stubs that know how long a call took, for those who wait for long ones ([`crate::stub::halt`]): the time of the
//! record of its entry is kept beside the mirror, and compared with that of its exit.

use insn::asm::registers::gpr64;
use insn::asm::{CodeAssembler, IcedError, bind, qword_ptr};

use super::Code;
use crate::record::TIME_SHIFT;
use crate::stub::recorder::Recorder;
use crate::stub::registers::Scratch;
use trace::event::Step;

impl Code<'_> {
    /// No time is known of a call of which there is no record: the place in the mirror is in rcx. Changes rax and r11.
    pub(super) fn emit_untimed(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let mut all = self.spec.recorders.iter();
        let Some(entered) = all.find_map(|one| one.halts.entered()) else {
            return Ok(());
        };
        let word = self.hook.mirror.word(a, gpr64::rcx)?;
        a.lea(gpr64::rax, word)?;
        a.mov(qword_ptr(gpr64::rax + entered), 0)
    }

    /// Writes the record of an entry or an exit, keeps its time or compares it with the one that is kept, and does what
    /// is to be done after it.
    pub(super) fn emit_write_timing(
        &mut self,
        a: &mut CodeAssembler,
        recorder: &Recorder,
        scratch: &Scratch,
        (step, entered): (Step, i32),
    ) -> Result<(), IcedError> {
        recorder.emit_time(a, scratch)?;
        // What comes after goes by no distance from the stack pointer.
        a.push(scratch.record)?;
        let unforeseen = recorder.emit_timed(a, scratch, step)?;
        self.unforeseen.extend(unforeseen);
        // Every recorder loads it anew.
        a.pop(scratch.base)?;
        match step {
            Step::Exit => self.emit_compare(a, recorder, entered),
            Step::Entry | Step::Tail | Step::Unhooked => {
                self.emit_keep_time(a, entered)?;
                recorder.halts.emit_passed(a)
            }
        }
    }

    /// Keeps the time in r10.
    fn emit_keep_time(&mut self, a: &mut CodeAssembler, entered: i32) -> Result<(), IcedError> {
        use gpr64::{r10, rax, rcx, rdx};
        let mirror = self.hook.mirror;
        a.lea(rcx, self.slot())?;
        // It was claimed for good: it is found.
        let claim = mirror.emit_lookup(a, rcx, [rax, rdx], None)?;
        self.claims.push(claim);
        let word = mirror.word(a, rcx)?;
        a.lea(rax, word)?;
        a.mov(qword_ptr(rax + entered), r10)
    }

    /// Compares the time in rdi with that of the entry. Changes r8, r9, r11 and rsi.
    fn emit_compare(
        &mut self,
        a: &mut CodeAssembler,
        recorder: &Recorder,
        entered: i32,
    ) -> Result<(), IcedError> {
        use gpr64::{r8, r9, rdi};
        let out = a.create_label();
        self.emit_own_word(a)?;
        a.mov(r8, qword_ptr(r9 + entered))?;
        a.test(r8, r8)?;
        a.je(out)?;
        a.sub(rdi, r8)?;
        a.shr(rdi, TIME_SHIFT)?;
        recorder.halts.emit_longer(a)?;
        bind(a, out)
    }
}
