//! The port write that leaves the guest.

/// Bytes of a trap.
pub const TRAP_LENGTH: usize = 2;
const OUT_IMM8_AL: u8 = 0xe6;

/// `out port, al`
#[must_use]
pub const fn trap(port: u8) -> [u8; TRAP_LENGTH] {
    [OUT_IMM8_AL, port]
}
