//! The way that most calls take through the stub of one graph session.
//!
//! It knows beforehand that there is room in the ring, that the function was not entered by a tail
//! jump, and that the slot's page has the first of its places in the mirror; whatever is otherwise
//! takes the general way from its beginning. The body returns to where it was called from, and a place
//! in the mirror is for good: so the code after that call needs no look-up.

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{AsmRegister64, CodeAssembler, CodeLabel, IcedError, ptr, qword_ptr};
use terms::addr::Gva;

use super::{Code, ReturnHook, asking, lower_half};
use crate::stub::recorder::Recorder;
use crate::stub::registers::{ENTRY, EXIT};
use trace::event::Step;

impl Code<'_> {
    /// The recorder of a stub that can have the fast way.
    fn only_recorder(&self) -> Option<Recorder> {
        match (&*self.spec.recorders, &*self.spec.profiles) {
            ([only], []) if only.tasks.is_some() && asking::gate(self.spec).is_none() => None,
            ([only], []) if only.access(&ENTRY).is_direct() && only.halts.is_empty() => Some(*only),
            _ => None,
        }
    }

    /// Appends the fast way, for functions that are called in the middle of their stubs.
    pub(super) fn emit_fast(&mut self, a: &mut CodeAssembler, body: Gva) -> Result<(), IcedError> {
        use gpr64::{rax, rcx, rdx, rsi, rsp};
        let Some(recorder) = self.only_recorder() else {
            return Ok(());
        };
        if self.variant() != ReturnHook::Balanced {
            return Ok(());
        }
        let mirror = self.hook.mirror;
        let (mut undo, mut general) = (a.create_label(), a.create_label());
        recorder.emit_check(a, &ENTRY, general)?;
        self.saved.emit_save(a)?;
        a.lea(rcx, self.slot())?;
        mirror.emit_first_way(a, rcx, [rax, rdx], undo)?;
        self.emit_checked_keep(a, rcx, undo)?;
        recorder.emit_beside(a, &ENTRY, (self.slot(), true))?;
        let unforeseen = recorder.emit_write(a, &ENTRY, Step::Entry)?;
        self.unforeseen.extend(unforeseen);
        self.saved.emit_restore(a)?;
        a.add(rsp, 8)?;
        a.call(body.0)?;
        self.emit_exit_capture(a)?;
        self.emit_records(a, &EXIT, Step::Exit)?;
        a.lea(rsi, self.left_slot())?;
        mirror.emit_first_place(a, rsi)?;
        let real = mirror.word(a, rsi)?;
        a.push(real)?;
        a.ret()?;
        a.set_label(&mut undo)?;
        self.saved.emit_restore(a)?;
        a.set_label(&mut general)
    }

    /// Copies the return address to its place in the mirror, or goes to `perhaps` when its lower half is that
    /// of an address in a stub; changes rax and r11.
    fn emit_checked_keep(
        &self,
        a: &mut CodeAssembler,
        place: AsmRegister64,
        perhaps: CodeLabel,
    ) -> Result<(), IcedError> {
        use gpr64::rax;
        let stubs = lower_half(self.hook.stubs).wrapping_neg();
        a.mov(rax, qword_ptr(self.slot()))?;
        a.lea(gpr32::r11d, ptr(rax + stubs))?;
        a.cmp(gpr32::r11d, self.hook.stub_bytes.cast_signed())?;
        a.jb(perhaps)?;
        let word = self.hook.mirror.word(a, place)?;
        a.mov(word, rax)
    }
}
