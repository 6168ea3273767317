//! What the tests of the entries do without any change: how long they may take, and which of them take so long that the
//! others are asked first.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::time::{Duration, Instant};

use super::Failed;
use super::list::Entry;
use super::run::{Suites, Verdict};

/// A run may take so long, and so many times what it takes without a change.
const LEAST: Duration = Duration::from_secs(60);
const FACTOR: u32 = 5;
/// A test that takes this part of all of them is slow.
const SLOW: u32 = 20;

/// One room's tests.
#[derive(Debug, Clone)]
pub struct Baseline {
    pub limit: Duration,
    /// Their names.
    pub slow: Vec<String>,
}

impl Baseline {
    fn measure(suites: &Suites, entry: &Entry) -> Result<Self, Failed> {
        let mut times = Vec::new();
        let start = Instant::now();
        let mut last = start;
        let verdict = suites.run(
            entry,
            &entry.filters(),
            0,
            Duration::from_secs(600),
            |test| {
                times.push((test.to_owned(), last.elapsed()));
                last = Instant::now();
            },
        )?;
        if verdict != Verdict::Survived {
            return Err(format!("{:?} without a change: {}", room(entry), verdict.text()).into());
        }
        let all = start.elapsed();
        times.retain(|(_, time)| *time > all / SLOW);
        let slow = times.into_iter().map(|(test, _)| test).collect();
        let limit = LEAST + FACTOR * all;
        Ok(Self { limit, slow })
    }
}

/// Those of all rooms.
#[derive(Debug, Default)]
pub struct Baselines(BTreeMap<(String, Vec<String>), Baseline>);

impl Baselines {
    /// Runs the tests of each entry once.
    ///
    /// # Errors
    /// When tests fail without any change.
    pub fn measure(suites: &Suites, entries: &[&Entry]) -> Result<Self, Failed> {
        let mut all = BTreeMap::new();
        for entry in entries {
            if let Slot::Vacant(slot) = all.entry(room(entry)) {
                slot.insert(Baseline::measure(suites, entry)?);
            }
        }
        Ok(Self(all))
    }

    pub fn of(&self, entry: &Entry) -> Option<&Baseline> {
        self.0.get(&room(entry))
    }
}

/// Which tests an entry has.
fn room(entry: &Entry) -> (String, Vec<String>) {
    (entry.suite.clone(), entry.filters.clone())
}
