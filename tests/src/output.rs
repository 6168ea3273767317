//! What a guest prints about itself, and what `vmm` leaves.

use std::collections::BTreeMap;
use std::process::Output;

/// What is said of a guest, and is no panic of ours.
const GUEST_PANICKED: &str = "the guest's kernel panicked";

/// Calls per function.
pub type Counts = BTreeMap<String, u64>;

/// The lines `calls FUNCTION COUNT` and `checksum WORKLOAD VALUE` of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Printed {
    /// Calls per function, summed over all workloads.
    pub calls: Counts,
    /// The checksum of each workload, in order.
    pub checksums: Vec<(String, String)>,
    /// What workloads have counted, in order: of most it follows from what they did.
    pub counters: Vec<(String, u64)>,
}

impl Printed {
    /// Reads a guest's console.
    ///
    /// # Panics
    /// When a line looks like one of these and is none.
    #[must_use]
    pub fn parse(console: &str) -> Self {
        let mut printed = Self::default();
        for line in console.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["calls", function, count] => {
                    let count: u64 = count.parse().expect("a count of calls");
                    *printed.calls.entry((*function).to_owned()).or_default() += count;
                }
                ["checksum", workload, value] => {
                    let pair = ((*workload).to_owned(), (*value).to_owned());
                    printed.checksums.push(pair);
                }
                ["counter", name, value] => {
                    let value: u64 = value.parse().expect("a counter");
                    printed.counters.push(((*name).to_owned(), value));
                }
                _ => {}
            }
        }
        printed
    }

    /// The last counter of this name.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let mut of = self.counters.iter().rev();
        of.find_map(|(one, value)| (one == name).then_some(*value))
    }

    /// The sum of all calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    /// The counts without functions that were never called, as a trace has them.
    #[must_use]
    pub fn called(&self) -> Counts {
        let called = self.calls.iter().filter(|(_, count)| **count > 0);
        called.map(|(name, count)| (name.clone(), *count)).collect()
    }
}

/// A `vmm` that has ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit status; `None` after a signal.
    pub code: Option<i32>,
    /// The guest's console.
    pub stdout: String,
    /// What `vmm` itself said.
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ended {
    /// The same, after checking that all went well.
    ///
    /// # Panics
    /// When not.
    #[must_use]
    pub fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// What the guest said about itself.
    #[must_use]
    pub fn printed(&self) -> Printed {
        Printed::parse(&self.stdout)
    }

    /// The one line on stderr of a run that was refused.
    ///
    /// # Panics
    /// When the status is another one, when stderr is not exactly one line, or when it looks like
    /// a panic.
    #[must_use]
    pub fn refused(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self}");
        assert_eq!(self.stderr.lines().count(), 1, "not one line: {self}");
        assert!(self.stderr.starts_with("vmm: "), "{self}");
        self.no_panic();
        self.stderr.trim_end()
    }

    /// Checks that nothing looks like a panic of ours.
    ///
    /// # Panics
    /// When something does.
    pub fn no_panic(&self) {
        let of_ours = self.stderr.replace(GUEST_PANICKED, "");
        for word in ["panicked", "RUST_BACKTRACE", "stack backtrace", "unwrap()"] {
            assert!(!of_ours.contains(word), "{self}");
        }
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            code,
            stdout,
            stderr,
        } = self;
        write!(
            f,
            "exit status {code:?}\n--- stdout\n{stdout}--- stderr\n{stderr}"
        )
    }
}
