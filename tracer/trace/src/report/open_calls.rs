//! The calls of one data file that are open while it is read. Depths tell which have ended, as far as records can say
//! them; deeper than that, who wrote the file may have left out every exit. So no more calls are followed than can be open where
//! they are recorded.

use terms::function::FunctionId;

use crate::event::{End, EventKind};
use crate::export::uftrace::record::MAX_DEPTH;
use crate::graph::STACK_OPEN_MAX;

/// Calls that are followed, at most: one more than of a stack where they are recorded. Of a call that was not followed there
/// both ends are in the file, and these belong together.
const OPEN_MAX: usize = STACK_OPEN_MAX + 1;

/// A call that is open.
#[derive(Debug, Clone, Copy)]
struct Open {
    function: FunctionId,
    entered_ns: u64,
    losses: u64,
}

impl Open {
    const fn ended(self, end: End, duration: Option<u64>) -> EventKind {
        EventKind::Exit {
            function: self.function,
            end,
            duration,
        }
    }
}

/// Those of a thread.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    open: Vec<Open>,
    losses: u64,
    /// Calls in all those that are not followed, and have not ended.
    beyond: u64,
    /// Calls that were not followed so far.
    pub unfollowed: u64,
}

impl OpenCalls {
    /// Something is missing here: how long what is open takes is not certain.
    pub const fn lose(&mut self) {
        self.losses += 1;
    }

    pub fn depth(&self) -> u32 {
        u32::try_from(self.open.len()).unwrap_or(u32::MAX)
    }

    /// Whether calls are open at this depth or deeper, if a record can say it. They are over: their exits are missing from the file.
    pub fn are_missing(&self, depth: u32) -> bool {
        depth < MAX_DEPTH && self.depth() > depth
    }

    /// The end of the innermost call, whose exit is missing.
    #[cold]
    pub fn missing(&mut self) -> Option<EventKind> {
        self.beyond = 0;
        let open = self.open.pop()?;
        Some(open.ended(End::NotSeen, None))
    }

    /// A call is made in those that are open. One that is not followed has an end at once: its entry alone is known.
    pub fn enter(&mut self, function: FunctionId, entered_ns: u64) -> Option<EventKind> {
        let open = Open {
            function,
            entered_ns,
            losses: self.losses,
        };
        if self.open.len() >= OPEN_MAX {
            self.beyond += 1;
            self.unfollowed += 1;
            return Some(open.ended(End::EntryOnly, None));
        }
        self.open.push(open);
        None
    }

    /// The innermost call has ended so, if it is the one: then that is its end. Without times nobody knows how long it took.
    pub fn exit(
        &mut self,
        is_it: impl Fn(FunctionId) -> bool,
        end: End,
        time_ns: u64,
        has_times: bool,
    ) -> Option<EventKind> {
        if self.beyond > 0 {
            self.beyond -= 1;
            return None;
        }
        let open = self.open.pop_if(|open| is_it(open.function))?;
        let is_lossy = open.losses != self.losses || time_ns < open.entered_ns;
        let end = match end {
            End::Returned if is_lossy => End::Unsure,
            end => end,
        };
        let is_known = end == End::Returned && has_times;
        let duration = is_known.then(|| time_ns - open.entered_ns);
        Some(open.ended(end, duration))
    }
}
