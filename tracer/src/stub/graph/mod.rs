//! The code around a call whose entry and exit are recorded.
//!
//! ```text
//!            balanced                     jmp                         ret
//!  site      jmp stub                     jmp stub                    jmp stub
//!  stub      record entry                 record entry                record entry
//!            return address -> mirror     return address -> mirror    return address -> mirror
//!            drop it from the stack       write `leave` over it       write `leave` over it
//!            call body                    jmp body                    jmp body
//!  leave     record exit                  record exit                 record exit
//!            push return address          jmp *return address         push return address
//!            ret                                                      ret
//! ```
//!
//! *Balanced* keeps the CPU's return predictor right: each call has its return. *Jmp* is the scheme
//! of 2009 (seed S0), with one unpredicted jump; *ret*, the one before it, has two unpredicted
//! returns. A site after the prologue (`-pg`) cannot be called in the middle, so it uses *jmp*
//! where *balanced* is asked for.
//!
//! A function that was entered by a tail jump finds an address inside the stubs where its return
//! address should be: it is recorded as such and not hooked again.

mod asking;
mod fast;
mod timing;

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, IcedError, dword_ptr, lea_fixed,
    ptr, qword_ptr,
};
use terms::addr::Gva;

use crate::stub::access::CellAccess;
use crate::stub::cell::LIMIT;
use crate::stub::mirror::Claim;
use crate::stub::profile;
use crate::stub::recorder::{Full, Unforeseen};
use crate::stub::registers::{CALLERS, ENTRY, EXIT, HEAD, Kept, Scratch};
use crate::stub::spec::{Hook, ReturnHook, SiteShape, StubSpec};
use trace::event::Step;

/// Appends the whole stub: entry, body, exit. `body` is the address that the function continues
/// at, `at_exit` what captures when it has returned. What runs out of the way is appended at the end.
///
/// # Errors
/// What iced-x86 says of an operand that cannot be encoded.
pub fn emit(
    a: &mut CodeAssembler,
    hook: &Hook,
    spec: &StubSpec,
    body: Gva,
    at_exit: Gva,
) -> Result<(), IcedError> {
    use gpr64::{rax, rsp};
    let mut code = Code::new(a, hook, spec, at_exit);
    if spec.shape == SiteShape::EntryOnly {
        return code.emit_unhookable(a, body);
    }
    code.emit_begin(a, body)?;
    code.emit_tail_check(a, code.perhaps_tail)?;
    a.set_label(&mut code.no_tail)?;
    code.emit_entry_lookup(a)?;
    code.emit_untimed(a)?;
    code.emit_unheard(a)?;
    code.emit_entry_profiles(a)?;
    code.emit_records(a, &ENTRY, Step::Entry)?;
    match code.variant() {
        ReturnHook::Balanced => {
            code.saved.emit_restore(a)?;
            // Changes no flags.
            a.lea(rsp, ptr(rsp + 8))?;
            a.call(body.0)?;
        }
        ReturnHook::Jmp | ReturnHook::Ret => {
            a.lea(rax, ptr(code.leave))?;
            a.mov(qword_ptr(code.slot()), rax)?;
            code.saved.emit_restore(a)?;
            a.jmp(body.0)?;
        }
    }
    code.emit_leave(a)?;
    code.emit_aside(a, body)
}

/// The stub that is being emitted, and what of it is out of the way of the common case.
struct Code<'a> {
    hook: &'a Hook,
    spec: &'a StubSpec,
    at_exit: Gva,
    /// Saved at the site.
    saved: Kept,
    /// Saved when the function has returned, if callers may know of it.
    returned: Option<Kept>,
    off: CodeLabel,
    perhaps_tail: CodeLabel,
    no_tail: CodeLabel,
    unhooked: CodeLabel,
    leave: CodeLabel,
    claims: Vec<Claim>,
    unforeseen: Vec<Unforeseen>,
    full: Vec<Full>,
}

impl<'a> Code<'a> {
    fn new(a: &mut CodeAssembler, hook: &'a Hook, spec: &'a StubSpec, at_exit: Gva) -> Self {
        Self {
            hook,
            spec,
            at_exit,
            saved: saved(spec),
            returned: spec
                .shape
                .keeps_all()
                .then(|| Kept::with_flags(CALLERS.to_vec())),
            off: a.create_label(),
            perhaps_tail: a.create_label(),
            no_tail: a.create_label(),
            unhooked: a.create_label(),
            leave: a.create_label(),
            claims: Vec::new(),
            unforeseen: Vec::new(),
            full: Vec::new(),
        }
    }

    /// *Balanced* needs the site at the function's entry.
    fn variant(&self) -> ReturnHook {
        match (self.hook.variant, self.spec.shape) {
            (ReturnHook::Balanced, SiteShape::AfterPrologue) => ReturnHook::Jmp,
            (variant, _) => variant,
        }
    }

    /// Where the return address lies while the registers are saved.
    fn slot(&self) -> AsmMemoryOperand {
        self.spec.shape.slot(self.saved.words())
    }

