//! Functions, and what a change of those that are traced has done.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::pauses::paused;

/// Names in a line about functions that have something in common.
const NAMES_SHOWN: usize = 3;

/// Result of `functions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// In the order of their addresses.
    pub functions: Vec<Function>,
}

/// One function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its address, as hexadecimal text (JSON numbers do not hold 64 bits everywhere).
    pub address: String,
    /// Its name, demangled.
    pub name: String,
    /// The module that it came with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// `available`, `patched` or `skipped`.
    pub state: String,
    /// Why it is skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Result of the methods that change what is patched: `start`, `stop` and `filter.*`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// Functions patched by this change.
    pub patched: u64,
    /// Functions that got their original bytes back.
    pub restored: u64,
    /// Functions that are traced now.
    pub traced: u64,
    /// Functions that the filter asks for and that were left alone, with reasons.
    pub skipped: Vec<Function>,
    /// Functions that are traced, of which a session that hooks returns sees the entries only, with reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entry_only: Vec<Function>,
    /// How often the guest was paused for it, for whatever: also to make the rings of a session that is started for the
    /// first time. Large changes of text are made in slices; what is changed live, or by exchanges of words, takes none.
    #[serde(default)]
    pub pauses: u64,
    /// How long the guest was paused for it, in microseconds: the longest of the pauses. Where text is changed
    /// live, the most that one vCPU lost, if that is more.
    pub pause_us: f64,
}

impl Changed {
    /// How often and for how long the guest was paused, as text.
    #[must_use]
    pub fn paused(&self) -> String {
        paused(self.pauses, self.pause_us)
    }

    /// The functions that are not traced as was asked for, one line for each reason: how many, why,
    /// and the first few names.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = by_reason("not traced", &self.skipped);
        lines.extend(by_reason("traced at entry only", &self.entry_only));
        lines
    }
}

fn by_reason(what: &str, functions: &[Function]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for function in functions {
        let reason = function.reason.as_deref().unwrap_or("no reason given");
        reasons.entry(reason).or_default().push(&function.name);
    }
    let line = |(reason, names): (&str, Vec<&str>)| {
        let count = names.len();
        let shown: Vec<&str> = names.into_iter().take(NAMES_SHOWN).collect();
        let more = if count > NAMES_SHOWN { ", …" } else { "" };
        format!("{count} {what} ({}{more}): {reason}", shown.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_functions_are_told_by_reason() {
        let skip = |name: &str, reason: &str| Function {
            address: "0x1".to_owned(),
            name: name.to_owned(),
            module: None,
            state: "skipped".to_owned(),
            reason: Some(reason.to_owned()),
        };
        let skipped = vec![
            skip("a", "no site"),
            skip("x", "foreign bytes"),
            skip("b", "no site"),
            skip("c", "no site"),
            skip("d", "no site"),
        ];
        let changed = Changed {
            skipped,
            ..Changed::default()
        };
        assert_eq!(
            changed.remarks(),
            [
                "1 not traced (x): foreign bytes",
                "4 not traced (a, b, c, …): no site"
            ]
        );
    }
}
