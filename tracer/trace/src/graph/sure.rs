//! What nearly every record is, in a short way: a call inside of the innermost one, or the return of that one, of which all
//! is known. It comes to the same as to look at each by itself ([`Run::step`]).

use terms::function::FunctionId;

use super::frames::Frame;
use super::run::{At, OPEN_MAX, Run, STACK_OPEN_MAX};
use super::stack::Stack;
use crate::columns::Steps;
use crate::event::{Sink, SlotStep, Step, SureStep};

/// So many are passed on together, at most.
const MANY: usize = 256;

/// What room is filled with.
const NOTHING: SureStep = SureStep {
    time_ns: 0,
    function: FunctionId(0),
    depth: 0,
    lasted_ns: None,
};

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
    /// Whether a step belongs here that is next.
    #[inline]
    const fn has(&self, time_ns: u64, slot: u64) -> bool {
        slot >> self.stack_log2 == self.stack && time_ns <= self.until_ns
    }

    /// Where the next step is, and what it does; `None` if it does not belong here.
    #[inline]
    fn at(&self, (time_ns, function, step): (u64, FunctionId, SlotStep)) -> Option<(At, Step)> {
        let slot = step.slot();
        let at = At {
            time_ns,
            vcpu: self.vcpu,
            thread: self.thread,
            slot,
            function,
        };
        self.has(time_ns, slot).then_some((at, step.step()))
    }
}

impl Run<'_> {
    /// Takes as many of the first steps as belong to this stretch: what is sure of them at once, in this `room`. Returns how
    /// many there were.
    pub fn stretch(
        &mut self,
        stretch: &Stretch,
        steps: Steps<'_>,
        room: &mut Vec<SureStep>,
        sink: &mut impl Sink,
    ) -> usize {
        let mut rest = steps;
        while let Some((at, step)) = rest.each().next().and_then(|next| stretch.at(next)) {
            let sure = self.sure_steps(stretch, rest, room);
            match room.get(..sure).filter(|sure| !sure.is_empty()) {
                Some(sure) => sink.steps(steps.vcpu, stretch.thread, sure),
                None => self.step(at, step, sink),
            }
            rest = rest.after(sure.max(1));
        }
        steps.len() - rest.len()
    }

    /// Puts as many of the first steps as are sure into the first places of `room`, which is made for that, some at a time.
    /// Returns how many.
    fn sure_steps(
        &mut self,
        stretch: &Stretch,
        steps: Steps<'_>,
        room: &mut Vec<SureStep>,
    ) -> usize {
        if !steps
            .times
            .first()
            .is_some_and(|first| self.is_sure_from(*first))
        {
            return 0;
        }
        room.resize(MANY, NOTHING);
        let losses = Some(self.losses);
        let Stack { frames, ghosts, .. } = &mut *self.stack;
        let (frames, depth) = frames.with_room(steps.len().min(MANY));
        let (mut open, mut taken, mut last_ns) = (*depth, 0, 0);
        for (place, next) in room.iter_mut().zip(steps.each()) {
            let slot = next.2.slot();
            let is_odd = !ghosts.is_empty() && ghosts.iter().any(|ghost| ghost.slot == slot);
            if !stretch.has(next.0, slot) || is_odd {
                break;
            }
            let Some(sure) = sure_step(frames, &mut open, losses, next) else {
                break;
            };
            *place = sure;
            taken += 1;
            last_ns = sure.time_ns;
        }
        if taken > 0 {
            *self.open = *self.open + open - *depth;
            *depth = open;
            self.stack.frames.shed();
            self.stack.last_ns = last_ns;
            self.stack.vcpu = Some(stretch.vcpu);
        }
        taken
    }

    /// Whether steps from this time on can be sure: of what they are inside of all is known, and there is room for them.
    fn is_sure_from(&self, time_ns: u64) -> bool {
        let stack = &*self.stack;
        let is_known = !stack.is_shared && !stack.has_dead();
        let is_later = time_ns >= stack.last_ns && time_ns >= self.lossy_until_ns;
        let has_room = stack.frames.len() + MANY <= STACK_OPEN_MAX && *self.open + MANY <= OPEN_MAX;
        is_known && is_later && has_room
    }
}

/// The next step of a stack of which the first so many frames are open, if it is sure.
#[inline(always)]
fn sure_step(
    frames: &mut [Frame],
    open: &mut usize,
    losses: Option<u64>,
    (time_ns, function, at): (u64, FunctionId, SlotStep),
) -> Option<SureStep> {
    let slot = at.slot();
    let innermost = open.checked_sub(1).and_then(|last| frames.get(last));
    let (depth, lasted_ns) = match at.step() {
        Step::Entry => {
            if innermost.is_some_and(|last| last.slot <= slot) {
                return None;
            }
            *frames.get_mut(*open)? = Frame::called(slot, function, time_ns, losses);
            *open += 1;
            (*open - 1, None)
        }
        Step::Exit => {
            let frame = innermost.filter(|last| {
                last.slot == slot
                    && last.function == function
                    && !last.is_tail
                    && last.losses == losses
            })?;
            let lasted_ns = time_ns.checked_sub(frame.entered_ns)?;
            *open -= 1;
            (*open, Some(lasted_ns))
        }
        Step::Tail | Step::Unhooked => return None,
    };
    Some(SureStep {
        time_ns,
        function,
        #[expect(clippy::cast_possible_truncation, reason = "at most STACK_OPEN_MAX")]
        depth: depth as u32,
        lasted_ns,
    })
}
