//! The code that writes one record for one session.
//!
//! ```text
//!     head >= limit?  ──────────── yes ──> lost += 1 unless off
//!     time
//!     xadd head, 8                 one instruction: no interrupt, no migration can tear it
//!     slot = f(what xadd returned) the ring's number is in it: never through gs again
//!     [slot] = record              one store
//! ```
//!
//! The time is read before the slot is reserved, so that every record before a head that the reader
//! sees is older than the reader's look at the clock.

use insn::asm::registers::gpr64;
use insn::asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, IcedError, PLACE_VALUE, absolute,
    lea_fixed, load_fixed, ptr, qword_ptr,
};
use terms::addr::Gva;

use super::access::CellAccess;
use super::halt::Halts;
use super::registers::{self, HEAD_LOW, Scratch};
use crate::record::{
    Format, RECORD_BYTES, SLOT_SHIFT, STEP_SHIFT, TIME_SHIFT, UNTIMED_SLOT_SHIFT,
    UNTIMED_STEP_SHIFT,
};
use crate::ring::geometry::{Geometry, RING_SHIFT};
use crate::ring::turnstile::WaitAt;
use crate::stub::cell::{CellPlace, FORESEEN, HEAD, LIMIT, LOST};
use crate::stub::task::TaskCheck;
use trace::event::Step;

/// What a record's time is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Clock {
    /// `rdtsc` in each record.
    Tsc,
    /// The word at this address, the start of a [clock page](crate::clock::layout), which the
    /// host keeps.
    Page(Gva),
    /// Records without a time.
    None,
}

/// One session, as a stub sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recorder {
    /// Where its cells are.
    pub cell: CellPlace,
    /// Where its ring 0 begins; the others follow at the distance of a ring's size.
    pub rings: Gva,
    /// What its records say.
    pub format: Format,
    /// Where the second words of its records begin, in the order of the rings, if they have such.
    pub details: Option<Gva>,
    /// The size of its rings.
    pub geometry: Geometry,
    /// Where the time comes from.
    pub clock: Clock,
    /// What ends recording at this place.
    pub halts: Halts,
    /// Where it waits at the limit until there is room; without that the call is counted as lost.
    pub waits: Option<WaitAt>,
    /// Whose calls it records; those of all tasks without it.
    pub tasks: Option<TaskCheck>,
}

impl Recorder {
    /// Goes to `out` when nothing is recorded of the task that runs; changes r11.
    pub(super) fn emit_task_check(
        &self,
        a: &mut CodeAssembler,
        out: CodeLabel,
    ) -> Result<(), IcedError> {
        self.tasks.map_or(Ok(()), |tasks| tasks.emit(a, out))
    }

    /// How the code of a record reaches its cell.
    pub(super) fn access(&self, scratch: &Scratch) -> CellAccess {
        CellAccess::new(self.cell, scratch.base)
    }

    /// Goes to `full` when there is no room for a record; changes [`registers::HEAD`]. The label that is
    /// returned is where the code continues when there is.
    pub(super) fn emit_check(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
        full: CodeLabel,
    ) -> Result<CodeLabel, IcedError> {
        let access = self.access(scratch);
        let mut room = a.create_label();
        access.enter(a)?;
        a.mov(registers::HEAD, access.word(HEAD))?;
        a.cmp(registers::HEAD, access.word(LIMIT))?;
        a.jae(full)?;
        a.set_label(&mut room)?;
        Ok(room)
    }

    /// Leaves in the detail register what its records say beside: the address of the stack slot `slot`, or what lies
    /// there, which is the return address; 0 where that is not known to lie there.
    pub(super) fn emit_beside(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
        (slot, is_known): (AsmMemoryOperand, bool),
    ) -> Result<(), IcedError> {
        match self.format {
            Format::Calls => Ok(()),
            Format::Callers if !is_known => a.xor(scratch.detail, scratch.detail),
            Format::Callers => a.mov(scratch.detail, qword_ptr(slot)),
            Format::Graph | Format::GraphUntimed => a.lea(scratch.detail, slot),
        }
    }

    /// Writes the record. `step` is that of a graph record; what is said beside is in the detail register
    /// ([`Self::emit_beside`]). The function word is the placeholder [`PLACE_VALUE`]. What is returned stands out of the way.
    pub(super) fn emit_write(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
        step: Step,
    ) -> Result<Option<Unforeseen>, IcedError> {
        self.emit_time(a, scratch)?;
        let unforeseen = self.emit_timed(a, scratch, step)?;
        match step {
            Step::Exit => {}
            Step::Entry | Step::Tail | Step::Unhooked => self.halts.emit_passed(a)?,
        }
        Ok(unforeseen)
    }

