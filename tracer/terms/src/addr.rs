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
