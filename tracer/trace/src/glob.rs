//! Globs as ftrace has them: `*` any run, `?` any one character, `[…]` any of a set. Braces, which
//! other globs give a meaning, are ordinary here: demangled names are full of them.

use globset::{Glob, GlobBuilder, GlobMatcher};
use terms::function::Function;

/// The longest glob: each is compared with every function, and one request is not to keep the others waiting for longer
/// than a moment.
const GLOB_MAX: usize = 512;

/// What a glob for modules begins with.
const MODULE: &str = "mod:";
/// What selects functions by their source file begins with, where something is recorded.
pub const FILE: &str = "file:";
/// Characters that are shown of one that is too long.
const SHOWN: usize = 32;

/// Why a glob was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// Not a glob.
    #[error("bad glob '{glob}': {reason}")]
    Bad {
        /// The glob as given.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Longer than any name.
    #[error("a glob of {bytes} bytes, '{start}...': at most {GLOB_MAX} are compared")]
    Long {
        /// How long it is.
        bytes: usize,
        /// How it begins.
        start: String,
    },
    /// More than are compared.
    #[error("{count} globs: at most {GLOBS_MAX} are compared; a '*' in one can stand for several")]
    Many {
        /// How many there would be.
        count: usize,
    },
}

/// The most globs on one side of a filter, or of a graph's rules: each is compared with every function, and one request is not to keep the
/// others waiting for longer than a moment.
const GLOBS_MAX: usize = 512;

/// Whether so many globs are compared.
///
/// # Errors
/// [`GlobError::Many`].
pub fn check_count(count: usize) -> Result<(), GlobError> {
    match count > GLOBS_MAX {
        true => Err(GlobError::Many { count }),
        false => Ok(()),
    }
}

/// What means anything but itself in a glob.
const SPECIAL: [char; 5] = ['*', '?', '[', ']', '\\'];

/// The names that a glob means. A name, or its beginning, is compared as it is: an expression takes longer, for each of a kernel's
/// functions.
#[derive(Debug, Clone)]
enum Names {
    Exactly(Box<str>),
    Beginning(Box<str>),
    Like(GlobMatcher),
}

impl Names {
    fn of(glob: &str) -> Result<Self, GlobError> {
        let compiled = compile(glob)?;
        let plain = glob.find(SPECIAL).unwrap_or(glob.len());
        Ok(match glob.split_at(plain) {
            (name, "") => Self::Exactly(name.into()),
            (start, "*") => Self::Beginning(start.into()),
            _ => Self::Like(compiled.compile_matcher()),
        })
    }

    fn have(&self, name: &str) -> bool {
        match self {
            Self::Exactly(one) => **one == *name,
            Self::Beginning(start) => name.starts_with(&**start),
            Self::Like(matcher) => matcher.is_match(name),
        }
    }
}

/// A glob, as given and ready to match.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    names: Names,
    /// Which modules' functions it is for; none means all functions.
    module: Option<Names>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

impl Pattern {
    /// A glob; `mod:NAME:GLOB` is for the functions of modules of that name, itself a glob.
    ///
    /// # Errors
    /// [`GlobError::Bad`] or [`GlobError::Long`].
    pub fn new(glob: &str) -> Result<Self, GlobError> {
        if glob.len() > GLOB_MAX {
            let start = glob.chars().take(SHOWN).collect();
            let bytes = glob.len();
            return Err(GlobError::Long { bytes, start });
        }
        if glob.starts_with(FILE) {
            return Err(GlobError::Bad {
                glob: glob.to_owned(),
                reason: "files are known while something is recorded, and no trace keeps them: give it as a filter".to_owned(),
            });
        }
        let of_module = glob.strip_prefix(MODULE).map(|rest| {
            rest.split_once(':').ok_or_else(|| GlobError::Bad {
                glob: glob.to_owned(),
                reason: "expected mod:NAME:GLOB".to_owned(),
            })
        });
        let (module, functions) = match of_module.transpose()? {
            Some((module, functions)) => (Some(Names::of(module)?), functions),
            None => (None, glob),
        };
        Ok(Self {
            text: glob.to_owned(),
            names: Names::of(functions)?,
            module,
        })
    }

    /// Whether any name of the function matches, raw or demangled.
    #[must_use]
    pub fn matches(&self, function: &Function) -> bool {
        let is_there = match (&self.module, &function.module) {
            (None, _) => true,
            (Some(wanted), Some(module)) => wanted.have(module),
            (Some(_), None) => false,
        };
        is_there && function.names().any(|name| self.matches_name(name))
    }

    /// Whether it is for modules, which may come later.
    #[must_use]
    pub fn is_for_modules(&self) -> bool {
        self.module.is_some()
    }

