//! Rules by which calls of a graph are chosen, when they are recorded or when they are read.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use terms::quantity::{self, BadQuantity};

use crate::glob::{GlobError, Pattern, check_count};

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Calls deeper than this many are left out.
    pub max_depth: Option<NonZeroU32>,
    /// Only these functions and what they call; with none, everything.
    pub roots: Vec<Pattern>,
    /// Not these functions, nor what they call.
    pub notrace: Vec<Pattern>,
    /// Calls that take less are left out.
    pub threshold: Option<Threshold>,
}

impl Rules {
    /// Rules with these globs.
    ///
    /// # Errors
    /// A [`GlobError`].
    pub fn new(
        max_depth: Option<NonZeroU32>,
        roots: &[String],
        notrace: &[String],
        threshold: Option<Threshold>,
    ) -> Result<Self, GlobError> {
        let patterns = |globs: &[String]| {
            check_count(globs.len())?;
            let patterns = globs.iter().map(|glob| Pattern::new(glob));
            patterns.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            max_depth,
            roots: patterns(roots)?,
            notrace: patterns(notrace)?,
            threshold,
        })
    }

    /// Whether everything is shown.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// A duration, as `10us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Threshold {
    /// In nanoseconds.
    pub nanoseconds: u64,
}

impl From<Threshold> for String {
    fn from(threshold: Threshold) -> Self {
        format!("{}ns", threshold.nanoseconds)
    }
}

impl TryFrom<String> for Threshold {
    type Error = BadQuantity;

    fn try_from(text: String) -> Result<Self, BadQuantity> {
        text.parse()
    }
}

impl FromStr for Threshold {
    type Err = BadQuantity;

    /// A number alone is in microseconds, as in ftrace's `tracing_thresh`.
    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let nanoseconds = quantity::nanoseconds(text, "us")?;
        Ok(Self { nanoseconds })
    }
}
