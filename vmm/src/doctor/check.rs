//! One finding about this host.

use serde::Serialize;

/// Whether tracing can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Nothing works without it.
    Required,
    /// There is another way, or only a part is lost.
    Optional,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is there and does what it should.
    Ok,
    /// It is not there, or does not do what it should.
    Missing,
}

/// Something that was looked at, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// What was seen.
    pub found: String,
    /// Whether tracing needs it.
    pub need: Need,
    /// What it means when it is missing.
    pub means: &'static str,
    /// What to do about that.
    pub mend: &'static str,
}

/// What a check is about; [`Subject::check`] adds what was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) need: Need,
    pub(super) means: &'static str,
    pub(super) mend: &'static str,
}

impl Subject {
    /// The check of this subject.
    pub(super) fn check(self, fine: bool, found: impl Into<String>) -> Check {
        Check {
            name: self.name,
            verdict: if fine { Verdict::Ok } else { Verdict::Missing },
            found: found.into(),
            need: self.need,
            means: self.means,
            mend: self.mend,
        }
    }

    /// The check of something that was tried: fine when it worked.
    pub(super) fn tried<T, E: std::fmt::Display>(self, result: Result<T, E>) -> Check {
        match result {
            Ok(_) => self.check(true, "works"),
            Err(error) => self.check(false, error.to_string()),
        }
    }
}

/// For subjects that no setting brings.
pub(super) const NEWER_KVM: &str = "use a host with a newer or more complete KVM";
