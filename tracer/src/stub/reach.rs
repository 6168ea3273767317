//! How code reads the guest's memory without a fault, whatever is mapped there.

use crate::addr::Gva;

/// Where the routines are that stubs call to read the guest's memory. All of them leave every register alone but
/// those that they are said to change, and the flags; carry says that there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Changes the address in rax to the number that lies there, of 1, 2, 4 or 8 bytes as rcx says, without sign;
    /// changes rcx.
    pub read: Gva,
    /// Copies the rcx bytes at rax into the words from r11 on, four into the upper half of each; the lower half
    /// becomes r10. Leaves in rax how many those were; changes rcx.
    pub copy: Gva,
    /// The same up to a NUL, which is not copied: rcx is the most that are. [`TRUNCATED`] is
    /// set in rax when there is more.
    pub copy_text: Gva,
}

/// The bit that tells text which has been cut from text that is whole.
pub const TRUNCATED: u32 = 1 << 31;
