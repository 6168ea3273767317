//! What this process may do, and each of its threads: they read what a guest writes, so they may do no more than they must.
//!
//! Root is refused ([`root`]). What nobody needs is given up before any thread is made ([`privileges`]). After that each thread is held to the system
//! calls of its [`Role`], which is the first thing that it does ([`enter`]). A call that is not on the list of its role ends
//! the process, with a line that names both. And where it writes files is settled before the guest runs ([`places`]).

mod filters;
mod libraries;
mod lists;
pub mod places;
pub mod privileges;
mod role;
pub mod root;
mod violation;

use std::sync::OnceLock;

use filters::Filters;
pub use filters::HoldError;
pub use lists::as_markdown;
pub use role::Role;

/// Whose guest it is that is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// This process is its VMM.
    Own,
    /// Its VMM is the process of this number.
    OfProcess(i32),
}

/// Of this process, if its threads are held to lists.
static FILTERS: OnceLock<Filters> = OnceLock::new();

/// Threads that [`enter`] their role from now on are held to its list, for this guest. `before_end` is done when one breaks it, on that
/// thread and in a handler of a signal: it may take no lock that it would wait for, and no memory.
///
/// # Errors
/// [`HoldError`], when the system does not know such lists.
pub fn hold_threads(guest: Guest, before_end: fn()) -> Result<(), HoldError> {
    let filters = Filters::compile(guest)?;
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

/// This thread has this role for good: it writes no file unless that is what the role is for, and makes none but its system
/// calls, where threads are held to that.
pub fn enter(role: Role) {
    if !role.writes_files() {
        places::write_nowhere().unwrap_or_else(|error| give_up(&error));
    }
    if let Some(filters) = FILTERS.get() {
        filters.apply(role).unwrap_or_else(|error| give_up(&error));
    }
}

/// Nobody waits for an answer of this thread, and it must not go on as it is.
fn give_up(error: &dyn std::error::Error) -> ! {
    log::error!("{error}");
    violation::end_now()
}
