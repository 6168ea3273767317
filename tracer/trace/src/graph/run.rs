//! One stack at its next records: which calls begin, and which end, and how.

use terms::function::FunctionId;

use super::anomaly::{Anomalies, Anomaly};
use super::frames::Frame;
use super::stack::Stack;
use crate::event::{End, Event, EventKind, Sink, Step, Values};

/// Calls open at once on one stack, and on all, at most.
pub(crate) const STACK_OPEN_MAX: usize = 1 << 14;
pub(super) const OPEN_MAX: usize = 1 << 20;

/// One record, with what is known of its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub time_ns: u64,
    pub vcpu: u16,
    pub thread: u32,
    pub slot: u64,
    pub function: FunctionId,
}

impl At {
    fn entry(self, depth: u32) -> Event {
        self.event(self.time_ns, depth, EventKind::Entry(self.function))
    }

    fn event(self, time_ns: u64, depth: u32, kind: EventKind) -> Event {
        Event {
            time_ns,
            vcpu: self.vcpu,
            thread: self.thread,
            depth,
            kind,
            values: None,
        }
    }
}

/// One stack at one record, or at several after each other.
pub(super) struct Run<'a> {
    pub stack: &'a mut Stack,
    pub open: &'a mut usize,
    pub losses: u64,
    /// Up to then a loss that is known of may still be to come.
    pub lossy_until_ns: u64,
    pub anomalies: &'a mut Anomalies,
    /// What was captured at the record, until a step has it.
    pub values: Option<Values>,
}

