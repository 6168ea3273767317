//! What is asked of the stub of a function: who records, where its site stands, and how its return is hooked.

use insn::asm::registers::gpr64;
use insn::asm::{AsmMemoryOperand, ptr};
use terms::addr::Gva;

use crate::stub::mirror::Mirror;
use crate::stub::profile::Profile;
use crate::stub::recorder::Recorder;
use terms::choice::choices;

choices! {
    /// How a function whose exit is recorded is left.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub enum ReturnHook {
        /// Entered by call, left by return: the CPU predicts every return.
        #[default]
        Balanced = "balanced",
        /// Left by a jump to the real return address.
        Jmp = "jmp",
        /// Left by a return to the real return address.
        Ret = "ret",
    }
}

/// Where a site stands in its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteShape {
    /// At the entry: the return address is on top of the stack.
    Entry,
    /// At the entry of a function that was compiled without a site, or not compiled at all: callers may know which registers it
    /// leaves alone (`-fipa-ra`), and what its flags say, so all of them are kept.
    Bare,
    /// After `push rbp; mov rbp, rsp`: the return address lies above the saved rbp.
    AfterPrologue,
    /// Anywhere, in a function that does not return as others do: its entry alone is recorded, as
    /// of the stack that it runs on.
    EntryOnly,
}

impl SiteShape {
    /// Whether callers may know of registers and flags that are nobody's elsewhere.
    #[must_use]
    pub const fn keeps_all(self) -> bool {
        matches!(self, Self::Bare | Self::EntryOnly)
    }

    /// Whether it is known where the return address lies.
    pub(super) const fn has_return_address(self) -> bool {
        !matches!(self, Self::EntryOnly)
    }

    /// Where the return address lies while so many registers are saved; of [`Self::EntryOnly`] the top of the stack.
    pub(super) fn slot(self, saved: usize) -> AsmMemoryOperand {
        let pushed = i32::try_from(8 * saved).unwrap_or(i32::MAX);
        match self {
            Self::Entry | Self::Bare | Self::EntryOnly => ptr(gpr64::rsp + pushed),
            Self::AfterPrologue => ptr(gpr64::rbp + 8),
        }
    }
}

/// What a stub needs to hook returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hook {
    /// How functions are left.
    pub variant: ReturnHook,
    /// Where return addresses are kept.
    pub mirror: Mirror,
    /// Where stubs lie, to know a return address that leads into one.
    pub stubs: Gva,
    /// How many bytes of them there can be, below 2 GiB.
    pub stub_bytes: u32,
}

/// What the stub of a function does: the same for all functions that are traced by the same
/// sessions and have their sites at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StubSpec {
    /// The recorder of each session.
    pub recorders: Vec<Recorder>,
    /// The counters of each profile session; only with a hook.
    pub profiles: Vec<Profile>,
    /// Where sites stand.
    pub shape: SiteShape,
    /// How returns are hooked, when a session wants that.
    pub hook: Option<Hook>,
    /// Whether a routine is called before everything else.
    pub captures_entry: bool,
    /// Whether a routine is called when the function has returned, before that is recorded; only with a hook.
    pub captures_exit: bool,
}
