//! `vmm ps`: the KVM guests of this host.

use terms::printable::masked;

use super::stdout::print;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::foreign::listed::{Listed, guests};

/// Lists them.
///
/// # Errors
/// [`Failure`] with one line for the user.
pub fn ps() -> Result<ExitStatus, Failure> {
    let guests = guests()?;
    let mut text = line("PID", "VMM", "NAME", "VCPUS");
    for guest in &guests {
        text += &row(guest);
    }
    print(&text).map(|()| ExitStatus::Success)
}

fn row(guest: &Listed) -> String {
    let name = guest.name.as_deref().unwrap_or("-");
    line(
        &guest.pid.to_string(),
        masked(&guest.vmm).as_ref(),
        masked(name).as_ref(),
        &guest.vcpus.to_string(),
    )
}

fn line(pid: &str, vmm: &str, name: &str, vcpus: &str) -> String {
    format!("{pid:<8} {vmm:<12} {name:<20} {vcpus}\n")
}
