//! Why a probe cannot be what its text says. One line each: what is wrong, what comes near, what works.

use debuginfo::DebugError;
use terms::addr::Gva;
use terms::nearest::did_you_mean;

/// Why there is no such probe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadProbe {
    /// Where in the text it is.
    #[error("{why}")]
    At {
        /// Which character, from 1.
        column: usize,
        /// What is wrong there.
        why: Box<BadProbe>,
    },
    /// No text.
    #[error(
        "a probe needs a place: FUNCTION, FUNCTION+OFFSET, FUNCTION%return, FILE:LINE or an ADDRESS"
    )]
    Empty,
    /// Text without end.
    #[error("the probe's text has {length} bytes, more than the {max} that are read")]
    TooLong {
        /// Its bytes.
        length: usize,
        /// The most.
        max: usize,
    },
    /// Text that makes no sense.
    #[error("`{text}`: {what}")]
    Syntax {
        /// The text.
        text: String,
        /// What is wrong with it.
        what: String,
    },
    /// No such register.
    #[error(
        "`{name}` is no register that can be captured: %rax to %r15 can, and their lower parts (%eax, %ax, %al)"
    )]
    Register {
        /// What was written.
        name: String,
    },
    /// No such `$name`.
    #[error("`${name}` is unknown: there are $retval, $args, $current, $stack and $arg1 to $arg16")]
    Special {
        /// What was written.
        name: String,
    },
    /// No such type.
    #[error(
        "`:{name}` is no type: there are u8 to u64, i8 to i64, x8 to x64, bool, char, pointer, string and string[N]"
    )]
    Format {
        /// What was written.
        name: String,
    },
    /// No such structure.
    #[error("there is no structure `{name}`{}", did_you_mean(.near))]
    Structure {
        /// What was written.
        name: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// No such function.
    #[error("there is no function `{name}`{}", did_you_mean(.near))]
    Function {
        /// What was written.
        name: String,
        /// Names like it.
        near: Vec<String>,
    },
    /// A module of a kernel that has none.
    #[error("no module `{module}` can come: nothing says where the guest's kernel has its modules")]
    NoModules {
        /// What was written.
        module: String,
    },
    /// A module has several functions of one name.
    #[error(
        "module {module} has {count} functions `{name}`: which of them is meant cannot be said"
    )]
    Ambiguous {
        /// The module.
        module: String,
        /// What was written.
        name: String,
        /// How many there are.
        count: usize,
    },
    /// An address outside the text.
    #[error("{address} is not in the text of the image")]
    NotText {
        /// The address.
        address: Gva,
    },
    /// An offset past the end of its function.
    #[error("`{place}` is past the end of the function, which has {size:#x} bytes")]
    PastEnd {
        /// What was written.
        place: String,
        /// Bytes of the function.
        size: u64,
    },
    /// An offset in the middle of an instruction.
    #[error(
        "`{place}` is inside the instruction `{instruction}`, which goes from {function}+{start:#x} to \
         {function}+{end:#x}: probe one of these"
    )]
    InsideInstruction {
        /// What was written.
        place: String,
        /// The function.
        function: String,
        /// The instruction.
        instruction: String,
        /// Where it begins, from the start of the function.
        start: u64,
        /// Where the next one begins.
        end: u64,
    },
    /// An offset at bytes that are no instruction.
    #[error("`{place}` is after bytes that are no instruction, at {function}+{bad:#x}")]
    NoInstruction {
        /// What was written.
        place: String,
        /// The function.
        function: String,
        /// Where they are.
        bad: u64,
    },
    /// A value that cannot be had.
    #[error("`{text}`: {why}")]
    Value {
        /// What was written.
        text: String,
        /// Why not.
        why: String,
    },
    /// A structure without such a member.
    #[error("`{text}`: {why}")]
    Member {
        /// The structure, as it was written.
        text: String,
        /// The member.
        name: String,
        /// What it has.
        why: String,
    },
    /// What the debug information says, or does not say.
    #[error(transparent)]
    Debug(#[from] DebugError),
    /// Two values of one name.
    #[error("two values are called `{name}`: give one another name, as in `other={name}`")]
    SameName {
        /// Their name.
        name: String,
    },
    /// More values than a record tells apart.
    #[error("the probe captures {count} values, a record has room for {max}")]
    TooMany {
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// One probe whose places capture different things.
    #[error(
        "the {count} places of `{place}` do not have the same values (`{name}` differs): probe one by its address, as {example}"
    )]
    Different {
        /// What was written.
        place: String,
        /// How many places.
        count: usize,
        /// The value that differs.
        name: String,
        /// One of the places.
        example: Gva,
    },
}

impl BadProbe {
    /// Which character of the probe's text is wrong, from 1.
    #[must_use]
    pub const fn column(&self) -> Option<usize> {
        match self {
            Self::At { column, .. } => Some(*column),
            _ => None,
        }
    }

    /// The same at this byte of a probe's text.
    pub(super) fn at(self, text: &str, byte: usize) -> Self {
        if let Self::At { .. } = self {
            return self;
        }
        let before = text.get(..byte).unwrap_or(text);
        Self::At {
            column: before.chars().count() + 1,
            why: Box::new(self),
        }
    }
}
