//! Guest addresses as types, so that a virtual one is never used where a physical one is meant.

use std::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The address `offset` bytes further on, `None` past the end of the address space.
            #[must_use]
            pub const fn checked_add(self, offset: u64) -> Option<Self> {
                match self.0.checked_add(offset) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The address `offset` bytes further on, modulo 2^64 as the CPU computes it.
            #[must_use]
            pub const fn wrapping_add(self, offset: u64) -> Self {
                Self(self.0.wrapping_add(offset))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// A guest virtual address.
    Gva
}

address! {
    /// A guest physical address.
    Gpa
}

impl Gva {
    /// The address of which these are the low 48 bits, as processors want it: the others are copies of the highest of
    /// these (AMD64 Architecture Programmer's Manual, volume 2, section 5.3.1).
    #[must_use]
    pub const fn canonical(self) -> Self {
        Self(((self.0 << 16).cast_signed() >> 16).cast_unsigned())
    }
}

/// How far a kernel runs from where it was linked, modulo 2^64. What is in the lower half of the address space is no
/// place in a kernel (Linux links the data of each processor at 0, in the place of offsets), and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Slide(pub u64);

impl Slide {
    /// Where an address of the kernel's file is while it runs.
    #[must_use]
    pub const fn runs(self, linked: Gva) -> Gva {
        Gva(match linked.0 >> 63 {
            0 => linked.0,
            _ => linked.0.wrapping_add(self.0),
        })
    }

    /// Where the kernel's file has what runs at an address.
    #[must_use]
    pub const fn linked(self, runs: Gva) -> Gva {
        Gva(match runs.0 >> 63 {
            0 => runs.0,
            _ => runs.0.wrapping_sub(self.0),
        })
    }
}
