//! One stack: its open calls, and what else is known of it.

use std::collections::VecDeque;

use terms::function::FunctionId;

use super::frames::{Frame, Frames};
use crate::event::Step;

/// Calls that ended without a return which are remembered, to notice when they return after all.
const GHOSTS: usize = 16;

/// A call that ended without a return, with the number of losses then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ghost {
    pub slot: u64,
    function: FunctionId,
    losses: u64,
}

/// One stack: what runs on it is taken for one thread.
#[derive(Debug)]
pub(super) struct Stack {
    pub frames: Frames,
    pub ghosts: VecDeque<Ghost>,
    /// The time of its last record.
    pub last_ns: u64,
    /// Calls on it contradict each other: two stacks were taken for one.
    pub is_shared: bool,
    /// What was entered up to then is a thread's that has ended.
    pub dead_ns: Option<u64>,
    /// Where its last record was made.
    pub vcpu: Option<u16>,
}

impl Stack {
    pub const fn new() -> Self {
        Self {
            frames: Frames::new(),
            ghosts: VecDeque::new(),
            last_ns: 0,
            is_shared: false,
            dead_ns: None,
            vcpu: None,
        }
    }

    /// Takes the innermost call if it was a thread's that has ended.
    pub fn pop_dead(&mut self) -> Option<Frame> {
        let dead_ns = self.dead_ns?;
        self.frames.pop_if(|frame| frame.entered_ns <= dead_ns)
    }

    /// Whether one of the open calls is a thread's that has ended: then the outermost is, for times do not go back on a stack.
    pub fn has_dead(&self) -> bool {
        let first = self.frames.first().map(|frame| frame.entered_ns);
        first.is_some_and(|entered_ns| self.dead_ns.is_some_and(|dead_ns| entered_ns <= dead_ns))
    }

    /// Calls that are open.
    pub fn depth(&self) -> u32 {
        u32::try_from(self.frames.len()).unwrap_or(u32::MAX)
    }

    /// Takes the innermost call if it lies below `slot`.
    pub fn pop_below(&mut self, slot: u64) -> Option<Frame> {
        self.frames.pop_if(|frame| frame.slot < slot)
    }

    /// Takes the innermost call if it lies at `slot`.
    pub fn pop_at(&mut self, slot: u64) -> Option<Frame> {
        self.frames.pop_if(|frame| frame.slot == slot)
    }

    /// The function whose exit ends the calls at `slot`, if those are the innermost; `None` inside
    /// when the call that was hooked is missing.
    pub fn hooked_at(&self, slot: u64) -> Option<Option<FunctionId>> {
        let last = self.frames.last().filter(|last| last.slot == slot)?;
        Some(last.hooked)
    }

    /// Whether such a record can be the next: a call inside of the innermost one, a tail call from there, or its return.
    pub fn can_be_next(&self, step: Step, slot: u64, function: FunctionId) -> bool {
        let innermost = self.frames.last();
        match step {
            Step::Entry | Step::Unhooked => innermost.is_none_or(|last| last.slot > slot),
            Step::Tail => innermost.is_some_and(|last| last.slot == slot),
            Step::Exit => self.ends_at(slot, function),
        }
    }

    /// Whether the exit of this function ends the calls at `slot`: the hooked one is its call, or missing.
    pub fn ends_at(&self, slot: u64, function: FunctionId) -> bool {
        let hooked = self.hooked_at(slot);
        hooked.is_some_and(|hooked| hooked.is_none_or(|hooked| hooked == function))
    }

    /// A call ended without a return.
    pub fn remember(&mut self, frame: Frame, losses: u64) {
        if frame.is_tail || frame.losses != Some(losses) {
            return;
        }
        if self.ghosts.len() == GHOSTS {
            self.ghosts.pop_front();
        }
        self.ghosts.push_back(Ghost {
            slot: frame.slot,
            function: frame.function,
            losses,
        });
    }

    /// A call was entered at `slot`: one that was there before is gone for good.
    pub fn forget(&mut self, slot: u64) {
        self.ghosts.retain(|ghost| ghost.slot != slot);
    }

    /// Whether a call that was taken for ended returns now.
    pub fn was_taken_for_ended(&self, slot: u64, function: FunctionId, losses: u64) -> bool {
        self.ghosts.contains(&Ghost {
            slot,
            function,
            losses,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ended_calls_are_remembered_and_the_last_of_them() {
        let mut stack = Stack::new();
        for slot in 0..100 {
            let frame = Frame {
                slot,
                function: FunctionId(1),
                entered_ns: 0,
                losses: Some(0),
                is_tail: false,
                hooked: Some(FunctionId(1)),
            };
            stack.remember(frame, 0);
        }
        let is_known = |slot: &u64| stack.was_taken_for_ended(*slot, FunctionId(1), 0);
        let known: Vec<u64> = (0..100).filter(is_known).collect();
        assert_eq!(known, (100 - GHOSTS as u64..100).collect::<Vec<_>>());
    }
}