    /// The same once the time is there, and without what follows.
    pub(super) fn emit_timed(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
        step: Step,
    ) -> Result<Option<Unforeseen>, IcedError> {
        let Scratch {
            mark,
            detail,
            record,
            ..
        } = *scratch;
        if self.format == Format::GraphUntimed {
            a.shl(detail, UNTIMED_SLOT_SHIFT)?;
        }
        let unforeseen = self.emit_reserve(a, scratch)?;
        self.emit_mark(a, scratch, PLACE_VALUE)?;
        match self.format {
            Format::Calls => {}
            Format::Callers => {
                a.shl(detail, SLOT_SHIFT)?;
                a.add(detail, mark)?;
            }
            Format::Graph => {
                a.shl(detail, SLOT_SHIFT)?;
                a.lea(detail, ptr(detail + mark) + ((step as i32) << STEP_SHIFT))?;
            }
            Format::GraphUntimed if step as i32 == 0 => {}
            Format::GraphUntimed => a.add(record, (step as i32) << UNTIMED_STEP_SHIFT)?,
        }
        self.emit_place(a, scratch)?;
        self.emit_stores(a, scratch)?;
        Ok(unforeseen)
    }

    /// Completes the record with `value`, which is its function's, and the lap mark, and leaves the word in its
    /// register that the mark is the low part of.
    pub(super) fn emit_mark(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
        value: i32,
    ) -> Result<(), IcedError> {
        let Scratch {
            mark,
            record,
            detail,
            ..
        } = *scratch;
        a.mov(mark, registers::HEAD)?;
        a.shr(mark, self.geometry.bytes_log2())?;
        match (self.clock, self.format) {
            (_, Format::GraphUntimed) => a.lea(record, ptr(detail + mark) + value),
            (Clock::Tsc | Clock::Page(_), _) => a.lea(record, ptr(record + mark) + value),
            (Clock::None, _) => a.lea(record, ptr(mark) + value),
        }
    }

    /// Leaves the distance of the record's place from ring 0 in two registers, of which it is the sum:
    /// that in its ring in the mark's, and that of its ring in the head's.
    pub(super) fn emit_place(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
    ) -> Result<(), IcedError> {
        let offset_mask = i32::try_from(self.geometry.bytes() - 1).unwrap_or(i32::MAX);
        a.mov(scratch.mark, registers::HEAD)?;
        a.and(scratch.mark, offset_mask)?;
        a.shr(registers::HEAD, RING_SHIFT)?;
        a.shl(registers::HEAD, self.geometry.bytes_log2())
    }

    /// Stores detail and record at the place that is the sum of two registers.
    fn emit_stores(&self, a: &mut CodeAssembler, scratch: &Scratch) -> Result<(), IcedError> {
        let (head, mark) = (registers::HEAD, scratch.mark);
        // The detail first: a reader that sees the record then finds it.
        let details = self.details.map(|details| (details, scratch.detail));
        let words = details.into_iter().chain([(self.rings, scratch.record)]);
        let absolute: Option<Vec<_>> = words
            .clone()
            .map(|(array, word)| Some((absolute(array.0)?, word)))
            .collect();
        if let Some(absolute) = absolute {
            return absolute
                .into_iter()
                .try_for_each(|(array, word)| a.mov(qword_ptr(head + mark + array), word));
        }
        a.add(head, mark)?;
        words.into_iter().try_for_each(|(array, word)| {
            lea_fixed(a, mark, array.0)?;
            a.mov(qword_ptr(mark + head), word)
        })
    }

    /// Leaves the time of the record in its register, if it has one.
    pub(super) fn emit_time(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
    ) -> Result<(), IcedError> {
        use gpr64::{rax, rdx};
        match (self.clock, scratch.kept) {
            (Clock::Tsc, None) => {
                a.rdtsc()?;
                a.shl(rdx, 32 + TIME_SHIFT)?;
                a.shl(rax, TIME_SHIFT)?;
                a.or(rdx, rax)
            }
            (Clock::Tsc, Some([low, high])) => {
                a.mov(low, rax)?;
                a.mov(high, rdx)?;
                a.rdtsc()?;
                a.shl(rdx, 32 + TIME_SHIFT)?;
                a.shl(rax, TIME_SHIFT)?;
                a.lea(scratch.record, ptr(rdx + rax))?;
                a.mov(rax, low)?;
                a.mov(rdx, high)
            }
            (Clock::Page(page), _) => load_fixed(a, scratch.record, page.0),
            (Clock::None, _) => Ok(()),
        }
    }

