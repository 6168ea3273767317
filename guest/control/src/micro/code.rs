//! Functions that are made at run time, so that all variants lie at the same places.

use core::sync::atomic::{Ordering, compiler_fence};

unsafe extern "C" {
    /// link.ld: memory that ring 3 may write and execute.
    static code_arena: [u8; 0];
    static code_arena_end: [u8; 0];
}

/// The least distance of two functions: a cache line.
pub const LINE: u64 = 64;
/// Multiplies, adds, returns: `lea rax, [rdi+rdi*4]; xor rax, 0x55; ret`.
pub const BODY: [u8; 9] = [0x48, 0x8d, 0x04, 0xbf, 0x48, 0x83, 0xf0, 0x55, 0xc3];

/// Where code can be put.
pub fn start() -> u64 {
    (&raw const code_arena) as u64
}

/// How many lines there is room for.
pub fn lines() -> u64 {
    ((&raw const code_arena_end) as u64 - start()) / LINE
}

/// Puts a function into line `line`: the parts one after another. Its address.
pub fn put(line: u64, parts: &[&[u8]]) -> u64 {
    let address = start() + (line % lines()) * LINE;
    let bytes = parts.iter().copied().flatten();
    for (offset, byte) in (0..LINE).zip(bytes) {
        // SAFETY: the line lies in memory that nothing else uses, and this thread alone runs.
        unsafe { ((address + offset) as *mut u8).write_volatile(*byte) };
    }
    compiler_fence(Ordering::SeqCst);
    address
}