impl Run<'_> {
    /// The next record.
    #[inline(never)]
    pub fn step(&mut self, mut at: At, step: Step, sink: &mut impl Sink) {
        at.time_ns = at.time_ns.max(self.stack.last_ns);
        self.end_dead(at, sink);
        match step {
            _ if self.stack.is_shared => self.entry_only(at, step, sink),
            Step::Entry => self.entry(at, sink),
            Step::Tail => self.tail(at, sink),
            Step::Unhooked => self.unhooked(at, sink),
            Step::Exit => self.exit(at, sink),
        }
        self.stack.last_ns = at.time_ns;
        self.stack.vcpu = Some(at.vcpu);
    }

    fn entry(&mut self, at: At, sink: &mut impl Sink) {
        self.end_unreturned(at, at.slot + 1, sink);
        self.stack.forget(at.slot);
        self.open(at, false, sink);
    }

    fn tail(&mut self, at: At, sink: &mut impl Sink) {
        self.end_unreturned(at, at.slot, sink);
        self.open(at, true, sink);
    }

    fn unhooked(&mut self, at: At, sink: &mut impl Sink) {
        self.end_unreturned(at, at.slot + 1, sink);
        self.leaf(at, End::Unhooked, Anomaly::Unhooked, sink);
    }

    fn exit(&mut self, at: At, sink: &mut impl Sink) {
        if self.is_contradiction(at) {
            self.give_up(at, sink);
            return;
        }
        while let Some(frame) = self.stack.pop_below(at.slot) {
            self.close(at, frame, End::NotSeen, Anomaly::NotSeen, sink);
        }
        if self.stack.ends_at(at.slot, at.function) {
            while let Some(frame) = self.stack.pop_at(at.slot) {
                self.close_returned(at, frame, sink);
            }
            return;
        }
        while let Some(frame) = self.stack.pop_at(at.slot) {
            self.close(at, frame, End::NotSeen, Anomaly::NotSeen, sink);
        }
        self.unmatched(at);
    }

    fn unmatched(&mut self, at: At) {
        self.anomalies
            .note(Anomaly::UnmatchedExit, at.time_ns, at.function, at.thread);
    }

    fn is_contradiction(&self, at: At) -> bool {
        self.stack
            .was_taken_for_ended(at.slot, at.function, self.losses)
    }

    /// Ends the calls that lie below `limit`: the stack is used from there on again.
    fn end_unreturned(&mut self, at: At, limit: u64, sink: &mut impl Sink) {
        while let Some(frame) = self.stack.pop_below(limit) {
            self.close(at, frame, End::Unreturned, Anomaly::Unreturned, sink);
        }
    }

    /// Ends the calls of a thread that has ended, from the innermost on, up to one of another's.
    pub fn end_dead(&mut self, at: At, sink: &mut impl Sink) {
        while let Some(frame) = self.stack.pop_dead() {
            self.close(at, frame, End::Unreturned, Anomaly::Died, sink);
        }
    }

    fn open(&mut self, at: At, is_tail: bool, sink: &mut impl Sink) {
        if self.stack.frames.len() >= STACK_OPEN_MAX || *self.open >= OPEN_MAX {
            self.leaf(at, End::EntryOnly, Anomaly::NoRoom, sink);
            return;
        }
        self.enter(at, self.stack.depth(), sink);
        *self.open += 1;
        let losses = (at.time_ns >= self.lossy_until_ns).then_some(self.losses);
        let frame = Frame::called(at.slot, at.function, at.time_ns, losses);
        let hooked = match is_tail {
            true => self.stack.hooked_at(at.slot).flatten(),
            false => frame.hooked,
        };
        self.stack.frames.push(Frame {
            is_tail,
            hooked,
            ..frame
        });
    }

    fn enter(&mut self, at: At, depth: u32, sink: &mut impl Sink) {
        sink.event(Event {
            values: self.values.take(),
            ..at.entry(depth)
        });
    }

    /// A call of which only the entry is known.
    fn leaf(&mut self, at: At, end: End, anomaly: Anomaly, sink: &mut impl Sink) {
        self.anomalies
            .note(anomaly, at.time_ns, at.function, at.thread);
        let depth = self.stack.depth();
        self.enter(at, depth, sink);
        let kind = EventKind::Exit {
            function: at.function,
            end,
            duration: None,
        };
        sink.event(at.event(at.time_ns, depth, kind));
    }

    fn close_returned(&mut self, at: At, frame: Frame, sink: &mut impl Sink) {
        *self.open -= 1;
        let (end, duration) = frame.returned(at.time_ns, self.losses);
        // What a chain of tail calls returns is the outermost one's, whose exit this is.
        let values = (!frame.is_tail).then(|| self.values.take()).flatten();
        if end == End::Unsure {
            self.anomalies
                .note(Anomaly::Unsure, at.time_ns, frame.function, at.thread);
        }
        let kind = EventKind::Exit {
            function: frame.function,
            end,
            duration,
        };
        sink.event(Event {
            values,
            ..at.event(at.time_ns, self.stack.depth(), kind)
        });
    }

    /// Ends a call of which no return was seen, at the last time that is known of its thread.
    fn close(&mut self, at: At, frame: Frame, end: End, anomaly: Anomaly, sink: &mut impl Sink) {
        *self.open -= 1;
        self.stack.remember(frame, self.losses);
        let is_certain = frame.losses == Some(self.losses);
        let anomaly = if is_certain {
            anomaly
        } else {
            Anomaly::LostExit
        };
        self.anomalies
            .note(anomaly, at.time_ns, frame.function, at.thread);
        let kind = EventKind::Exit {
            function: frame.function,
            end,
            duration: None,
        };
        sink.event(at.event(self.stack.last_ns, self.stack.depth(), kind));
    }

    /// The stack is shared by threads that cannot be told apart: entries only from now on.
    fn give_up(&mut self, at: At, sink: &mut impl Sink) {
        self.anomalies
            .note(Anomaly::SharedStack, at.time_ns, at.function, at.thread);
        while let Some(frame) = self.stack.pop_below(u64::MAX) {
            self.close(at, frame, End::EntryOnly, Anomaly::EntryOnly, sink);
        }
        self.stack.is_shared = true;
    }

    fn entry_only(&mut self, at: At, step: Step, sink: &mut impl Sink) {
        if step != Step::Exit {
            self.leaf(at, End::EntryOnly, Anomaly::EntryOnly, sink);
        }
    }
}
