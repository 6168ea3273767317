//! The guest's loaded modules, read out of its memory: which there are, where their text lies, and the
//! functions and sites in it. The layouts come from the kernel's own types; every pointer and every
//! count is the guest's and believed only as far as it can be checked.
//!
//! Facts: `struct module`, `kernel/module/` and `ftrace_module_init` of Linux 5.10 to 6.12. A module
//! is in the list, and not *unformed*, for as long as its text is there and its own; its sites
//! are nops by then.

mod contents;
pub mod layout;
mod list;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use contents::{contents, symbols};
pub use layout::ModuleLayout;
pub(super) use list::AREA;
pub use list::{Loaded, loaded};

use image::TextRange;
use terms::addr::Gva;

use crate::target::MemoryError;

/// Why the modules are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// A pointer leads nowhere.
    #[error("the guest's list of modules cannot be read: {0}")]
    Memory(#[from] MemoryError),
    /// The list does not end.
    #[error("the guest's list of modules has more than {0} entries")]
    Endless(usize),
    /// A module with more functions than any.
    #[error("module '{name}' says that it has {count} {what}, more than {limit}")]
    TooMany {
        /// Its name.
        name: String,
        /// Of what.
        what: &'static str,
        /// How many it says.
        count: u64,
        /// How many are believed.
        limit: u64,
    },
}

/// A module that is loaded: as long as all of this is the same, so is the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Where its `struct module` lies.
    pub at: Gva,
    /// Its name.
    pub name: Arc<str>,
    /// Its text that stays.
    pub text: TextRange,
}
