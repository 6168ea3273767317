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
//! returns. A site behind the prologue (`-pg`) cannot be called in the middle, so it uses *jmp*
//! where *balanced* is asked for.
//!
//! A function that was entered by a tail jump finds an address inside the stubs where its return
//! address should be: it is recorded as such and not hooked again.

use crate::addr::Gva;
use crate::insn::asm::registers::{gpr32, gpr64};
use crate::insn::asm::{
    AsmRegister64, CodeAssembler, CodeLabel, IcedError, lea_fixed, ptr, qword_ptr,
};
use crate::record::{SLOT_SHIFT, STEP_SHIFT, Step};
use crate::stub::access::CellAccess;
use crate::stub::cell::{HEAD, LIMIT};
use crate::stub::mirror::{Claim, Mirror};
use crate::stub::recorder::{Full, Recorder};
use crate::stub::template::StubSpec;

/// How a hooked function is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReturnHook {
    /// Entered by `call`, left by `ret`: every return is predicted.
    #[default]
    Balanced,
    /// Left by `jmp` to the real return address.
    Jmp,
    /// Left by `ret` to the real return address.
    Ret,
}

impl ReturnHook {
    /// The name that options have for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Jmp => "jmp",
            Self::Ret => "ret",
        }
    }
}

/// Where a site stands in its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteShape {
    /// At the entry: the return address is on top of the stack.
    Entry,
    /// Behind `push rbp; mov rbp, rsp`: the return address lies above the saved rbp.
    AfterPrologue,
}

/// What a stub needs to hook returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hook {
    /// How functions are left.
    pub variant: ReturnHook,
    /// Where return addresses are kept.
    pub mirror: Mirror,
    /// Where stubs lie, to know a return address that leads into one.
    pub stubs: Gva,
    /// How many bytes of them there can be, below 2 GiB.
    pub stub_bytes: u32,
}

/// The registers that the code around a call uses and preserves; rcx holds the stack slot's address.
const SAVED: [AsmRegister64; SAVED_COUNT as usize] = {
    use gpr64::{r10, r11, rax, rcx, rdx};
    [r11, r10, rax, rdx, rcx]
};
const SAVED_COUNT: u8 = 5;
const SAVED_BYTES: i32 = 8 * SAVED_COUNT as i32;

/// Where the step of a record comes from.
#[derive(Debug, Clone, Copy)]
enum StepSource {
    Is(Step),
    /// In r9, shifted to its place.
    InR9,
}

