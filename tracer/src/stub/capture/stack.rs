//! A stack as code: the registers that a walk begins with, and what lies from the stack pointer on.

use insn::asm::load_constant;
use terms::addr::Gva;

use super::{CaptureCode, IcedError, STACK_POINTER, gpr32, gpr64};
use crate::ring::payload::{PAYLOAD_SHIFT, STACK_HEAD};

/// The number of the frame pointer's register.
const FRAME_POINTER: u8 = 5;

impl CaptureCode<'_> {
    /// Stores a stack from `place` of the payload on, at most `max` bytes of it, at a probe at `at`. Leaves in rax how many there are, which belongs at
    /// `place`; changes rcx.
    pub(super) fn emit_stack(&mut self, at: Gva, max: u16, place: i32) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        let Some(reach) = self.reach else {
            return self.a.jmp(self.fault);
        };
        let mut to = place.saturating_add(8);
        for half in [0, PAYLOAD_SHIFT] {
            load_constant(self.a, rax, at.0 >> half)?;
            self.emit_word(rax, to)?;
            to = to.saturating_add(8);
        }
        for register in [STACK_POINTER, FRAME_POINTER] {
            for half in [0, PAYLOAD_SHIFT] {
                self.frame.emit_load(self.a, rax, register)?;
                self.a.shr(rax, half)?;
                self.emit_word(rax, to)?;
                to = to.saturating_add(8);
            }
        }
        debug_assert_eq!(to, place.saturating_add(8 * STACK_HEAD));
        self.frame.emit_load(self.a, rax, STACK_POINTER)?;
        self.a.mov(gpr32::ecx, u32::from(max))?;
        self.emit_copy(reach.copy_mapped.0, to)?;
        if let Some(own_returns) = reach.own_returns {
            self.frame.emit_load(self.a, rcx, STACK_POINTER)?;
            self.emit_copy(own_returns.0, to)?;
        }
        Ok(())
    }
}
