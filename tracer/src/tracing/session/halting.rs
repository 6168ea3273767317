//! What ends the recording of a session at once, in the guest: which occasions can, and how often they have.

use trace::live::Occasion;

use super::{Reader, TraceSession};
use crate::clock::RunClock;
use crate::session::WantedHalt;
use crate::stub::halt::HALTS_MAX;
use crate::tracing::options::GraphOptions;

/// Stubs keep 36 bits of ticks: calls that take longer than this are told by their records only.
const LONGEST_NS: u64 = 5_000_000_000;
/// A stub and a record may differ by the rounding of two times: what is that close is told by the records only.
const ROUNDING_NS: u64 = 2;

/// At what recording ends at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HaltAt {
    /// What happens.
    pub occasion: Occasion,
    /// How often.
    pub times: u64,
    /// Whether calls are counted as lost from then on, until it is let record again.
    pub counts_lost: bool,
}

/// A session, as far as its recording is ended at once.
#[derive(Debug)]
pub(in crate::tracing) struct Halting<'a>(pub &'a mut TraceSession);

/// What is wanted of the engine, at the speed of this clock.
pub(super) fn wanted(halts: &[HaltAt], run: RunClock) -> Vec<WantedHalt> {
    let wanted = |at: &HaltAt| WantedHalt {
        occasion: at.occasion.clone(),
        ticks: match at.occasion {
            Occasion::Longer(_, ns) => run.ticks(ns.saturating_add(ROUNDING_NS)),
            Occasion::Call(_) | Occasion::Event(_) => 0,
        },
        times: at.times,
        counts_lost: at.counts_lost,
    };
    halts.iter().map(wanted).collect()
}

impl Halting<'_> {
    /// Has recording end at once there, from the session's first start on. Returns its number.
    ///
    /// # Errors
    /// The reason.
    pub fn halt_at(self, at: HaltAt) -> Result<usize, &'static str> {
        if self.0.live.is_some() {
            return Err("the session has its stubs already");
        }
        let is_of_calls = !matches!(at.occasion, Occasion::Event(_));
        if is_of_calls && self.0.options.graph != GraphOptions::default() {
            return Err("calls are selected on the host");
        }
        if matches!(at.occasion, Occasion::Longer(_, ns) if ns > LONGEST_NS) {
            return Err("stubs compare times up to 5 s");
        }
        if self.0.halts.len() >= HALTS_MAX {
            return Err("four triggers of a session can");
        }
        self.0.halts.push(at);
        Ok(self.0.halts.len() - 1)
    }

    /// How often a halt can still end recording; none before the session is started.
    pub fn halt_left(&self, number: usize) -> Option<u64> {
        match &self.0.live.as_ref()?.reader {
            Reader::Rings(drain) => drain.lock().rings().halt_left(number),
            Reader::Counters(_) => None,
        }
    }

    /// It can so often from now on.
    pub fn set_halt_left(&self, number: usize, left: u64) {
        if let Some(Reader::Rings(drain)) = self.0.live.as_ref().map(|live| &live.reader) {
            drain.lock().rings().set_halt_left(number, left);
        }
    }

    /// Lets stubs record again if they are to, whatever has ended it.
    pub fn record_on(&self) {
        if let Some(Reader::Rings(drain)) = self.0.live.as_ref().map(|live| &live.reader) {
            drain.lock().switch(self.0.switched_on);
        }
    }
}
