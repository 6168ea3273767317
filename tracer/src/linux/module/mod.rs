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

pub use contents::{contents, symbols};
pub use layout::ModuleLayout;
pub use list::loaded;
pub(super) use list::{AREA, word};
