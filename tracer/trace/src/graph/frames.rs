//! The open calls of one stack, outermost first, so slots never rise.

use terms::function::FunctionId;

use crate::event::End;

/// Places that a stack keeps however little on it is open: several times what is read at once, and hardly a stack is deeper.
const KEPT: usize = 1 << 10;
/// Of more than those it keeps at most so many times what is open.
const SPARSE: usize = 8;

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

impl Frame {
    /// Of a function that was called, not jumped to, after so many losses.
    #[inline]
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

/// Open calls, and room for more.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The first are open, the others are room.
    places: Vec<Frame>,
    open: usize,
}

impl Frames {
    pub const fn new() -> Self {
        Self {
            places: Vec::new(),
            open: 0,
        }
    }

    /// How many are open.
    pub const fn len(&self) -> usize {
        self.open
    }

    fn all(&self) -> &[Frame] {
        self.places.get(..self.open).unwrap_or_default()
    }

    /// The outermost.
    pub fn first(&self) -> Option<&Frame> {
        self.all().first()
    }

    /// The innermost.
    pub fn last(&self) -> Option<&Frame> {
        self.all().last()
    }

    pub fn push(&mut self, frame: Frame) {
        match self.places.get_mut(self.open) {
            Some(place) => *place = frame,
            None => self.places.push(frame),
        }
        self.open += 1;
    }

    /// Takes the innermost, if it is so.
    pub fn pop_if(&mut self, is_so: impl FnOnce(&Frame) -> bool) -> Option<Frame> {
        let last = self.last().copied().filter(is_so)?;
        self.open -= 1;
        self.shed();
        Some(last)
    }

    /// Where little is open any more, room for many calls is given back: a guest can have had thousands on each of many stacks.
    pub fn shed(&mut self) {
        if self.places.len() > KEPT && self.open < self.places.len() / SPARSE {
            self.places.truncate(self.open);
            self.places.shrink_to_fit();
        }
    }

    /// All places with room for so many more, and how many are open: for who enters and leaves many calls.
    pub fn with_room(&mut self, more: usize) -> (&mut [Frame], &mut usize) {
        let places = self.open.saturating_add(more);
        if self.places.len() < places {
            let nothing = Frame::called(0, FunctionId(0), 0, None);
            self.places.resize(places, nothing);
        }
        (&mut self.places, &mut self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was once given back when nothing at all was open: one call that does not return on each stack kept it.
    #[test]
    fn a_stack_that_was_deep_once_gives_its_room_back_when_most_has_returned() {
        let deep = |depth| {
            let mut frames = Frames::new();
            for _ in 0..depth {
                frames.push(Frame::called(0, FunctionId(0), 0, None));
            }
            frames
        };
        let mut kept = deep(KEPT);
        while kept.pop_if(|_| true).is_some() {}
        assert_eq!(kept.places.len(), KEPT);
        let mut given_back = deep(2 * KEPT);
        while given_back.len() > 2 * KEPT / SPARSE {
            given_back.pop_if(|_| true).unwrap();
        }
        assert_eq!(given_back.places.len(), 2 * KEPT);
        given_back.pop_if(|_| true).unwrap();
        assert_eq!(given_back.places.len(), 2 * KEPT / SPARSE - 1);
        assert!(given_back.places.capacity() < KEPT);
    }
}