    /// The slot as the function leaves it: right below the stack pointer, or above what is saved there.
    fn left_slot(&self) -> AsmMemoryOperand {
        match &self.returned {
            Some(kept) => {
                let pushed = i32::try_from(8 * kept.words()).unwrap_or(i32::MAX);
                ptr(gpr64::rsp + pushed)
            }
            None => ptr(gpr64::rsp - 8),
        }
    }

    /// The function has returned: has what it returns captured. The stack pointer is right above the slot, which is
    /// where the routine's own return address comes to lie.
    fn emit_exit_capture(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.spec.captures_exit {
            a.call(self.at_exit.0)?;
        }
        Ok(())
    }

    /// Saves registers, and goes past everything where there is nothing to do: before that, but where not even the flags are
    /// nobody's.
    fn emit_begin(&mut self, a: &mut CodeAssembler, body: Gva) -> Result<(), IcedError> {
        if self.spec.shape.keeps_all() {
            self.saved.emit_save(a)?;
            self.emit_gate(a)?;
            return self.emit_off_check(a);
        }
        self.emit_gate(a)?;
        self.emit_fast(a, body)?;
        self.emit_off_check(a)?;
        self.saved.emit_save(a)
    }

    /// Where it goes when there is nothing to do.
    fn emit_off(&mut self, a: &mut CodeAssembler, body: Gva) -> Result<(), IcedError> {
        a.set_label(&mut self.off)?;
        if self.spec.shape.keeps_all() {
            self.saved.emit_restore(a)?;
        }
        a.jmp(body.0)
    }

    /// With one session that is switched off there is nothing to hook.
    fn emit_off_check(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let only = match (&*self.spec.recorders, &*self.spec.profiles) {
            // Somebody waits for the return, whoever records.
            _ if self.spec.captures_exit => None,
            ([only], []) => Some(only.access(&ENTRY)),
            ([], [only]) => Some(only.access(&ENTRY)),
            _ => None,
        };
        if let Some(access) = only.filter(|access| access.is_direct()) {
            a.cmp(access.word(LIMIT), 0)?;
            a.je(self.off)?;
        }
        Ok(())
    }

    /// Goes to `perhaps` when the return address may lie in a stub: its lower half says so.
    fn emit_tail_check(&self, a: &mut CodeAssembler, perhaps: CodeLabel) -> Result<(), IcedError> {
        use gpr32::r11d;
        let Hook {
            stubs, stub_bytes, ..
        } = *self.hook;
        a.mov(r11d, dword_ptr(self.slot()))?;
        a.sub(r11d, lower_half(stubs))?;
        a.cmp(r11d, stub_bytes.cast_signed())?;
        a.jb(perhaps)
    }

    /// Puts the return address into the mirror; leaves its place in rcx.
    fn emit_entry_lookup(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{rax, rcx, rdx};
        a.lea(rcx, self.slot())?;
        let mirror = self.hook.mirror;
        let claim = mirror.emit_lookup(a, rcx, [rax, rdx], Some(self.unhooked))?;
        self.claims.push(claim);
        self.emit_keep(a, rcx)
    }

    /// Copies the return address to its place in the mirror; changes rax and r11.
    fn emit_keep(&self, a: &mut CodeAssembler, place: AsmRegister64) -> Result<(), IcedError> {
        a.mov(gpr64::rax, qword_ptr(self.slot()))?;
        let word = self.hook.mirror.word(a, place)?;
        a.mov(word, gpr64::rax)
    }

    fn emit_entry_profiles(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let profiles = &self.spec.profiles;
        if !profiles.is_empty() {
            let word = self.hook.mirror.word(a, gpr64::rcx)?;
            a.lea(profile::WORD, word)?;
        }
        profiles
            .iter()
            .try_for_each(|one| one.emit_entry(a, &ENTRY))
    }

    /// A record for each session.
    fn emit_records(
        &mut self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
        step: Step,
    ) -> Result<(), IcedError> {
        let slot = match step {
            Step::Exit => self.left_slot(),
            Step::Entry | Step::Tail | Step::Unhooked => self.slot(),
        };
        let spec = self.spec;
        for (number, recorder) in spec.recorders.iter().enumerate() {
            // A function session records entries only; at an entry the slot has the return address still.
            if !recorder.format.is_graph() && step == Step::Exit {
                continue;
            }
            let mut back = a.create_label();
            let full = a.create_label();
            self.emit_asked(a, (number, recorder), step, back)?;
            let room = recorder.emit_check(a, scratch, full)?;
            recorder.emit_beside(a, scratch, (slot, self.spec.shape.has_return_address()))?;
            match recorder.halts.entered() {
                Some(entered) if matches!(step, Step::Entry | Step::Exit) => {
                    self.emit_write_timing(a, recorder, scratch, (step, entered))?;
                }
                _ => {
                    let unforeseen = recorder.emit_write(a, scratch, step)?;
                    self.unforeseen.extend(unforeseen);
                }
            }
            a.set_label(&mut back)?;
            self.full
                .push(Full::new(full, room, back, (recorder, scratch)));
        }
        Ok(())
    }

