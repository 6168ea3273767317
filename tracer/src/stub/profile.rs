//! Counting calls and their time in guest memory, without records.
//!
//! Each function has an *entry* of counters for each vCPU: hits, total time and self time. A counter is
//! changed by one instruction that addresses it from the GS base, so neither an interrupt nor a
//! migration can tear it and no lock prefix is needed. Entries of one vCPU lie in blocks of the smallest
//! distance between two GS bases, and a block's entries of all vCPUs lie as the GS bases do:
//!
//! ```text
//!  table                        + span                       + 2 span
//!  | block 0, vCPU 0 | block 0, vCPU 1 | block 1, vCPU 0 | block 1, vCPU 1 | ...
//! ```
//!
//! The time of entry goes to a word at a fixed distance from the mirror's, so a call is timed whatever
//! thread it is in and wherever it is moved to. *Self* is what is left of that without the time of
//! profiled calls inside: a word of the vCPU's cell (*child*) sums those up, and is kept beside the entry time
//! during each call. That is exact only for calls that no other profiled thread preempts and that are
//! not migrated; hits and totals always are. A function that is entered by a tail jump is counted, and its
//! time is that of the function whose return is hooked. Where the vCPUs cannot be told apart, self is not known.
//!
//! A time below zero counts as zero, and is counted as such: a total where the clock went back during the call (those of two vCPUs
//! need not be alike), and a self time of a call that was migrated or in which another thread was.

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, IcedError, PLACE_ENTRY, load_fixed, qword_ptr,
};
use terms::addr::Gva;
use terms::function::FunctionId;

use crate::clock::layout::COUNTER;
use crate::stub::access::CellAccess;
use crate::stub::cell::{CHILD, CellPlace, CpuStrategy, LIMIT};
use crate::stub::recorder::Clock;
use crate::stub::registers::Scratch;
use crate::stub::task::TaskCheck;

/// Bytes of an entry.
pub const ENTRY_BYTES: u32 = 32;
/// Offset of the number of calls in an entry.
pub const HITS: i32 = 0;
/// Offset of the ticks from entries to exits.
pub const TOTAL: i32 = 8;
/// Offset of those without the ticks of profiled calls inside.
pub const OWN: i32 = 16;
/// Offset of how many times, of either kind, were below zero and count as zero.
pub const CLAMPED: i32 = 24;

/// Where the entries of a table lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableLayout {
    functions: u32,
    in_block: u32,
    span: u32,
    lowest: u32,
}

impl TableLayout {
    /// How many functions have an entry.
    #[must_use]
    pub const fn functions(&self) -> u32 {
        self.functions
    }

    /// For so many functions. None when the table would be too large to be worth it.
    #[must_use]
    pub fn new(functions: u32, strategy: &CpuStrategy) -> Option<Self> {
        const BYTES_MAX: u64 = 256 << 20;
        let all = functions.max(1).checked_mul(ENTRY_BYTES)?;
        let (block, offset) = match strategy.closest() {
            Some(distance) => (u32::try_from(distance).ok()?.min(all), strategy.farthest()),
            None => (all, 0),
        };
        let layout = Self {
            functions,
            in_block: block / ENTRY_BYTES,
            span: u32::try_from(offset.checked_add(block.into())?).ok()?,
            lowest: u32::try_from(strategy.lowest()).ok()?,
        };
        (layout.in_block > 0 && layout.bytes() <= BYTES_MAX).then_some(layout)
    }

    /// Where in the table the place of the vCPU begins whose cells are the lowest.
    #[must_use]
    pub const fn lowest(self) -> u64 {
        self.lowest as u64
    }

    /// Bytes of the table.
    #[must_use]
    pub fn bytes(self) -> u64 {
        let blocks = self.functions.max(1).div_ceil(self.in_block.max(1));
        u64::from(blocks) * u64::from(self.span)
    }

    /// Where the entry of a function lies, from the place of the vCPU's first one.
    #[must_use]
    pub fn displacement(self, function: FunctionId) -> u64 {
        let in_block = self.in_block.max(1);
        let (block, place) = (function.0 / in_block, function.0 % in_block);
        u64::from(block) * u64::from(self.span) + u64::from(place) * u64::from(ENTRY_BYTES)
    }
}

/// One profile session, as a stub sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// Where its cells are.
    pub cell: CellPlace,
    /// From a vCPU's cell to its first entry.
    pub table: i32,
    /// Where the others are.
    pub layout: TableLayout,
    /// From a word of the mirror to the one for the time of entry.
    pub entered: i32,
    /// And to the one for the time of the calls before, in the calling function.
    pub saved: i32,
    /// Where the time comes from.
    pub clock: Clock,
    /// Whose calls it counts; those of all tasks without it.
    pub tasks: Option<TaskCheck>,
}

/// Holds the address of the call's mirror word. The code of a profile changes rax, rdx, r11 and
/// [`PLACE`].
pub(super) const WORD: AsmRegister64 = gpr64::r8;
const PLACE: AsmRegister64 = gpr64::r9;

/// Registers that the code of a profile uses at a site, besides those of records.
pub(super) const AT_ENTRY: [AsmRegister64; 2] = [WORD, PLACE];

impl Profile {
    pub(super) fn access(&self, scratch: &Scratch) -> CellAccess {
        CellAccess::reaching(self.cell, scratch.base, self.table)
    }

    /// A counter of the function's entry.
    fn counter(&self, access: CellAccess, counter: i32) -> AsmMemoryOperand {
        access.indexed(PLACE, self.table.wrapping_add(counter))
    }

    fn emit_hit(&self, a: &mut CodeAssembler, access: CellAccess) -> Result<(), IcedError> {
        self.emit_one_more(a, access, HITS)
    }

