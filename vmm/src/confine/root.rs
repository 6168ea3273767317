//! Root is refused: what takes a thread of this process over has the rights of its user, as far as nothing else holds it.

use rustix::process::geteuid;

/// Somebody works on a guest as root, and has not said that he wants to.
#[derive(Debug, thiserror::Error)]
#[error(
    "{verb}: not as root: a guest that breaks out would be root of this machine; {instead}, or say --allow-root (for all runs of an image for CI: EXOTRACE_ALLOW_ROOT=1)"
)]
pub struct RootRefused {
    /// What was to be done.
    verb: &'static str,
    /// Who could do it.
    instead: &'static str,
}

/// What reads what a guest writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// Runs a guest.
    Run,
    /// Traces another VMM's guest.
    Attach,
    /// Looks at other VMMs' guests.
    Look,
    /// Tries whether another VMM's guest can be traced.
    Try,
}

impl Deed {
    /// As it is typed.
    const fn verb(self) -> &'static str {
        match self {
            Self::Run => "vmm run",
            Self::Attach => "vmm attach",
            Self::Look => "vmm ps --guest",
            Self::Try => "vmm doctor --attach",
        }
    }

    /// Who else can do it.
    const fn instead(self) -> &'static str {
        match self {
            Self::Run => {
                "run it as a user who may use /dev/kvm (a member of the group kvm: sudo usermod -aG kvm USER)"
            }
            Self::Attach | Self::Look | Self::Try => {
                "run it as the user of the guest's VMM (docs/attach.md says what that takes)"
            }
        }
    }
}

/// Refuses root, unless that is wanted.
///
/// # Errors
/// [`RootRefused`] says what to do.
pub fn refuse_root(deed: Deed, is_allowed: bool) -> Result<(), RootRefused> {
    refused(deed, geteuid().is_root(), is_allowed)
}

fn refused(deed: Deed, is_root: bool, is_allowed: bool) -> Result<(), RootRefused> {
    match is_root && !is_allowed {
        true => Err(RootRefused {
            verb: deed.verb(),
            instead: deed.instead(),
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_alone_is_asked() {
        for deed in [Deed::Run, Deed::Attach, Deed::Look, Deed::Try] {
            for (is_root, is_allowed) in [(false, false), (false, true), (true, true)] {
                refused(deed, is_root, is_allowed).unwrap();
            }
            let said = refused(deed, true, false).unwrap_err().to_string();
            let begins = format!("{}: not as root", deed.verb());
            assert!(said.starts_with(&begins), "{said}");
            for words in [deed.instead(), "--allow-root", "EXOTRACE_ALLOW_ROOT=1"] {
                assert!(said.contains(words), "{said}");
            }
        }
    }
}
