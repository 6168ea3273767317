//! What the guest measured itself: cycles per call of each leaf, round by round.

use std::collections::HashMap;

use vmm::control::method::Nothing;
use vmm::control::methods::guest::ShowStatus;
use vmm::control::protocol::Call;

use super::Failed;
use super::guest::Guest;
use super::sample::Samples;

/// Calls in each timed loop: few, so that most loops end before something else gets the CPU.
pub const CALLS: u64 = 50_000;

/// Cycles per call by the name of what was called, one value per round.
#[derive(Debug, Default)]
pub struct Rounds(HashMap<String, Vec<f64>>);

impl Rounds {
    /// Reads the lines `bench NAME CALLS CYCLES` until the guest ends, without the first `skip`
    /// rounds; the name may be two words.
    pub fn collect(&mut self, guest: Guest, skip: usize) -> Result<(), Failed> {
        self.read(&guest.finish()?, skip)
    }

    /// The same of lines that a program printed.
    pub fn read(&mut self, lines: &[String], skip: usize) -> Result<(), Failed> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        for line in lines {
            let Some(result) = line.strip_prefix("bench ") else {
                continue;
            };
            let mut words = result.trim().rsplitn(3, ' ');
            let (Some(cycles), Some(calls), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                return Err(format!("not a measurement: {line}").into());
            };
            let round = seen.entry(name.to_owned()).or_default();
            *round += 1;
            if *round > skip {
                let per_call = cycles.parse::<f64>()? / calls.parse::<f64>()?;
                self.0.entry(name.to_owned()).or_default().push(per_call);
            }
        }
        Ok(())
    }

    /// All rounds of one leaf.
    pub fn of(&self, name: &str) -> Result<&[f64], Failed> {
        match self.0.get(name) {
            Some(column) => Ok(column),
            None => Err(format!("the guest measured no '{name}'").into()),
        }
    }

    /// Cycles that `name` takes longer than the leaf without instrumentation, round by round.
    pub fn added(&self, name: &str) -> Result<Vec<f64>, Failed> {
        let plain = self.of("bench_leaf_plain")?;
        Ok(pairs(self.of(name)?, plain).map(|(a, b)| a - b).collect())
    }

    /// How many times as long as the leaf without instrumentation `name` takes.
    pub fn times(&self, name: &str) -> Result<Samples, Failed> {
        let plain = self.of("bench_leaf_plain")?;
        Ok(pairs(self.of(name)?, plain).map(|(a, b)| a / b).collect())
    }
}

/// What was measured at the same time, or as nearly as it can be.
pub fn pairs<'a>(one: &'a [f64], other: &'a [f64]) -> impl Iterator<Item = (f64, f64)> + 'a {
    one.iter().copied().zip(other.iter().copied())
}

/// One as a multiple of the other, round by round.
pub fn ratio(one: &[f64], other: &[f64]) -> Samples {
    pairs(one, other).map(|(one, other)| one / other).collect()
}

/// How many rounds of a guest that runs had begun when `calls` had been done: what they measured
/// is neither the one thing nor the other. `each` is the number of records that a round leaves.
pub fn change(guest: &Guest, calls: &[Call], each: u64) -> Result<usize, Failed> {
    let mut client = guest.connect()?;
    client.wait_for_records()?;
    for call in calls {
        let _: serde_json::Value = client.call(call)?;
    }
    let status = client.ask(&ShowStatus(Nothing {}))?;
    let session = status.tracing.sessions.first().ok_or("no session")?;
    let written: u64 = session.rings.iter().map(|ring| ring.written).sum();
    Ok(usize::try_from(written.div_ceil(each))?)
}
