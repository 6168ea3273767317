//! Stubs that ask whose calls they record. One that records for a single session hooks a call only if that does. One that
//! records for several notes beside the mirror which of them have the beginning of a call, and those get its end: a task can be
//! another one by then, by its name or by what the user wants.

use insn::asm::registers::gpr64;
use insn::asm::{CodeAssembler, CodeLabel, IcedError, dword_ptr};

use super::Code;
use crate::stub::profile::WORD;
use crate::stub::recorder::Recorder;
use crate::stub::spec::StubSpec;
use crate::stub::task::TaskCheck;
use trace::event::Step;

/// What decides alone whether anything is done for a call: of a single session, where nobody else wants the return.
pub(super) fn gate(spec: &StubSpec) -> Option<TaskCheck> {
    match (&*spec.recorders, &*spec.profiles) {
        _ if spec.captures_exit => None,
        ([only], []) => only.tasks,
        ([], [only]) => only.tasks,
        _ => None,
    }
}

/// From a word of the mirror to the one in which it is noted who has the beginning of a call, if that is.
pub(super) fn heard(spec: &StubSpec) -> Option<i32> {
    if gate(spec).is_some() {
        return None;
    }
    let graphs = spec.recorders.iter().filter(|one| one.format.is_graph());
    graphs.filter_map(|one| one.tasks?.heard).next()
}

impl Code<'_> {
    /// With one session that records nothing of the task that runs there is nothing to hook.
    pub(super) fn emit_gate(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        match gate(self.spec) {
            Some(tasks) => tasks.emit(a, self.off),
            None => Ok(()),
        }
    }

    /// Nobody has the beginning of this call yet: the place in the mirror is in rcx, and its word's address in [`WORD`] from
    /// now on.
    pub(super) fn emit_unheard(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let Some(heard) = heard(self.spec) else {
            return Ok(());
        };
        let word = self.hook.mirror.word(a, gpr64::rcx)?;
        a.lea(WORD, word)?;
        a.mov(dword_ptr(WORD + heard), 0)
    }

    /// Goes to `back` unless this step is recorded for the session of `recorder`, which is number `number` of those of
    /// this stub.
    pub(super) fn emit_asked(
        &mut self,
        a: &mut CodeAssembler,
        (number, recorder): (usize, &Recorder),
        step: Step,
        back: CodeLabel,
    ) -> Result<(), IcedError> {
        let Some(tasks) = recorder.tasks.filter(|_| gate(self.spec).is_none()) else {
            return Ok(());
        };
        let bit = 1u32.checked_shl(u32::try_from(number).unwrap_or(u32::MAX));
        let noted = tasks.heard.zip(bit).filter(|_| recorder.format.is_graph());
        match (noted, step) {
            (Some((heard, bit)), Step::Exit) => {
                self.emit_own_word(a)?;
                a.test(dword_ptr(gpr64::r9 + heard), bit)?;
                a.je(back)
            }
            (Some((heard, bit)), Step::Entry) => {
                tasks.emit(a, back)?;
                a.or(dword_ptr(WORD + heard), bit)
            }
            _ => tasks.emit(a, back),
        }
    }

    /// The call has returned: leaves the address of its word of the mirror in r9. Changes r8, r11 and rsi.
    pub(super) fn emit_own_word(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r8, r9, rsi};
        let mirror = self.hook.mirror;
        a.lea(r9, self.left_slot())?;
        // It was claimed for good: it is found.
        let claim = mirror.emit_lookup(a, r9, [r8, rsi], None)?;
        self.claims.push(claim);
        let word = mirror.word(a, r9)?;
        a.lea(r9, word)
    }
}
