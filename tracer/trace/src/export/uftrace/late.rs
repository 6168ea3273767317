//! Modules of the guest whose functions were patched when they could already have been called: which, and for
//! how long at most. A guest that says nothing of its modules is asked now and then, so there is always such a time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use terms::quantity::plain;

/// So many modules have a line of their own. The names are the guest's, and it may make up any number.
const NAMES_MAX: usize = 64;
/// The name of all others.
const OTHERS: &str = "(others)";

/// A module that was there before its functions were traced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateModule {
    /// Its name.
    pub module: String,
    /// How often it came.
    pub times: u64,
    /// How many of its functions are traced; of several times, the most.
    pub functions: u64,
    /// For how many microseconds at most they could be called and were not traced; of several times, the most.
    pub at_most_us: u64,
}

/// All of them, in the order in which they came first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LateModules(Vec<LateModule>);

impl LateModules {
    /// A module came, and so many functions of it are traced since `late` after that, at most.
    pub fn note(&mut self, module: &str, functions: u64, late: Duration) {
        let is_known = self.0.iter().any(|known| known.module == module);
        let name = if is_known || self.0.len() < NAMES_MAX {
            module
        } else {
            OTHERS
        };
        if !self.0.iter().any(|known| known.module == name) {
            self.0.push(LateModule {
                module: name.to_owned(),
                ..LateModule::default()
            });
        }
        let at_most_us = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        for known in self.0.iter_mut().filter(|known| known.module == name) {
            known.times = known.times.saturating_add(1);
            known.functions = known.functions.max(functions);
            known.at_most_us = known.at_most_us.max(at_most_us);
        }
    }

    /// Whether there were none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &LateModule> {
        self.0.iter()
    }
}

/// How many modules have not been read yet: a look at a guest that has very many, or says so, reads some of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WaitingModules(pub u64);

impl WaitingModules {
    /// Whether there are none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for WaitingModules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules = plain(self.0, "module");
        write!(
            f,
            "{modules} not read yet: calls of their functions are missing"
        )
    }
}

impl fmt::Display for LateModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may come from a damaged file.
        let module = self.module.replace(char::is_control, "?");
        let at_most = Duration::from_micros(self.at_most_us);
        let functions = plain(self.functions, "function");
        let are = if self.functions == 1 { "is" } else { "are" };
        write!(
            f,
            "module {module}: its {functions} {are} traced from at most {at_most:?} after it was live on; \
             what they were called before, by its init function too, is missing"
        )?;
        match self.times {
            0 | 1 => Ok(()),
            times => write!(f, " (it came {times} times)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_several_times_is_said() {
        let mut late = LateModules::default();
        assert!(late.is_empty());
        late.note("binfmt_misc", 7, Duration::from_micros(1500));
        late.note("xfs", 900, Duration::from_millis(3));
        late.note("binfmt_misc", 6, Duration::from_micros(900));
        let lines: Vec<String> = late.iter().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].starts_with(
                "module binfmt_misc: its 7 functions are traced from at most 1.5ms after"
            ),
            "{}",
            lines[0]
        );
        assert!(lines[0].ends_with("(it came 2 times)"), "{}", lines[0]);
        assert!(lines[1].ends_with("is missing"), "{}", lines[1]);
    }

    #[test]
    fn a_guest_that_makes_up_names_does_not_make_the_list_longer() {
        let mut late = LateModules::default();
        for number in 0..10_000 {
            late.note(&format!("m{number}"), 1, Duration::from_millis(1));
        }
        assert_eq!(late.iter().count(), NAMES_MAX + 1);
        let others = late.iter().last().unwrap();
        assert_eq!((&*others.module, others.times), (OTHERS, 10_000 - 64));
    }
}
