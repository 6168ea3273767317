//! The open calls of one stack.

use std::collections::VecDeque;

use terms::function::FunctionId;

use crate::event::{End, Step};

/// Calls that ended without a return which are remembered, to notice when they return after all.
const GHOSTS: usize = 16;

/// An open call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    /// Where its return address lies.
    pub slot: u64,
    pub function: FunctionId,
    pub entered_ns: u64,
    /// The number of losses before it; `None` when one may have happened just after.
    pub losses: Option<u64>,
    /// Entered by a tail jump from the call with the same slot.
    pub is_tail: bool,
    /// The function whose exit ends the call: its own, or that of the call from which tail jumps led here. None when that
    /// was not seen.
    pub hooked: Option<FunctionId>,
}

/// A call that ended without a return, with the number of losses then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ghost {
    slot: u64,
    function: FunctionId,
    losses: u64,
}

/// One stack: what runs on it is taken for one thread.
#[derive(Debug)]
pub(super) struct Stack {
    /// Outermost first, so slots never rise.
    pub frames: Vec<Frame>,
    ghosts: VecDeque<Ghost>,
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
            frames: Vec::new(),
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

    /// Whether a call was taken for ended that was there.
    #[inline]
    pub fn has_ghost_at(&self, slot: u64) -> bool {
        !self.ghosts.is_empty() && self.ghosts.iter().any(|ghost| ghost.slot == slot)
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

impl Frame {
    /// Of a function that was called, not jumped to, after so many losses.
    pub const fn called(
        slot: u64,
        function: FunctionId,
        entered_ns: u64,
        losses: Option<u64>,
    ) -> Self {
        Self {
            slot,
            function,
            entered_ns,
            losses,
            is_tail: false,
            hooked: Some(function),
        }
    }

    /// How the call ends, and what it took, when it returns at `time_ns`.
    pub fn returned(&self, time_ns: u64, losses: u64) -> (End, Option<u64>) {
        if self.losses == Some(losses) && time_ns >= self.entered_ns {
            (End::Returned, Some(time_ns - self.entered_ns))
        } else {
            (End::Unsure, None)
        }
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
