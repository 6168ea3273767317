//! Instructions that something of ours displaces: they run in the window, and jump back to what follows them.

use insn::relocate::{RelocateError, relocate};
use terms::addr::Gva;

/// Whole instructions, as they are at their own place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detour {
    /// Where they are.
    pub from: Gva,
    /// Their bytes.
    pub code: Box<[u8]>,
}

impl Detour {
    /// The code that does the same at `at`.
    ///
    /// # Errors
    /// A [`RelocateError`].
    pub fn code(&self, at: Gva) -> Result<Vec<u8>, RelocateError> {
        relocate(&self.code, self.from, at)
    }
}
