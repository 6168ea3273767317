//! Whose calls a stub records: asked of the task that its vCPU runs, at each call, before anything else. What is not
//! recorded is neither counted nor lost.
//!
//! ```text
//!     r11 = gs:[current]           the task itself, or its number
//!     r11 = r11->pid
//!     byte r11 of the table says no? ── yes ──> nothing
//! ```
//!
//! `current` is read at the call, so nothing has to be noticed when vCPUs switch: a task that runs when the filter
//! changes is seen like any other, an interrupt counts as the task that it has interrupted, and whatever becomes of a
//! task's memory, its number is that of now. A table has a byte for each number that there can be.
//!
//! What a number does not say (its name, its process, its cgroup) a [routine] looks up in the task, by lists
//! that lie before the table. Whose children are followed, those tasks say as they [fork]: the byte of a new task is
//! written before it runs for the first time.

pub mod fork;
pub mod routine;
#[cfg(test)]
mod tests;

use insn::asm::registers::{gpr32, gpr64};
use insn::asm::{
    CodeAssembler, CodeLabel, IcedError, absolute, add_fixed, byte_ptr, dword_ptr, qword_ptr,
};
use terms::addr::Gva;

use crate::current_task::{CurrentTask, NAME_BYTES};

/// Numbers that a task can have: Linux has no more (`PID_MAX_LIMIT`).
pub const NUMBERS: u32 = 1 << 22;
/// Bytes of what stubs read to know whom they record: the lists, and the table.
pub const BLOCK_BYTES: u64 = TABLE + NUMBERS as u64;

/// Offset of the word that is the address of the table.
pub const TABLE_AT: u64 = 0;
/// Offset of the word that is 1 when what matches is *not* recorded.
pub const IS_NOT: u64 = 8;
/// Offset of the number of names.
pub const NAMES: u64 = 16;
/// Offset of the number of cgroups.
pub const CGROUPS: u64 = 24;
/// Offset of the names: [`NameWords`] each.
pub const NAME_LIST: u64 = 64;
/// Bytes of one.
pub const NAME_ENTRY: u64 = 32;
/// Offset of the cgroups: a level and a number each.
pub const CGROUP_LIST: u64 = NAME_LIST + LIST_MAX as u64 * NAME_ENTRY;
/// Bytes of one.
pub const CGROUP_BYTES: u64 = 16;
/// Entries that each of these lists can have.
pub const LIST_MAX: usize = 32;
/// Offset of the table: a byte for each number.
pub const TABLE: u64 = 4096;
const _: () = assert!(CGROUP_LIST + LIST_MAX as u64 * CGROUP_BYTES <= TABLE);

/// In a byte of the table: the task of this number is recorded.
pub const RECORDED: u8 = 1;
/// In a byte of the table: the number was named when no task had it. It means the next one that gets it, whoever its
/// parent is.
pub const WAITS: u8 = 2;
/// In a byte of the table: every task of the process of this number is meant.
pub const PROCESS: u8 = 4;

/// Who is recorded, as a stub asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskCheck {
    /// How the task is found that runs.
    pub current: CurrentTask,
    /// Where the lists and the table lie.
    pub block: Gva,
    /// The routine that looks at more than a number, if that is asked.
    pub routine: Option<Gva>,
    /// From a word of the mirror to the one that says for whom the beginning of the call was recorded: of a graph.
    pub heard: Option<i32>,
}

impl TaskCheck {
    /// Goes to `out` when the task that runs is not recorded. Changes r11 and the flags.
    pub(super) fn emit(&self, a: &mut CodeAssembler, out: CodeLabel) -> Result<(), IcedError> {
        self.emit_ask(a)?;
        a.je(out)
    }

    /// Leaves *zero* in the flags when the task that runs is not recorded; changes r11.
    fn emit_ask(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r11, rsp};
        if let Some(routine) = self.routine {
            a.call(routine.0)?;
            // A return address that stays below the stack would look like a thread that goes on here.
            return a.mov(qword_ptr(rsp - 8), 0);
        }
        a.mov(r11, qword_ptr(self.current.at).gs())?;
        if let Some(task) = self.current.task {
            a.mov(gpr32::r11d, dword_ptr(r11 + task.pid))?;
        }
        a.and(gpr32::r11d, (NUMBERS - 1).cast_signed())?;
        match absolute(self.table().0) {
            Some(table) => a.test(byte_ptr(r11 + table), i32::from(RECORDED)),
            None => {
                add_fixed(a, r11, self.block.wrapping_add(TABLE_AT).0)?;
                a.test(byte_ptr(r11), i32::from(RECORDED))
            }
        }
    }

    /// Where the table is.
    const fn table(&self) -> Gva {
        self.block.wrapping_add(TABLE)
    }
}

/// A name as it is compared: both halves of the task's name, less what does not matter of them, with what is to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NameWords {
    /// What matters of each half.
    pub masks: [u64; 2],
    /// What is to be there.
    pub words: [u64; 2],
}

impl NameWords {
    /// A name, which has to be all of it, or only its beginning. A task has no more of a name than 15 bytes: what is longer
    /// is compared as far as it goes. None for a name of nothing.
    #[must_use]
    pub fn new(name: &str, is_all: bool) -> Option<Self> {
        let bytes = name.as_bytes();
        let length = bytes.len().min(NAME_BYTES - 1);
        let (mut masks, mut wanted) = ([0; NAME_BYTES], [0; NAME_BYTES]);
        // The 0 after it too, if no more may come.
        let compared = length + usize::from(is_all);
        masks
            .iter_mut()
            .take(compared)
            .for_each(|byte| *byte = 0xff);
        for (to, byte) in wanted.iter_mut().zip(bytes.iter().take(length)) {
            *to = *byte;
        }
        let words = |bytes: [u8; NAME_BYTES]| {
            let halves = u128::from_le_bytes(bytes);
            #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
            [halves as u64, (halves >> 64) as u64]
        };
        (!bytes.is_empty()).then(|| Self {
            masks: words(masks),
            words: words(wanted),
        })
    }

    /// As it lies in the list.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        let ([low_mask, high_mask], [low, high]) = (self.masks, self.words);
        [low_mask, low, high_mask, high]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }
}
