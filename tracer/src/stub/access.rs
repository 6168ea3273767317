//! How code addresses the cell of its ring.

use insn::asm::{AsmMemoryOperand, AsmRegister64, CodeAssembler, IcedError, lea_fixed, qword_ptr};
use terms::addr::Gva;

use crate::stub::cell::{CHILD, CellPlace};

/// Where the cell is, and the register that reaches it when no displacement does.
#[derive(Debug, Clone, Copy)]
pub(super) struct CellAccess {
    way: Way,
    base: AsmRegister64,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    /// `gs:[distance]`.
    Gs(i32),
    /// `gs:[base]`, with the distance in the register because it does not fit a displacement.
    FarFromGs(i64),
    /// `[base]`, with the address in the register.
    Fixed(Gva),
}

impl CellAccess {
    /// Access to the cell at `place` by way of `base`, which [`Self::enter`] loads.
    pub(super) fn new(place: CellPlace, base: AsmRegister64) -> Self {
        Self::reaching(place, base, 0)
    }

    /// Access that also reaches what lies `offset` after the cell.
    pub(super) fn reaching(place: CellPlace, base: AsmRegister64, offset: i32) -> Self {
        let way = match place {
            CellPlace::Fixed(address) => Way::Fixed(address),
            // The displacement of every word of the cell must fit.
            CellPlace::FromGs(distance) => match i32::try_from(distance) {
                Ok(near)
                    if near.checked_add(CHILD).is_some()
                        && near
                            .checked_add(offset)
                            .is_some_and(|near| near.checked_add(CHILD).is_some()) =>
                {
                    Way::Gs(near)
                }
                _ => Way::FarFromGs(distance),
            },
        };
        Self { way, base }
    }

    /// Loads the base register when it is needed.
    pub(super) fn enter(self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        match self.way {
            Way::Gs(_) => Ok(()),
            Way::FarFromGs(distance) => a.mov(self.base, distance),
            Way::Fixed(address) => lea_fixed(a, self.base, address.0),
        }
    }

    /// The word at `offset` of the cell.
    pub(super) fn word(self, offset: i32) -> AsmMemoryOperand {
        match self.way {
            Way::Gs(distance) => qword_ptr(distance.wrapping_add(offset)).gs(),
            Way::FarFromGs(_) => qword_ptr(self.base + offset).gs(),
            Way::Fixed(_) => qword_ptr(self.base + offset),
        }
    }

    /// The word at `offset` from the cell plus what is in `index`.
    pub(super) fn indexed(self, index: AsmRegister64, offset: i32) -> AsmMemoryOperand {
        match self.way {
            Way::Gs(distance) => qword_ptr(index + distance.wrapping_add(offset)).gs(),
            Way::FarFromGs(_) => qword_ptr(self.base + index + offset).gs(),
            Way::Fixed(_) => qword_ptr(self.base + index + offset),
        }
    }

    /// Whether no base register is needed.
    pub(super) const fn is_direct(self) -> bool {
        matches!(self.way, Way::Gs(_))
    }

    /// Whether several vCPUs use the cell, so that a change of it needs the lock prefix.
    pub(super) const fn is_shared(self) -> bool {
        matches!(self.way, Way::Fixed(_))
    }
}
