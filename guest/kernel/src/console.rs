//! The serial console of ring 0. Formatting belongs to ring 3; here are only plain pieces.

use crate::cpu;
use crate::layout::SERIAL_PORT;
use crate::lock::SpinLock;

const LINE_STATUS: u16 = SERIAL_PORT + 5;
const RECEIVED: u8 = 1;

/// Keeps the bytes of one write together.
static WRITER: SpinLock<()> = SpinLock::new(());

/// Writes bytes of ring 3.
///
/// # Safety
/// The bytes must be mapped.
pub unsafe fn write_bytes(start: u64, length: u64) {
    let _writer = WRITER.lock();
    // SAFETY: the caller vouches for the bytes.
    unsafe { cpu::write_port_bytes(SERIAL_PORT, start, length) };
}

/// A byte that has been typed, if there is one.
pub fn read_byte() -> Option<u8> {
    (cpu::read_port(LINE_STATUS) & RECEIVED != 0).then(|| cpu::read_port(SERIAL_PORT))
}

/// Writes text without taking the lock: for last words.
pub fn say(text: &str) {
    // SAFETY: a `str` is mapped.
    unsafe { cpu::write_port_bytes(SERIAL_PORT, text.as_ptr() as u64, text.len() as u64) };
}

/// Writes a number in hexadecimal, as [`say`] does.
pub fn say_hex(value: u64) {
    say("0x");
    let digits = (67 - u64::from(value.leading_zeros())).max(4) / 4;
    for place in (0..digits).rev() {
        let digit = (value >> (place * 4)) & 0xf;
        let byte = u8::try_from(digit).unwrap_or_default();
        cpu::write_port(
            SERIAL_PORT,
            if byte < 10 {
                b'0' + byte
            } else {
                b'a' - 10 + byte
            },
        );
    }
}
