//! What the tests of ftrace and of uftrace ask of a tracer, and what comes of it here: the cases of the suite `conformance`, as
//! data, so that docs/conformance.md can be made of them without a guest.
//!
//! Behaviours only: their tests are GPL, and nothing of them is here but the names of their files.

mod ftrace;
mod uftrace;

use std::fmt::Write as _;

/// Whose test it is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// The kernel's, in `tools/testing/selftests/ftrace`.
    Ftrace,
    /// uftrace's, in `tests`.
    Uftrace,
}

/// The guest that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// The bundled one: a test of its own.
    Bundled,
    /// A distribution's Linux, whose tracefs is not mounted meanwhile: a step on a guest that many share.
    Linux,
}

impl Ground {
    /// As the page has it.
    const fn name(self) -> &'static str {
        match self {
            Self::Bundled => "bundled guest",
            Self::Linux => "stock Linux",
        }
    }
}

/// One of their tests.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The name of theirs, as a function has it.
    pub name: &'static str,
    /// Whose it is.
    pub suite: Suite,
    /// What it asks for.
    pub behaviour: &'static str,
    /// What does it here.
    pub command: &'static str,
    /// The guests on which a test of the suite, or a step of one, with the name of the case shows it.
    pub grounds: &'static [Ground],
    /// What the kernel's own tracer answers to the same question on the same kernel, if it is asked, beside our answer.
    pub own: &'static str,
}

impl Case {
    /// A case that a test shows.
    const fn passes(
        suite: Suite,
        name: &'static str,
        grounds: &'static [Ground],
        behaviour: &'static str,
        command: &'static str,
    ) -> Self {
        Self {
            name,
            suite,
            behaviour,
            command,
            grounds,
            own: "",
        }
    }

    /// The same, where the kernel's own tracer is asked, too, and answers this.
    const fn beside(self, own: &'static str) -> Self {
        Self { own, ..self }
    }
}

/// Every case.
#[must_use]
pub fn cases() -> Vec<Case> {
    [ftrace::CASES, uftrace::CASES].concat()
}

/// The names of those that a test shows on this guest, in the order of the page.
#[must_use]
pub fn shown_on(ground: Ground) -> Vec<&'static str> {
    let cases = cases().into_iter();
    let shown = cases.filter(|case| case.grounds.contains(&ground));
    shown.map(|case| case.name).collect()
}

/// The names of those of which the kernel's own tracer is asked, too.
#[must_use]
pub fn asked_of_the_kernel() -> Vec<&'static str> {
    let cases = cases().into_iter();
    let asked = cases.filter(|case| !case.own.is_empty());
    asked.map(|case| case.name).collect()
}

/// The part of docs/conformance.md that is made of the cases.
#[must_use]
pub fn as_markdown() -> String {
    let cases = cases();
    let mut page = String::new();
    for (suite, title) in [
        (Suite::Ftrace, "Those of ftrace"),
        (Suite::Uftrace, "Those of uftrace"),
    ] {
        let of: Vec<&Case> = cases.iter().filter(|case| case.suite == suite).collect();
        let has_own = of.iter().any(|case| !case.own.is_empty());
        let _ = write!(
            page,
            "## {title}: {0} of {0}\n\n| theirs | behaviour | command | result |{1}\n|---|---|---|---|{2}\n",
            of.len(),
            if has_own {
                " the kernel's own tracer |"
            } else {
                ""
            },
            if has_own { "---|" } else { "" },
        );
        for case in of {
            let own = if has_own {
                format!(" {} |", case.own)
            } else {
                String::new()
            };
            let _ = writeln!(page, "{}{own}", row(case));
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn row(case: &Case) -> String {
    let grounds: Vec<&str> = case.grounds.iter().map(|ground| ground.name()).collect();
    let grounds = grounds.join(", ");
    // A bar in a cell would be a border.
    let command = case.command.replace('|', "\\|");
    let command = match command.as_str() {
        "" => String::new(),
        command => format!("`{command}`"),
    };
    format!(
        "| `{}` | {} | {command} | passes: {grounds} |",
        case.name, case.behaviour
    )
}