impl Hook {
    /// Appends the whole stub: entry, body, exit. `body` is the address that the function goes on
    /// at. What runs out of the way is appended at the end.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit(&self, a: &mut CodeAssembler, spec: &StubSpec, body: Gva) -> Result<(), IcedError> {
        use gpr64::{r10, r11, rax, rcx, rdx};
        let (recorders, shape) = (&*spec.recorders, spec.shape);
        let mut aside = Aside::new(a);
        aside.emit_off_check(a, spec)?;
        emit_save(a)?;
        emit_slot(a, shape)?;
        aside.emit_tail_check(a, self)?;
        aside
            .claims
            .push(self.mirror.emit_lookup(a, Some(aside.unhooked))?);
        a.mov(qword_ptr(r11 + rdx), r10)?;
        if !spec.profiles.is_empty() {
            a.add(rdx, r11)?;
            spec.profiles.iter().try_for_each(|one| one.emit_entry(a))?;
        }
        aside.emit_records(a, recorders, StepSource::Is(Step::Entry))?;
        match self.variant_at(shape) {
            ReturnHook::Balanced => {
                emit_restore(a)?;
                a.lea(gpr64::rsp, ptr(gpr64::rsp + 8))?;
                a.call(body.0)?;
            }
            ReturnHook::Jmp | ReturnHook::Ret => {
                a.lea(rax, ptr(aside.leave))?;
                a.mov(qword_ptr(rcx), rax)?;
                emit_restore(a)?;
                a.jmp(body.0)?;
            }
        }
        self.emit_leave(a, spec, &mut aside)?;
        aside.emit(a, spec, body)
    }

    /// *Balanced* needs the site at the function's entry.
    fn variant_at(&self, shape: SiteShape) -> ReturnHook {
        match (self.variant, shape) {
            (ReturnHook::Balanced, SiteShape::AfterPrologue) => ReturnHook::Jmp,
            (variant, _) => variant,
        }
    }

    /// Entered by the function's `ret`: its slot is right below the stack pointer.
    fn emit_leave(
        &self,
        a: &mut CodeAssembler,
        spec: &StubSpec,
        aside: &mut Aside,
    ) -> Result<(), IcedError> {
        use gpr64::{r11, rax, rcx, rdx, rsp};
        a.set_label(&mut aside.leave)?;
        // The slot again, until the return address is put there.
        a.push(rcx)?;
        emit_save(a)?;
        emit_slot(a, SiteShape::Entry)?;
        // The page is claimed for good: it is found.
        if !spec.profiles.is_empty() {
            // Before the records: they take time, too.
            aside.claims.push(self.mirror.emit_lookup(a, None)?);
            a.add(rdx, r11)?;
            spec.profiles.iter().try_for_each(|one| one.emit_exit(a))?;
        }
        aside.emit_records(a, &spec.recorders, StepSource::Is(Step::Exit))?;
        if spec.profiles.is_empty() || !spec.recorders.is_empty() {
            aside.claims.push(self.mirror.emit_lookup(a, None)?);
            a.mov(rax, qword_ptr(r11 + rdx))?;
        } else {
            a.mov(rax, qword_ptr(rdx))?;
        }
        if self.variant_at(spec.shape) == ReturnHook::Jmp {
            // r11 is nobody's at a return (System V ABI): it takes the address there.
            a.mov(qword_ptr(rsp + (SAVED_BYTES - 8)), rax)?;
            emit_restore(a)?;
            a.lea(rsp, ptr(rsp + 8))?;
            a.jmp(r11)
        } else {
            a.mov(qword_ptr(rcx), rax)?;
            emit_restore(a)?;
            a.ret()
        }
    }
}

fn emit_save(a: &mut CodeAssembler) -> Result<(), IcedError> {
    SAVED.iter().try_for_each(|register| a.push(*register))
}

fn emit_restore(a: &mut CodeAssembler) -> Result<(), IcedError> {
    SAVED.iter().rev().try_for_each(|register| a.pop(*register))
}

/// Leaves the address of the stack slot in rcx.
fn emit_slot(a: &mut CodeAssembler, shape: SiteShape) -> Result<(), IcedError> {
    match shape {
        SiteShape::Entry => a.lea(gpr64::rcx, ptr(gpr64::rsp + SAVED_BYTES)),
        SiteShape::AfterPrologue => a.lea(gpr64::rcx, ptr(gpr64::rbp + 8)),
    }
}

/// What is out of the way of the common case.
struct Aside {
    off: CodeLabel,
    tail: CodeLabel,
    unhooked: CodeLabel,
    leave: CodeLabel,
    claims: Vec<Claim>,
    full: Vec<Full>,
}

impl Aside {
    fn new(a: &mut CodeAssembler) -> Self {
        Self {
            off: a.create_label(),
            tail: a.create_label(),
            unhooked: a.create_label(),
            leave: a.create_label(),
            claims: Vec::new(),
            full: Vec::new(),
        }
    }

    /// With one session that is switched off there is nothing to hook.
    fn emit_off_check(&self, a: &mut CodeAssembler, spec: &StubSpec) -> Result<(), IcedError> {
        let only = match (&*spec.recorders, &*spec.profiles) {
            ([only], []) => Some(CellAccess::new(only.cell, gpr64::r8)),
            ([], [only]) => only.direct(),
            _ => None,
        };
        if let Some(access) = only.filter(|access| access.is_direct()) {
            a.cmp(access.word(LIMIT), 0)?;
            a.je(self.off)?;
        }
        Ok(())
    }

