//! Ending what a session records at once, from inside the guest: a stub whose record is what somebody waits for calls a
//! routine, which writes the limit of every ring of the session.
//!
//! ```text
//!     record written
//!     left > 0, and left -= 1      one locked instruction: so often, and no more often, whoever comes by
//!     limit of every ring that is open = off, or hold
//! ```
//!
//! How long a call takes is known where it returns: the time of its entry is kept at a fixed distance from the mirror's
//! word, by those stubs only that wait for it ([`When::Longer`]).

use insn::asm::registers::gpr64;
use insn::asm::{CodeAssembler, IcedError, assemble, bind, lea_fixed, load_constant, qword_ptr};
use terms::addr::Gva;

use crate::stub::cell::{EVENT_CELL, LIMIT};

/// Halts that one session can have.
pub const HALTS_MAX: usize = 4;

/// When recording ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum When {
    /// The place is passed: after its record.
    Passed,
    /// A call ends that took longer: after the record of its end.
    Longer {
        /// From a word of the mirror to the one for the time of entry.
        entered: i32,
        /// Than so many ticks.
        ticks: u64,
    },
}

/// What the stub of a place calls that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Halt {
    /// Where the routine is.
    pub routine: Gva,
    /// When it is called.
    pub when: When,
}

impl Halt {
    /// Calls the routine, which changes r11.
    fn emit(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        a.call(self.routine.0)?;
        // A return address that stays below the stack would look like a thread that goes on here.
        a.mov(qword_ptr(gpr64::rsp - 8), 0)
    }
}

/// Those of one recorder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Halts([Option<Halt>; HALTS_MAX]);

impl Halts {
    /// Of all that a session has those whose bits are set.
    #[must_use]
    pub fn of(all: &[Halt], bits: u8) -> Self {
        let mut halts = Self::default();
        for (number, (place, halt)) in halts.0.iter_mut().zip(all).enumerate() {
            *place = (bits >> number & 1 != 0).then_some(*halt);
        }
        halts
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// From a word of the mirror to the one for the time of entry, where calls are timed.
    #[must_use]
    pub(super) fn entered(&self) -> Option<i32> {
        self.0.iter().flatten().find_map(|halt| match halt.when {
            When::Passed => None,
            When::Longer { entered, .. } => Some(entered),
        })
    }

    /// Appends what is to be done when the record of a place that is passed is there; changes r11.
    pub(super) fn emit_passed(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let mut passed = self.0.iter().flatten();
        passed.try_for_each(|halt| match halt.when {
            When::Passed => halt.emit(a),
            When::Longer { .. } => Ok(()),
        })
    }

    /// Appends what is to be done at the end of a call that took as many ticks as rdi says; changes r8 and r11.
    pub(super) fn emit_longer(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        use gpr64::{r8, rdi};
        for halt in self.0.iter().flatten() {
            let When::Longer { ticks, .. } = halt.when else {
                continue;
            };
            let short = a.create_label();
            load_constant(a, r8, ticks)?;
            a.cmp(rdi, r8)?;
            a.jbe(short)?;
            halt.emit(a)?;
            bind(a, short)?;
        }
        Ok(())
    }
}

/// The routine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HaltRoutine {
    /// How often it still does something.
    pub left: Gva,
    /// The cell of each ring.
    pub cells: Vec<Gva>,
    /// What becomes the limit of all of them, and of the event rings, unless it is 0.
    pub limit: u32,
}

impl HaltRoutine {
    /// Its code at `at`. It changes r11 and the flags.
    ///
    /// # Errors
    /// What iced-x86 says of an operand that cannot be encoded.
    pub fn code(&self, at: Gva) -> Result<Vec<u8>, IcedError> {
        use gpr64::r11;
        let events = i32::try_from(EVENT_CELL).unwrap_or_default();
        let mut a = CodeAssembler::new(64)?;
        a.set_prefer_short_branch(false);
        let (mut none, mut out) = (a.create_label(), a.create_label());
        lea_fixed(&mut a, r11, self.left.0)?;
        a.cmp(qword_ptr(r11), 0)?;
        a.jle(out)?;
        a.lock().dec(qword_ptr(r11))?;
        a.js(none)?;
        for cell in &self.cells {
            lea_fixed(&mut a, r11, cell.0)?;
            for limit in [LIMIT, events + LIMIT] {
                let limit = qword_ptr(r11 + limit);
                let closed = a.create_label();
                // One that is closed, as that of a vCPU that is left out, counts nothing.
                a.cmp(limit, 0)?;
                a.je(closed)?;
                a.mov(limit, self.limit.cast_signed())?;
                bind(&mut a, closed)?;
            }
        }
        a.set_label(&mut out)?;
        a.ret()?;
        // Others have taken the last time between the two looks.
        a.set_label(&mut none)?;
        a.lock().inc(qword_ptr(r11))?;
        a.ret()?;
        Ok(assemble(&mut a, at.0)?.bytes)
    }
}
