//! What debug information does not say.

use terms::addr::Gva;
use terms::nearest::did_you_mean;

use super::unread::Unread;

/// Why something is not known of a variable, a type or a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DebugError {
    /// The kernel is no ELF file.
    #[error("the kernel is no 64-bit ELF file of this byte order")]
    NotElf,
    /// There is none.
    #[error(
        "there is no debug information for {what}: registers (%rdi), $arg1 to $arg6 at a function's entry, $retval at its \
         return, memory (*(%rsp+8):u64) and symbols work without"
    )]
    Absent {
        /// What it was needed for.
        what: String,
    },
    /// There is some, but it is not read.
    #[error("there is debug information for {what}, but it is not read: {why}")]
    Unread {
        /// What it was needed for.
        what: String,
        /// What is in the way.
        why: Unread,
    },
    /// It makes no sense.
    #[error("the debug information is damaged or of an unknown kind: {0}")]
    Damaged(String),
    /// No variable of this name.
    #[error("there is no variable `{name}` at {place}{}{}", did_you_mean(.near), say_known(.known))]
    Variable {
        /// What was written.
        name: String,
        /// Where it was looked for.
        place: String,
        /// Names like it.
        near: Vec<String>,
        /// Those that there are, if few.
        known: Vec<String>,
    },
    /// A variable without a place.
    #[error("`{name}` is optimised out at {place}{}", say_available(.available))]
    OptimisedOut {
        /// What was written.
        name: String,
        /// Where it was looked for.
        place: String,
        /// Where it is available.
        available: Vec<String>,
    },
    /// A variable whose place cannot be said.
    #[error("`{name}` cannot be captured at {place}: {why}")]
    Place {
        /// What was written.
        name: String,
        /// Where.
        place: String,
        /// Why not.
        why: String,
    },
    /// No file of this name.
    #[error("no source file `{file}` is known{}", did_you_mean(.near))]
    File {
        /// What was written.
        file: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// Several files of this name.
    #[error("`{file}` is any of `{}`: write more of the path", .files.join("`, `"))]
    Files {
        /// What was written.
        file: String,
        /// Those that end so.
        files: Vec<String>,
    },
    /// A line without code.
    #[error("there is no code for {file}:{line}{}", say_nearest(.nearest))]
    Line {
        /// The file.
        file: String,
        /// The line.
        line: u64,
        /// The nearest lines that have some.
        nearest: Vec<u64>,
    },
    /// Code for a line, but at an address that the image does not have.
    #[error("the code for {file}:{line}, at {at}, is not in the image")]
    Elsewhere {
        /// The file.
        file: String,
        /// The line.
        line: u64,
        /// Where it should be.
        at: Gva,
    },
}

impl DebugError {
    /// Whether there is none that can be read: what else is known of a kernel may do in its place.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent { .. } | Self::Unread { .. })
    }
}

fn say_known(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" (there are {})", names.join(", ")),
    }
}

fn say_available(ranges: &[String]) -> String {
    match ranges {
        [] => " and everywhere else in the function".to_owned(),
        ranges => format!("; it is available at {}", ranges.join(", ")),
    }
}

fn say_nearest(lines: &[u64]) -> String {
    let lines: Vec<String> = lines.iter().map(u64::to_string).collect();
    match lines.as_slice() {
        [] => String::new(),
        [line] => format!("; the nearest line with code is {line}"),
        lines => format!("; the nearest lines with code are {}", lines.join(" and ")),
    }
}