    /// Goes to `tail` when the return address lies in a stub; leaves it in r10.
    fn emit_tail_check(&self, a: &mut CodeAssembler, hook: &Hook) -> Result<(), IcedError> {
        use gpr64::{r10, r11, rax, rcx};
        a.mov(r10, qword_ptr(rcx))?;
        lea_fixed(a, r11, hook.stubs.0)?;
        a.mov(rax, r10)?;
        a.sub(rax, r11)?;
        a.cmp(rax, hook.stub_bytes.cast_signed())?;
        a.jb(self.tail)
    }

    /// A record for each session; the slot's address is in rcx. Changes rax, rdx, r10, r11.
    fn emit_records(
        &mut self,
        a: &mut CodeAssembler,
        recorders: &[Recorder],
        step: StepSource,
    ) -> Result<(), IcedError> {
        for recorder in recorders {
            match (recorder.details, step) {
                (Some(details), _) => self.emit_record(a, recorder, details, step)?,
                // A function session records entries only.
                (None, StepSource::Is(Step::Exit)) => {}
                (None, _) => self.full.push(recorder.emit(a)?),
            }
        }
        Ok(())
    }

    fn emit_record(
        &mut self,
        a: &mut CodeAssembler,
        recorder: &Recorder,
        details: Gva,
        step: StepSource,
    ) -> Result<(), IcedError> {
        use gpr64::{r8, r9, r10, r11, rax, rcx, rdx};
        let access = CellAccess::new(recorder.cell, r8);
        let (full, mut back) = (a.create_label(), a.create_label());
        access.enter(a)?;
        a.mov(r11, access.word(HEAD))?;
        a.cmp(r11, access.word(LIMIT))?;
        a.jae(full)?;
        recorder.emit_time(a)?;
        recorder.emit_reserve(a, access)?;
        recorder.emit_mark(a)?;
        a.mov(r10, rcx)?;
        a.shl(r10, SLOT_SHIFT)?;
        match step {
            StepSource::Is(step) => a.lea(r10, ptr(r10 + rax) + ((step as i32) << STEP_SHIFT))?,
            StepSource::InR9 => {
                a.or(r10, rax)?;
                a.or(r10, r9)?;
            }
        }
        recorder.emit_offset(a)?;
        // The detail first: a reader that sees the record then finds it.
        lea_fixed(a, rax, recorder.rings.0)?;
        let distance = details.0.wrapping_sub(recorder.rings.0).cast_signed();
        if let Ok(distance) = i32::try_from(distance) {
            a.mov(qword_ptr(rax + r11 + distance), r10)?;
        } else {
            lea_fixed(a, rax, details.0)?;
            a.mov(qword_ptr(rax + r11), r10)?;
            lea_fixed(a, rax, recorder.rings.0)?;
        }
        a.mov(qword_ptr(rax + r11), rdx)?;
        a.set_label(&mut back)?;
        access.leave(a)?;
        self.full.push(Full::new(full, back, access));
        Ok(())
    }

    fn emit(mut self, a: &mut CodeAssembler, spec: &StubSpec, body: Gva) -> Result<(), IcedError> {
        use gpr32::r9d;
        use gpr64::r9;
        let mut plain = a.create_label();
        a.set_label(&mut self.tail)?;
        a.push(r9)?;
        a.mov(r9d, (Step::Tail as i32) << STEP_SHIFT)?;
        a.jmp(plain)?;
        a.set_label(&mut self.unhooked)?;
        a.push(r9)?;
        a.mov(r9d, (Step::Unhooked as i32) << STEP_SHIFT)?;
        a.set_label(&mut plain)?;
        spec.profiles
            .iter()
            .try_for_each(|one| one.emit_unhooked(a))?;
        self.emit_records(a, &spec.recorders, StepSource::InR9)?;
        a.pop(r9)?;
        emit_restore(a)?;
        a.set_label(&mut self.off)?;
        a.jmp(body.0)?;
        let mut claims = self.claims.into_iter();
        claims.try_for_each(|claim| claim.emit(a))?;
        self.full.into_iter().try_for_each(|full| full.emit(a))
    }
}
