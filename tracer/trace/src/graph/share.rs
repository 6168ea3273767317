//! Some threads, lent to who goes on with them while others go on with the rest: as long as each stays on its vCPU, what one
//! does has nothing to do with what another does.

use super::anomaly::{Anomalies, Anomaly};
use super::run::Run;
use super::stack::Stack;
use super::sure::Stretch;
use crate::columns::Steps;
use crate::event::{Sink, SureStep};

/// The stacks of some threads, and what else their next steps need.
#[derive(Debug)]
pub struct Share {
    pub(super) stack_log2: u32,
    /// Their numbers, those of their threads, and they.
    pub(super) stacks: Vec<(u64, u32, Stack)>,
    /// Calls that were open when it was lent, on all stacks.
    pub(super) opened: usize,
    /// The same now, as far as this is known here.
    pub(super) open: usize,
    pub(super) losses: u64,
    pub(super) lossy_until_ns: u64,
    /// What did not fit since.
    pub(super) anomalies: Anomalies,
    /// The last stack of these steps, and its thread.
    pub(super) last: Option<(u64, u32)>,
}

impl Share {
    /// The threads.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.stacks.iter().map(|(_, thread, _)| *thread)
    }

    /// The next steps of one vCPU, all of these threads, while nobody dies.
    pub fn steps(&mut self, mut steps: Steps<'_>, sink: &mut impl Sink) {
        let mut room: Vec<SureStep> = Vec::new();
        while let Some((time_ns, function, first)) = steps.each().next() {
            let number = first.slot() >> self.stack_log2;
            let mut stacks = self.stacks.iter_mut();
            let taken = match stacks.find(|(other, ..)| *other == number) {
                Some((_, thread, stack)) => {
                    self.last = Some((number, *thread));
                    let stretch = Stretch {
                        vcpu: steps.vcpu,
                        thread: *thread,
                        stack: number,
                        stack_log2: self.stack_log2,
                        until_ns: u64::MAX,
                    };
                    let mut run = Run {
                        stack,
                        open: &mut self.open,
                        losses: self.losses,
                        lossy_until_ns: self.lossy_until_ns,
                        anomalies: &mut self.anomalies,
                        values: None,
                    };
                    run.stretch(&stretch, steps, &mut room, sink)
                }
                None => {
                    let anomaly = Anomaly::NoRoom;
                    self.anomalies.note(anomaly, time_ns, function, u32::MAX);
                    1
                }
            };
            steps = steps.after(taken);
        }
    }
}