    /// The glob as given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a name matches.
    #[must_use]
    pub fn matches_name(&self, name: &str) -> bool {
        self.names.have(name)
    }
}

/// A glob in the words of the crate that compares them, for sets of many.
///
/// # Errors
/// [`GlobError::Bad`].
pub fn compile(glob: &str) -> Result<Glob, GlobError> {
    let bad = |reason: String| GlobError::Bad {
        glob: glob.to_owned(),
        reason,
    };
    if glob.is_empty() {
        return Err(bad("it is empty; '*' matches every function".to_owned()));
    }
    GlobBuilder::new(&plain_braces(glob))
        .literal_separator(false)
        .backslash_escape(true)
        .build()
        .map_err(|error| bad(error.kind().to_string()))
}

/// Makes `{` and `}` ordinary, and a run of `*` one: globset gives both a meaning of its own.
fn plain_braces(glob: &str) -> String {
    let mut plain = String::with_capacity(glob.len() + 8);
    let mut in_class = false;
    let mut previous = '\0';
    let mut escaped = false;
    for char in glob.chars() {
        match char {
            _ if escaped => plain.push(char),
            '{' if !in_class => plain.push_str("[{]"),
            '}' if !in_class => plain.push_str("[}]"),
            '*' if !in_class && previous == '*' => {}
            _ => plain.push(char),
        }
        match char {
            _ if escaped => {}
            '[' => in_class = true,
            // Right after the opening bracket, it is a member of the class.
            ']' if !matches!(previous, '[' | '!' | '^') => in_class = false,
            _ => {}
        }
        previous = if escaped { '\0' } else { char };
        escaped = char == '\\' && !escaped && !in_class;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, name: &str) -> bool {
        let function = Function {
            name: name.into(),
            display: name.into(),
            ..Function::default()
        };
        Pattern::new(glob).unwrap().matches(&function)
    }

    #[test]
    fn globs_match_as_in_ftrace() {
        assert!(matches("leaf", "leaf"));
        assert!(!matches("leaf", "leaf2"));
        assert!(matches("*leaf*", "a_leaf_b"));
        assert!(matches("do_**_x", "do_a/b_x"));
        assert!(matches("le?f", "leaf"));
        assert!(matches("f[0-3]", "f2"));
        assert!(!matches("f[!0-3]", "f2"));
        assert!(matches("guest::*", "guest::tree::leaf"));
    }

    /// All texts of these characters, up to three of them.
    fn texts(of: &str) -> Vec<String> {
        let mut all = vec![String::new()];
        let mut from = 0;
        for _ in 0..3 {
            let longer = all[from..].iter();
            let longer =
                longer.flat_map(|text| of.chars().map(move |char| format!("{text}{char}")));
            let longer: Vec<String> = longer.collect();
            from = all.len();
            all.extend(longer);
        }
        all
    }

    #[test]
    fn what_is_compared_as_it_is_matches_as_an_expression_would() {
        let names = texts("ab{/");
        let (mut same, mut plain) = (0, 0);
        for glob in texts("ab*?[]{\\/!") {
            let Ok(compiled) = compile(&glob) else {
                assert!(Pattern::new(&glob).is_err(), "{glob}");
                continue;
            };
            let (pattern, matcher) = (Pattern::new(&glob).unwrap(), compiled.compile_matcher());
            plain += usize::from(!matches!(pattern.names, Names::Like(_)));
            for name in &names {
                let expected = matcher.is_match(name);
                assert_eq!(pattern.matches_name(name), expected, "{glob} {name}");
                same += usize::from(expected);
            }
        }
        assert!(same > 1000 && plain > 100, "{same} {plain}");
    }

    #[test]
    fn braces_are_ordinary() {
        assert!(matches("main::{closure#0}", "main::{closure#0}"));
        assert!(!matches("{a,b}", "a"));
        assert!(matches("[{]x[}]", "{x}"));
        assert!(matches("\\{x", "{x"));
    }

    #[test]
    fn a_glob_longer_than_any_name_is_refused_before_it_is_compared() {
        Pattern::new(&"*a".repeat(GLOB_MAX / 2)).unwrap();
        let error = Pattern::new(&"é".repeat(65_000)).unwrap_err().to_string();
        assert!(error.starts_with("a glob of 130000 bytes, 'éé"), "{error}");
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn a_bad_glob_is_shown() {
        for glob in ["f[0-", "", "f[9-0]", "a\\"] {
            let error = Pattern::new(glob).unwrap_err();
            let message = error.to_string();
            assert!(
                message.starts_with(&format!("bad glob '{glob}': ")),
                "{message}"
            );
        }
    }
}
