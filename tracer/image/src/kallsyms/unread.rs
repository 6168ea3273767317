//! Why the symbols that a kernel carries cannot be read.

use terms::addr::Gva;

/// Of a hundred symbols of code, so many must lie in what claims to be code.
pub(super) const IN_TEXT: usize = 90;

/// Why the symbols that a kernel carries were not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadSymbols {
    /// There is a table of tokens, and no names that belong to it.
    #[error(
        "a table of name tokens lies at {tokens}, but there are no names before it that it spells"
    )]
    Names {
        /// Where the tokens lie.
        tokens: Gva,
    },
    /// Wherever the addresses may be, too few of them lie where code is.
    #[error(
        "of its {names} symbols {code} are code, and of these {inside} lie where code is, expected \
         {} in a hundred",
        IN_TEXT
    )]
    Addresses {
        /// All symbols.
        names: usize,
        /// Those of code.
        code: usize,
        /// Those of code that lie where sections of code are, in the best case.
        inside: usize,
    },
}