    /// Entered by the function's `ret`.
    fn emit_leave(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rsi};
        let (mirror, spec) = (self.hook.mirror, self.spec);
        a.set_label(&mut self.leave)?;
        self.emit_exit_capture(a)?;
        let returned = self.returned.clone();
        if let Some(kept) = &returned {
            a.lea(gpr64::rsp, ptr(gpr64::rsp - 8))?;
            kept.emit_save(a)?;
        }
        if !spec.profiles.is_empty() {
            // Before the records: they take time, too.
            self.emit_exit_profiles(a)?;
        }
        self.emit_records(a, &EXIT, Step::Exit)?;
        let real = if spec.profiles.is_empty() || !spec.recorders.is_empty() {
            self.emit_exit_lookup(a)?;
            mirror.word(a, rsi)?
        } else {
            qword_ptr(profile::WORD)
        };
        if let Some(kept) = &returned {
            a.mov(r11, real)?;
            a.mov(qword_ptr(self.left_slot()), r11)?;
            kept.emit_restore(a)?;
            a.ret()
        } else if self.variant() == ReturnHook::Jmp {
            a.mov(r11, real)?;
            a.jmp(r11)
        } else {
            a.push(real)?;
            a.ret()
        }
    }

    /// Leaves the mirror word's place in rsi. The page was claimed for good: it is found.
    fn emit_exit_lookup(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r8, r9, rsi};
        a.lea(rsi, self.left_slot())?;
        let claim = self.hook.mirror.emit_lookup(a, rsi, [r8, r9], None)?;
        self.claims.push(claim);
        Ok(())
    }

    fn emit_exit_profiles(&mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r10, rax, rdx, rsi};
        self.emit_exit_lookup(a)?;
        let word = self.hook.mirror.word(a, rsi)?;
        a.lea(profile::WORD, word)?;
        a.mov(r10, rax)?;
        a.mov(rsi, rdx)?;
        let profiles = &self.spec.profiles;
        profiles
            .iter()
            .try_for_each(|one| one.emit_exit(a, &EXIT))?;
        a.mov(rax, r10)?;
        a.mov(rdx, rsi)
    }

    fn emit_aside(mut self, a: &mut CodeAssembler, body: Gva) -> Result<(), IcedError> {
        use gpr64::{r11, rax};
        a.set_label(&mut self.perhaps_tail)?;
        a.mov(r11, qword_ptr(self.slot()))?;
        lea_fixed(a, rax, self.hook.stubs.0)?;
        a.sub(r11, rax)?;
        a.cmp(r11, self.hook.stub_bytes.cast_signed())?;
        a.jae(self.no_tail)?;
        self.emit_entry_only(a, Step::Tail, body)?;
        a.set_label(&mut self.unhooked)?;
        self.emit_entry_only(a, Step::Unhooked, body)?;
        self.emit_off(a, body)?;
        let mut claims = std::mem::take(&mut self.claims).into_iter();
        claims.try_for_each(|claim| claim.emit(a))?;
        self.emit_seldom(a)
    }

    /// What of the records is out of the way.
    fn emit_seldom(self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let mut unforeseen = self.unforeseen.into_iter();
        unforeseen.try_for_each(|part| part.emit(a))?;
        self.full.into_iter().try_for_each(|full| full.emit(a))
    }

    /// The whole stub of a function whose return is not hooked.
    fn emit_unhookable(mut self, a: &mut CodeAssembler, body: Gva) -> Result<(), IcedError> {
        self.emit_begin(a, body)?;
        self.emit_entry_only(a, Step::Unhooked, body)?;
        self.emit_off(a, body)?;
        self.emit_seldom(a)
    }

    /// Records a call whose return is not hooked, and continues in the function.
    fn emit_entry_only(
        &mut self,
        a: &mut CodeAssembler,
        step: Step,
        body: Gva,
    ) -> Result<(), IcedError> {
        let mut profiles = self.spec.profiles.iter();
        profiles.try_for_each(|one| one.emit_unhooked(a, &ENTRY))?;
        self.emit_records(a, &ENTRY, step)?;
        self.saved.emit_restore(a)?;
        a.jmp(body.0)
    }
}

/// What the code at the site uses and the function must find again.
fn saved(spec: &StubSpec) -> Kept {
    let records = spec.recorders.iter().map(|one| one.access(&ENTRY));
    let profiles = spec.profiles.iter().map(|one| one.access(&ENTRY));
    let has_base = !records.chain(profiles).all(CellAccess::is_direct);
    let mut saved = vec![ENTRY.mark, ENTRY.record, ENTRY.detail];
    let times_calls = spec
        .recorders
        .iter()
        .any(|one| one.halts.entered().is_some());
    saved.extend(spec.shape.keeps_all().then_some(HEAD));
    saved.extend((has_base || times_calls).then_some(ENTRY.base));
    if !spec.profiles.is_empty() {
        saved.extend(profile::AT_ENTRY);
    } else if asking::heard(spec).is_some() {
        saved.push(profile::WORD);
    }
    match spec.shape.keeps_all() {
        true => Kept::with_flags(saved),
        false => Kept::of(saved),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn lower_half(address: Gva) -> i32 {
    (address.0 as u32).cast_signed()
}
