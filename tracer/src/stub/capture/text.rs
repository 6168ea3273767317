//! Text and bytes as code: copied by the routines that read memory.

use insn::asm::load_constant;
use terms::expression::Expression;

use super::frame::Frame;
use super::{CaptureCode, CodeLabel, IcedError, bind, gpr32, gpr64, ptr};
use crate::capture::Text;
use crate::ring::payload::TRUNCATED;

impl CaptureCode<'_> {
    /// Stores so many bytes from `place` of the payload on; changes rax and rcx.
    pub(super) fn emit_bytes(
        &mut self,
        address: &Expression,
        length: u16,
        place: i32,
    ) -> Result<(), IcedError> {
        let Some(reach) = self.reach else {
            return self.a.jmp(self.fault);
        };
        self.emit_number(address, 0)?;
        self.a.mov(gpr32::ecx, u32::from(length))?;
        self.emit_copy(reach.copy.0, place)?;
        self.a.jc(self.fault)
    }

    /// Stores text from `place` of the payload on, at most `max` bytes. Leaves in rax the word that says how long it
    /// is; changes rcx.
    pub(super) fn emit_text(&mut self, text: &Text, max: u16, place: i32) -> Result<(), IcedError> {
        use gpr64::{rax, rcx};
        let Some(reach) = self.reach else {
            return self.a.jmp(self.fault);
        };
        let Some(length) = &text.length else {
            self.emit_number(&text.address, 0)?;
            self.a.mov(gpr32::ecx, u32::from(max))?;
            self.emit_copy(reach.copy_text.0, place)?;
            return self.a.jc(self.fault);
        };
        let max = i32::from(max);
        let wanted = Frame::number(0).place();
        self.emit_number(length, 0)?;
        self.a.mov(wanted, rax)?;
        self.emit_number(&text.address, 1)?;
        let fits = self.a.create_label();
        self.a.mov(rcx, wanted)?;
        self.a.cmp(rcx, max)?;
        self.a.jbe(fits)?;
        self.a.mov(gpr32::ecx, max)?;
        bind(self.a, fits)?;
        self.emit_copy(reach.copy.0, place)?;
        self.a.jc(self.fault)?;
        let whole = self.a.create_label();
        self.a.cmp(wanted, max)?;
        self.a.jbe(whole)?;
        self.a.or(gpr32::eax, TRUNCATED)?;
        bind(self.a, whole)
    }

    /// Calls a routine that copies to r11, with r11 moved to `place`.
    pub(super) fn emit_copy(&mut self, routine: u64, place: i32) -> Result<(), IcedError> {
        use gpr64::r11;
        self.a.lea(r11, ptr(r11 + place))?;
        self.a.call(routine)?;
        self.a.lea(r11, ptr(r11 - place))
    }

    /// Goes to `to` if whether text is `bytes` is as `wanted`; changes rax, rcx, r10 and r11.
    pub(super) fn emit_branch_text(
        &mut self,
        text: &Text,
        bytes: &[u8],
        to: CodeLabel,
        wanted: bool,
    ) -> Result<(), IcedError> {
        use gpr64::r11;
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let copy = self.frame.text(0);
        self.a.xor(gpr32::r10d, gpr32::r10d)?;
        self.a.lea(r11, copy.place())?;
        self.emit_text(text, length, 0)?;
        let differs = self.a.create_label();
        let other = if wanted { differs } else { to };
        self.a.cmp(gpr32::eax, u32::from(length))?;
        self.a.jne(other)?;
        for (chunk, number) in bytes.chunks(4).zip(0..) {
            let mut expected = [0; 4];
            expected
                .iter_mut()
                .zip(chunk)
                .for_each(|(to, from)| *to = *from);
            self.a
                .mov(gpr32::eax, self.frame.text(number).high_dword())?;
            // After the last byte lies what nobody has asked for.
            match chunk.len() {
                1 => self.a.and(gpr32::eax, 0xff)?,
                2 => self.a.and(gpr32::eax, 0xffff)?,
                3 => self.a.and(gpr32::eax, 0x00ff_ffff)?,
                _ => {}
            }
            load_constant(self.a, gpr64::rcx, u64::from(u32::from_le_bytes(expected)))?;
            self.a.cmp(gpr32::eax, gpr32::ecx)?;
            self.a.jne(other)?;
        }
        if wanted {
            self.a.jmp(to)?;
        }
        bind(self.a, differs)
    }
}