    /// Leaves the old head word in its register; changes the mark's, which is not in use yet.
    pub(super) fn emit_reserve(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
    ) -> Result<Option<Unforeseen>, IcedError> {
        let access = self.access(scratch);
        if !access.is_shared() && self.clock != Clock::Tsc {
            return Self::emit_foreseen(a, access, scratch.mark).map(Some);
        }
        a.mov(HEAD_LOW, RESERVED)?;
        let word = access.word(HEAD);
        match access.is_shared() {
            true => a.lock().xadd(word, registers::HEAD)?,
            false => a.xadd(word, registers::HEAD)?,
        }
        Ok(None)
    }

    /// Reserves as ever, but goes on with what the head word was foreseen to be, when it was.
    ///
    /// The address of the record's store comes from the head, and until it is known, processors let no later load of
    /// the head word pass that store: so calls wait for each other's `xadd`. A word that is loaded and stored
    /// plainly is there at once, and whether it was right is asked by a branch, which nothing waits for. It need not be
    /// right: after an interrupt, or on another vCPU, it is set anew. Under `rdtsc` none of that can be seen.
    fn emit_foreseen(
        a: &mut CodeAssembler,
        access: CellAccess,
        foreseen: AsmRegister64,
    ) -> Result<Unforeseen, IcedError> {
        let head = registers::HEAD;
        let mut unforeseen = Unforeseen {
            wrong: a.create_label(),
            right: a.create_label(),
            access,
            foreseen,
        };
        a.mov(foreseen, access.word(FORESEEN))?;
        a.lea(head, ptr(foreseen + RESERVED.cast_signed()))?;
        a.mov(access.word(FORESEEN), head)?;
        a.mov(HEAD_LOW, RESERVED)?;
        a.xadd(access.word(HEAD), head)?;
        a.cmp(head, foreseen)?;
        a.jne(unforeseen.wrong)?;
        a.set_label(&mut unforeseen.right)?;
        a.mov(head, foreseen)?;
        Ok(unforeseen)
    }
}

/// The part of a recorder that runs when the head word was not what was foreseen. It stands out of the way, as a jump that is
/// taken costs Zen 3 more than all that is foreseen saves (docs/performance.md).
#[derive(Debug)]
#[must_use = "its label has to stand somewhere"]
pub(super) struct Unforeseen {
    wrong: CodeLabel,
    right: CodeLabel,
    access: CellAccess,
    foreseen: AsmRegister64,
}

impl Unforeseen {
    /// Appends the code: foresees anew, and goes on with what the head word was.
    pub(super) fn emit(mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.set_label(&mut self.wrong)?;
        a.lea(self.foreseen, ptr(registers::HEAD + RESERVED.cast_signed()))?;
        a.mov(self.access.word(FORESEEN), self.foreseen)?;
        a.mov(self.foreseen, registers::HEAD)?;
        a.jmp(self.right)
    }
}

/// What a record takes of its ring.
#[expect(clippy::cast_possible_truncation, reason = "it is 8")]
const RESERVED: u32 = RECORD_BYTES as u32;

/// The part of a recorder that runs when head has reached the limit.
#[derive(Debug)]
pub struct Full {
    label: CodeLabel,
    room: CodeLabel,
    back: CodeLabel,
    access: CellAccess,
    waits: Option<WaitAt>,
}

impl Full {
    /// What is at `label` and continues at `back`, or at `room` when there is some.
    pub(super) fn new(
        label: CodeLabel,
        room: CodeLabel,
        back: CodeLabel,
        (recorder, scratch): (&Recorder, &Scratch),
    ) -> Self {
        Self {
            label,
            room,
            back,
            access: recorder.access(scratch),
            waits: recorder.waits,
        }
    }

    /// Appends the code: counts the call as lost, unless tracing is off. Where nothing is to be lost it waits
    /// at the turnstile and begins anew, as long as somebody reads the ring.
    ///
    /// It looks again before that: a thread that was moved between its two loads has compared one
    /// ring's head with another one's limit.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn emit(mut self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.set_label(&mut self.label)?;
        a.cmp(self.access.word(LIMIT), 0)?;
        a.je(self.back)?;
        a.mov(registers::HEAD, self.access.word(HEAD))?;
        a.cmp(registers::HEAD, self.access.word(LIMIT))?;
        a.jb(self.room)?;
        if let Some(WaitAt { awaited, at }) = self.waits {
            let mut nobody = a.create_label();
            load_fixed(a, registers::HEAD, awaited.0)?;
            a.test(registers::HEAD, registers::HEAD)?;
            a.je(nobody)?;
            load_fixed(a, registers::HEAD, at.0)?;
            a.jmp(self.label)?;
            a.set_label(&mut nobody)?;
        }
        if self.access.is_shared() {
            a.lock().inc(self.access.word(LOST))?;
        } else {
            a.inc(self.access.word(LOST))?;
        }
        a.jmp(self.back)
    }
}
