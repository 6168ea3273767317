//! What this process may do, and each of its threads: they read what a guest writes, so they may do no more than they must.
//!
//! What nobody needs is given up before any thread is made ([`privileges`]). After that each thread is held to the system
//! calls of its [`Role`], which is the first thing that it does ([`enter`]). A call that is not on the list of its role ends
//! the process, with a line that names both.

mod filters;
mod libraries;
mod lists;
pub mod privileges;
mod role;
mod violation;

use std::sync::OnceLock;

use filters::Filters;
pub use filters::HoldError;
pub use lists::as_markdown;
pub use role::Role;

/// Of this process, if its threads are held to lists.
static FILTERS: OnceLock<Filters> = OnceLock::new();

/// Threads that [`enter`] their role from now on are held to its list. `before_end` is done when one breaks it, on that
/// thread and in a handler of a signal: it may take no lock that it would wait for, and no memory.
///
/// # Errors
/// [`HoldError`], when the system does not know such lists.
pub fn hold_threads(before_end: fn()) -> Result<(), HoldError> {
    let filters = Filters::compile()?;
    violation::end_with_a_line(before_end)?;
    libraries::ask_now();
    // A second time the lists are the same.
    let _ = FILTERS.set(filters);
    Ok(())
}

/// Whether threads are.
#[must_use]
pub fn holds_threads() -> bool {
    FILTERS.get().is_some()
}

/// This thread has this role for good, and makes none but its system calls, where threads are held to lists.
pub fn enter(role: Role) {
    let Some(filters) = FILTERS.get() else {
        return;
    };
    if let Err(error) = filters.apply(role) {
        // Nobody waits for an answer, and it must not go on as it is.
        log::error!("{error}");
        violation::end_now();
    }
}
