//! `vmm doctor`: what this host can and cannot do, what each lack means, and how to mend it.
//!
//! Nothing is concluded from names or versions: what can be tried is tried, in the order device,
//! capabilities, parts of a machine, code in a tiny VM. The trials are those of [`crate::trial`].

mod attach;
mod capabilities;
mod check;
mod confinement;
mod device;
mod parts;
mod trials;

use std::fmt;

use serde::Serialize;

pub use check::{Check, Need, Verdict};

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether tracing can work.
    pub usable: bool,
    /// What was examined.
    #[serde(skip)]
    pub of: Examined,
    /// In the order in which things were looked at.
    pub checks: Vec<Check>,
}

/// What a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Examined {
    /// This host: whether it can run guests that are traced.
    Host,
    /// A guest of another VMM.
    Guest,
}

impl Report {
    /// The report of these findings.
    #[must_use]
    pub fn new(of: Examined, checks: Vec<Check>) -> Self {
        let fatal =
            |check: &Check| check.need == Need::Required && check.verdict == Verdict::Missing;
        Self {
            usable: !checks.iter().any(fatal),
            of,
            checks,
        }
    }
}

/// Examines this host. Takes well under a second, or a few where ring 0 is emulated.
#[must_use]
pub fn examine() -> Report {
    let mut checks = Vec::new();
    if let Some(kvm) = device::look(&mut checks) {
        capabilities::look(&kvm, &mut checks);
        if parts::look(&kvm, &mut checks) {
            trials::look(&mut checks);
        }
    }
    confinement::look(&mut checks);
    Report::new(Examined::Host, checks)
}

/// Examines whether a guest of another VMM can be traced: by process, by name, or the only one. It is held for some
/// milliseconds.
#[must_use]
pub fn examine_guest(wanted: Option<&str>) -> Report {
    let mut checks = Vec::new();
    attach::look(wanted, &mut checks);
    Report::new(Examined::Guest, checks)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let verdict = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Missing => "missing",
            };
            writeln!(f, "{verdict:8} {:36} {}", check.name, check.found)?;
            if check.verdict == Verdict::Missing {
                writeln!(f, "         means: {}", check.means)?;
                writeln!(f, "         mend:  {}", check.mend)?;
            }
        }
        let conclusion = match (self.of, self.usable) {
            (Examined::Host, true) => "Tracing works on this host.",
            (Examined::Host, false) => {
                "Tracing cannot work on this host: a required part is missing."
            }
            (Examined::Guest, true) => "This guest can be traced.",
            (Examined::Guest, false) => "This guest cannot be traced: see what is missing.",
        };
        writeln!(f, "\n{conclusion}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(need: Need, verdict: Verdict) -> Check {
        let found = "this".to_owned();
        Check {
            name: "a thing",
            verdict,
            found,
            need,
            means: "a lack",
            mend: "do that",
        }
    }

    #[test]
    fn only_a_required_lack_makes_a_host_unusable() {
        let usable = |need, verdict| Report::new(Examined::Host, vec![check(need, verdict)]).usable;
        assert!(usable(Need::Required, Verdict::Ok));
        assert!(usable(Need::Optional, Verdict::Missing));
        assert!(!usable(Need::Required, Verdict::Missing));
    }

    #[test]
    fn a_lack_says_what_it_means_and_how_to_mend_it() {
        let report = Report::new(
            Examined::Host,
            vec![check(Need::Optional, Verdict::Missing)],
        )
        .to_string();
        assert!(
            report.contains("a lack") && report.contains("do that"),
            "{report}"
        );
        let report =
            Report::new(Examined::Guest, vec![check(Need::Optional, Verdict::Ok)]).to_string();
        assert!(!report.contains("a lack"), "{report}");
    }

    #[test]
    fn any_host_gets_a_report() {
        let report = examine();
        assert!(!report.checks.is_empty());
        assert!(
            serde_json::to_string(&report)
                .unwrap()
                .contains("\"verdict\"")
        );
    }
}
