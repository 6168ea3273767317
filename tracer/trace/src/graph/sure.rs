//! What nearly every record is, in a short way: a call inside of the innermost one, or the return of that one, of which all
//! is known. It comes to the same as to look at each by itself ([`Run::step`]).

use terms::function::FunctionId;

use super::run::{At, OPEN_MAX, Run, STACK_OPEN_MAX};
use super::stack::Frame;
use crate::columns::Steps;
use crate::event::{SlotStep, Step, SureStep};

/// So many are passed on together, at most.
const MANY: usize = 256;

/// Records of one thread on one vCPU, after each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub vcpu: u16,
    pub thread: u32,
    /// The number of its stack: what its slots are when they are shifted so far.
    pub stack: u64,
    pub stack_log2: u32,
    /// Until then nobody has died.
    pub until_ns: u64,
}

impl Stretch {
    /// Where the next step is, and what it does; `None` if it does not belong here.
    #[inline]
    pub fn at(&self, (time_ns, function, step): (u64, FunctionId, SlotStep)) -> Option<(At, Step)> {
        let slot = step.slot();
        let is_here = slot >> self.stack_log2 == self.stack && time_ns <= self.until_ns;
        let at = At {
            time_ns,
            vcpu: self.vcpu,
            thread: self.thread,
            slot,
            function,
        };
        is_here.then_some((at, step.step()))
    }
}

impl Run<'_> {
    /// Takes as many of the first records as are sure steps, and adds them to `steps`. Returns how many: some at a time.
    pub fn sure_steps(
        &mut self,
        stretch: &Stretch,
        records: Steps<'_>,
        steps: &mut Vec<SureStep>,
    ) -> usize {
        let stack = &mut *self.stack;
        if stack.is_shared {
            return 0;
        }
        // What was entered before is a thread's that has died.
        let alive_ns = stack.dead_ns.map_or(0, |dead_ns| dead_ns.saturating_add(1));
        let (before, losses) = (steps.len(), self.losses);
        let (mut last_ns, mut open) = (stack.last_ns, *self.open);
        for record in records.each().take(MANY) {
            let Some((at, step)) = stretch.at(record) else {
                break;
            };
            if at.time_ns < last_ns || stack.has_ghost_at(at.slot) {
                break;
            }
            let frames = &mut stack.frames;
            let (depth, lasted_ns) = match step {
                Step::Entry => {
                    let around = |last: &Frame| last.slot > at.slot && last.entered_ns >= alive_ns;
                    let depth = frames.len();
                    let has_room = depth < STACK_OPEN_MAX && open < OPEN_MAX;
                    if !has_room || !frames.last().is_none_or(around) {
                        break;
                    }
                    let losses = (at.time_ns >= self.lossy_until_ns).then_some(losses);
                    frames.push(Frame::called(at.slot, at.function, at.time_ns, losses));
                    open += 1;
                    (depth, None)
                }
                Step::Exit => {
                    let is_its = |last: &mut Frame| {
                        last.slot == at.slot
                            && last.function == at.function
                            && !last.is_tail
                            && last.losses == Some(losses)
                            && last.entered_ns >= alive_ns
                    };
                    let Some(frame) = frames.pop_if(is_its) else {
                        break;
                    };
                    open -= 1;
                    (frames.len(), Some(at.time_ns - frame.entered_ns))
                }
                Step::Tail | Step::Unhooked => break,
            };
            last_ns = at.time_ns;
            steps.push(SureStep {
                time_ns: at.time_ns,
                function: at.function,
                #[expect(clippy::cast_possible_truncation, reason = "at most STACK_OPEN_MAX")]
                depth: depth as u32,
                lasted_ns,
            });
        }
        let taken = steps.len() - before;
        if taken > 0 {
            (stack.last_ns, *self.open) = (last_ns, open);
            stack.vcpu = Some(stretch.vcpu);
        }
        taken
    }
}
