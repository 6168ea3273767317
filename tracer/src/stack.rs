//! The stack of a probe's hit: what its stub has copied of it, and how a reader makes callers of that.
//!
//! A stub cannot walk a stack, and the host reads a record milliseconds after the hit, when the stack holds something else. So the stub
//! copies a piece of it, from its pointer on, with the registers that a walk begins with. Return addresses that lead to our hooks have
//! their own put in their place by the stub, out of the mirror, which is as short-lived. Who walks is the guest's kind
//! ([`Unwind`]), by what the kernel says of its own text.

use std::fmt::Debug;
use std::sync::Arc;

use image::Image;
use terms::addr::Gva;
use terms::field::FieldValue;

use crate::module::Module;
use crate::target::{MemoryError, PhysicalMemory};

/// What a stub has copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedStack {
    /// Where the probe sits.
    pub at: Gva,
    /// The stack pointer there.
    pub pointer: Gva,
    /// The frame pointer's register there.
    pub frame: u64,
    /// What lay from the stack pointer on.
    pub bytes: Vec<u8>,
}

impl CopiedStack {
    /// The word that lay at an address, if it was copied.
    #[must_use]
    pub fn word(&self, at: u64) -> Option<u64> {
        let offset = usize::try_from(at.checked_sub(self.pointer.0)?).ok()?;
        let bytes = self.bytes.get(offset..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }
}

/// From a word of a stack that a call may return by, and what lies there, to where the call was made: what lies there but where it was
/// hooked.
pub type OwnReturn<'a> = dyn Fn(Gva, Gva) -> Gva + 'a;

/// Nothing is hooked.
#[must_use]
pub const fn as_it_lies(_: Gva, there: Gva) -> Gva {
    there
}

/// Addresses of a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Walked {
    /// The probe's own first, then where each caller goes on.
    pub addresses: Vec<Gva>,
    /// Whether the last is that of the outermost caller: else more are not known.
    pub is_whole: bool,
}

/// Why a kernel's stacks cannot be walked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnwindError {
    /// There are none.
    #[error(
        "the kernel has no tables by which its stacks can be walked (ORC: CONFIG_UNWINDER_ORC, with BTF)"
    )]
    None,
    /// They cannot be read.
    #[error("the kernel's tables by which its stacks are walked (ORC) cannot be read: {0}")]
    Memory(#[from] MemoryError),
    /// They are none.
    #[error(
        "the kernel's tables by which its stacks are walked (ORC) make no sense: {addresses} bytes of addresses, {entries} of entries"
    )]
    Lengths {
        /// Of the one.
        addresses: u64,
        /// Of the other.
        entries: u64,
    },
}

/// Who knows how a kernel's functions keep their callers.
pub trait Unwind: Debug + Send + Sync {
    /// Walks a stack. The work is bounded, whatever was copied.
    fn walk(&self, stack: &CopiedStack) -> Walked;

    /// The same, also through these modules and those through which it could before: stacks of the time when they were there
    /// may be walked later.
    fn with(&self, memory: &dyn PhysicalMemory, modules: &[Module]) -> Arc<dyn Unwind>;
}

/// What makes values of copied stacks.
#[derive(Debug, Clone)]
pub struct StackReader {
    /// Who walks.
    pub unwind: Arc<dyn Unwind>,
    /// Whose the functions are.
    pub image: Arc<Image>,
}

impl StackReader {
    /// The callers by name.
    #[must_use]
    pub fn value(&self, stack: &CopiedStack) -> FieldValue {
        let Walked {
            addresses,
            is_whole,
        } = self.unwind.walk(stack);
        let named = addresses.iter().enumerate();
        let named = named.map(|(depth, at)| self.name(*at, depth > 0).into());
        FieldValue::Stack {
            stack: named.collect(),
            truncated: !is_whole,
        }
    }

    /// An address as function and offset. One that is returned to may lie after the end of its caller, whose last instruction was the call.
    fn name(&self, at: Gva, is_return: bool) -> String {
        let within = Gva(at.0.wrapping_sub(u64::from(is_return)));
        let function = self.image.function_at(within);
        match function.and_then(|id| self.image.function(id)) {
            Some(function) => match at.0.wrapping_sub(function.address.0) {
                0 => function.display.to_string(),
                offset => format!("{}+{offset:#x}", function.display),
            },
            None => at.to_string(),
        }
    }
}