    fn emit_one_more(
        &self,
        a: &mut CodeAssembler,
        access: CellAccess,
        counter: i32,
    ) -> Result<(), IcedError> {
        if access.is_shared() {
            a.lock().inc(self.counter(access, counter))
        } else {
            a.inc(self.counter(access, counter))
        }
    }

    fn emit_add(
        &self,
        a: &mut CodeAssembler,
        access: CellAccess,
        counter: i32,
        what: AsmRegister64,
    ) -> Result<(), IcedError> {
        if access.is_shared() {
            a.lock().add(self.counter(access, counter), what)
        } else {
            a.add(self.counter(access, counter), what)
        }
    }

    /// Counts a call whose return is not hooked.
    pub(super) fn emit_unhooked(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
    ) -> Result<(), IcedError> {
        let access = self.access(scratch);
        let mut off = a.create_label();
        access.enter(a)?;
        a.cmp(access.word(LIMIT), 0)?;
        a.je(off)?;
        if let Some(tasks) = &self.tasks {
            tasks.emit(a, off)?;
        }
        a.mov(gpr32::r9d, PLACE_ENTRY)?;
        self.emit_hit(a, access)?;
        a.set_label(&mut off)
    }

    /// Counts a call and notes its time; the mirror word's address is in [`WORD`].
    pub(super) fn emit_entry(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
    ) -> Result<(), IcedError> {
        use gpr64::{r11, rax};
        let access = self.access(scratch);
        let mut store = a.create_label();
        access.enter(a)?;
        a.mov(gpr32::r9d, PLACE_ENTRY)?;
        // A time of 0: this call is not timed.
        a.xor(gpr32::eax, gpr32::eax)?;
        a.cmp(access.word(LIMIT), 0)?;
        a.je(store)?;
        if let Some(tasks) = &self.tasks {
            tasks.emit(a, store)?;
        }
        self.emit_hit(a, access)?;
        if !access.is_shared() {
            a.mov(r11, access.word(CHILD))?;
            a.mov(qword_ptr(WORD + self.saved), r11)?;
            a.mov(access.word(CHILD), 0)?;
        }
        self.emit_time(a)?;
        a.set_label(&mut store)?;
        a.mov(qword_ptr(WORD + self.entered), rax)
    }

    /// Counts the time of a call; the mirror word's address is in [`WORD`].
    pub(super) fn emit_exit(
        &self,
        a: &mut CodeAssembler,
        scratch: &Scratch,
    ) -> Result<(), IcedError> {
        use gpr64::{r11, rax};
        let access = self.access(scratch);
        let mut out = a.create_label();
        access.enter(a)?;
        a.mov(r11, qword_ptr(WORD + self.entered))?;
        a.test(r11, r11)?;
        a.je(out)?;
        self.emit_time(a)?;
        a.mov(gpr32::r9d, PLACE_ENTRY)?;
        self.emit_less(a, access, rax, |a| a.sub(rax, r11))?;
        self.emit_add(a, access, TOTAL, rax)?;
        if !access.is_shared() {
            a.mov(r11, rax)?;
            self.emit_less(a, access, r11, |a| a.sub(r11, access.word(CHILD)))?;
            self.emit_add(a, access, OWN, r11)?;
            a.add(rax, qword_ptr(WORD + self.saved))?;
            a.mov(access.word(CHILD), rax)?;
        }
        a.set_label(&mut out)
    }

    /// A subtraction from `register` that stops at 0, which is counted then.
    fn emit_less(
        &self,
        a: &mut CodeAssembler,
        access: CellAccess,
        register: AsmRegister64,
        subtract: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> Result<(), IcedError> {
        let mut fits = a.create_label();
        subtract(a)?;
        a.jae(fits)?;
        a.xor(register, register)?;
        self.emit_one_more(a, access, CLAMPED)?;
        a.set_label(&mut fits)
    }

    /// Leaves the time in rax; changes rdx.
    fn emit_time(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{rax, rdx};
        match self.clock {
            Clock::Tsc => {
                a.rdtsc()?;
                a.shl(rdx, 32u32)?;
                a.or(rax, rdx)
            }
            Clock::Page(Gva(page)) => load_fixed(a, rax, page.wrapping_add(COUNTER)),
            Clock::None => a.xor(gpr32::eax, gpr32::eax),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stub::cell::TracedCode;

    proptest! {
        /// Whatever the distances of the GS bases are, no two entries share a byte, of whichever
        /// functions and vCPUs, and all lie in the table.
        #[test]
        fn entries_never_overlap(
            distances in prop::collection::vec(1u64..20, 0..4),
            functions in 1u32..700,
        ) {
            let mut bases = vec![Gva(0xffff_ffff_8000_0000)];
            for distance in distances {
                let last = bases[bases.len() - 1];
                bases.push(last.wrapping_add(distance * 1024));
            }
            let vcpus = bases.len();
            let own = CpuStrategy::Gs { bases, vcpus, code: TracedCode::User };
            for strategy in [own, CpuStrategy::Shared] {
                let layout = TableLayout::new(functions, &strategy).unwrap();
                let mut places = Vec::new();
                for offset in strategy.cells(Gva(0), 0).offsets {
                    let place = |function| offset + layout.displacement(FunctionId(function));
                    places.extend((0..functions).map(place));
                }
                places.sort_unstable();
                let bytes = u64::from(ENTRY_BYTES);
                prop_assert!(places.windows(2).all(|two| two[0] + bytes <= two[1]));
                prop_assert!(places[places.len() - 1] + bytes <= layout.bytes());
            }
        }
    }
}
