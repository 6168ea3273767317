//! A word that several vCPUs change. Its locked instructions are recorded in `.smp_locks`, as Linux does
//! it: whoever knows that there is one vCPU only can replace the lock prefixes.
//!
//! Everything is inlined: code of every crate, in either ring, has the instruction in itself.

#![no_std]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// A word, changed by locked instructions only.
#[derive(Debug)]
#[repr(transparent)]
pub struct Locked(AtomicU64);

/// An instruction with a recorded lock prefix: each entry is the distance from itself to the prefix.
macro_rules! locked {
    ($instruction:literal, $($operands:tt)*) => {
        asm!(
            ".pushsection .smp_locks, \"a\", @progbits",
            ".balign 4",
            ".long 2f - .",
            ".popsection",
            concat!("2: lock ", $instruction),
            $($operands)*
        )
    };
}

impl Locked {
    /// A word with this value.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Its value.
    #[inline(always)]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Gives it a value, whatever others do at the same time.
    #[inline(always)]
    pub fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Adds to it, wrapping; the value before.
    #[inline(always)]
    pub fn fetch_add(&self, value: u64) -> u64 {
        let mut value = value;
        let at = self.0.as_ptr();
        // SAFETY: one atomic access to a word that the reference keeps alive.
        unsafe {
            locked!("xadd qword ptr [{at}], {value}", at = in(reg) at, value = inout(reg) value, options(nostack))
        };
        value
    }

    /// Makes it `new` if it is `expected`. `Err`: what it is.
    ///
    /// # Errors
    /// The value, when it is another.
    #[inline(always)]
    pub fn compare_exchange(&self, expected: u64, new: u64) -> Result<(), u64> {
        let at = self.0.as_ptr();
        let found: u64;
        // SAFETY: one atomic access to a word that the reference keeps alive.
        unsafe {
            locked!("cmpxchg qword ptr [{at}], {new}", at = in(reg) at, new = in(reg) new, inout("rax") expected => found, options(nostack))
        };
        if found == expected {
            Ok(())
        } else {
            Err(found)
        }
    }
}
