//! Entries and exits put together into calls, thread by thread.
//!
//! The open calls of a stack have falling slots, for stacks grow down. So an entry ends every call
//! at or below its slot (their thread died, or jumped out of them), and an exit ends the calls below
//! it that have not returned. Calls with the same slot are a chain of tail calls; the exit of the
//! one that was hooked ends them all.
//!
//! After a loss the entry and the exit of an open call may belong to two calls of the same function
//! at the same place, so it gets no duration. A call that returns although it cannot be open any
//! more shows that two stacks are taken for one: from there that stack has entries only.
//!
//! Records of one stack and one time, of several vCPUs, wait for each other (`ties.rs`).
//!
//! What a thread has left open that has ended ([`Death`]) is closed as soon as nothing of its successor is open inside.

use std::cmp::Reverse;
use std::collections::HashMap;

use terms::addr::Gva;
use terms::function::FunctionId;

use super::anomaly::{Anomalies, Anomaly};
use super::deaths::{Death, Deaths};
use super::join::Found;
use super::stack::{Frame, Stack};
use super::ties::Ties;
use crate::event::{End, Event, EventKind, RecordKind, Sink, Step, Timed, Values};

/// Stacks that are told apart, at most.
pub const THREADS_MAX: usize = 4096;
/// Calls open at once on one stack, and on all, at most.
const STACK_OPEN_MAX: usize = 1 << 14;
const OPEN_MAX: usize = 1 << 20;

/// A stack size that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a stack size of {0} bytes: it must be a power of two from 4 KiB to 1 GiB")]
pub struct BadStackSize(pub u64);

/// Puts calls together.
#[derive(Debug)]
pub struct Threads {
    stack_log2: u32,
    numbers: HashMap<u64, u32>,
    stacks: Vec<Stack>,
    /// The last stack that was seen on each vCPU: its key and its number.
    last: Vec<(u64, u32)>,
    open: usize,
    losses: u64,
    lossy_until_ns: u64,
    anomalies: Anomalies,
    /// Stacks that were seen for the first time since somebody asked.
    fresh: Vec<(u32, Gva)>,
    deaths: Deaths,
    ties: Ties<Happened>,
}

/// One record, with what is known of its place.
#[derive(Debug, Clone, Copy)]
struct At {
    time_ns: u64,
    vcpu: u16,
    thread: u32,
    slot: u64,
    function: FunctionId,
}

/// What a record says, and what was captured at it.
#[derive(Debug)]
struct Happened {
    at: At,
    step: Step,
    values: Option<Values>,
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

impl Threads {
    /// For a guest whose stacks have this many bytes, aligned to their size.
    ///
    /// # Errors
    /// [`BadStackSize`].
    pub fn new(stack_bytes: u64) -> Result<Self, BadStackSize> {
        if !stack_bytes.is_power_of_two() || !(1 << 12..=1 << 30).contains(&stack_bytes) {
            return Err(BadStackSize(stack_bytes));
        }
        Ok(Self {
            stack_log2: stack_bytes.trailing_zeros(),
            numbers: HashMap::new(),
            stacks: Vec::new(),
            last: Vec::new(),
            open: 0,
            losses: 0,
            lossy_until_ns: 0,
            anomalies: Anomalies::default(),
            fresh: Vec::new(),
            deaths: Deaths::default(),
            ties: Ties::new(),
        })
    }

    /// Whether stacks were seen for the first time since [`Self::take_fresh`] was asked last.
    #[must_use]
    pub fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// The stacks that were seen for the first time since this was asked last: their numbers and their
    /// lowest addresses.
    pub fn take_fresh(&mut self) -> Vec<(u32, Gva)> {
        std::mem::take(&mut self.fresh)
    }

    /// What did not fit so far.
    #[must_use]
    pub const fn anomalies(&self) -> &Anomalies {
        &self.anomalies
    }

    /// A thread has ended. The records of before may be still to come.
    pub fn died(&mut self, death: Death) {
        self.deaths.add(death);
    }

    /// All records of before this time have come: no other will be first among those that wait, and what threads have left
    /// open that had ended is closed.
    pub fn advance(&mut self, time_ns: u64, sink: &mut impl Sink) {
        if self.ties.are_before(time_ns) {
            self.settle(sink);
        }
        while let Some(death) = self.deaths.next_before(time_ns) {
            let Some(stack) = self.stacks.get_mut(death.thread as usize) else {
                continue;
            };
            stack.dead_ns = stack.dead_ns.max(Some(death.alive_ns));
            let last = stack.frames.last().map(|frame| frame.function);
            // On behalf of nobody's record: the calls end when their thread was seen last.
            let at = At {
                time_ns: stack.last_ns,
                vcpu: 0,
                thread: death.thread,
                slot: 0,
                function: last.unwrap_or(FunctionId(0)),
            };
            self.run(at, None, |run| run.end_dead(at, sink));
        }
    }

    /// The next record in the order of time, and what was captured at it.
    pub fn record(&mut self, timed: &Timed, found: Found, sink: &mut impl Sink) {
        self.advance(timed.time_ns, sink);
        match timed.record.kind {
            RecordKind::Lost(count) => {
                self.settle(sink);
                self.lost(timed, count, sink);
            }
            RecordKind::Graph {
                function,
                step,
                slot,
            } => {
                let (time_ns, vcpu) = (timed.time_ns, timed.vcpu);
                let Some(thread) = self.thread(vcpu, slot) else {
                    self.anomalies.note(Anomaly::NoRoom, function, u32::MAX);
                    return;
                };
                if timed.is_late {
                    self.losses += 1;
                    self.anomalies.note(Anomaly::Late, function, thread);
                }
                let at = At {
                    time_ns,
                    vcpu,
                    thread,
                    slot,
                    function,
                };
                let values = match found {
                    Found::Values(values) => Some(values),
                    Found::Missing => {
                        self.anomalies.note(Anomaly::NoValues, function, thread);
                        None
                    }
                    Found::Nothing => None,
                };
                self.take_turn(Happened { at, step, values }, timed.is_tied, sink);
            }
            RecordKind::Entry(_)
            | RecordKind::Called { .. }
            | RecordKind::Point(_)
            | RecordKind::Captured(_)
            | RecordKind::Stall(_)
            | RecordKind::Wait { .. }
            | RecordKind::Host(_) => {}
        }
    }

    /// The thread that was seen last on a vCPU, and how many of its calls are open.
    #[must_use]
    pub fn on(&self, vcpu: u16) -> (u32, u32) {
        let thread = self.last.get(usize::from(vcpu)).map_or(0, |last| last.1);
        let stack = self.stacks.get(thread as usize);
        (thread, stack.map_or(0, Stack::depth))
    }

    /// Records are missing: nothing that is open is certain any more.
    fn lost(&mut self, timed: &Timed, count: u64, sink: &mut impl Sink) {
        self.losses += 1;
        self.lossy_until_ns = self.lossy_until_ns.max(timed.until_ns);
        if count == 0 {
            return;
        }
        let (vcpu, mut time_ns) = (timed.vcpu, timed.time_ns);
        let (thread, depth) = self.on(vcpu);
        if let Some(stack) = self.stacks.get_mut(thread as usize) {
            stack.last_ns = stack.last_ns.max(time_ns);
            time_ns = stack.last_ns;
        }
        sink.event(Event {
            time_ns,
            vcpu,
            thread,
            depth,
            kind: EventKind::Lost(count),
            values: None,
        });
    }

    /// The number of the stack that a slot is on.
    fn thread(&mut self, vcpu: u16, slot: u64) -> Option<u32> {
        let key = slot >> self.stack_log2;
        let vcpu = usize::from(vcpu);
        if vcpu >= self.last.len() {
            self.last.resize(vcpu + 1, (u64::MAX, 0));
        }
        if let Some((last, thread)) = self.last.get(vcpu)
            && *last == key
        {
            return Some(*thread);
        }
        let thread = match self.numbers.get(&key) {
            Some(thread) => *thread,
            None if self.stacks.len() < THREADS_MAX => {
                let thread = u32::try_from(self.stacks.len()).ok()?;
                self.stacks.push(Stack::new());
                self.numbers.insert(key, thread);
                self.fresh.push((thread, Gva(key << self.stack_log2)));
                thread
            }
            None => return None,
        };
        if let Some(last) = self.last.get_mut(vcpu) {
            *last = (key, thread);
        }
        Some(thread)
    }

    /// A record of its stack, unless another vCPU may bring what was before it.
    fn take_turn(&mut self, happened: Happened, is_tied: bool, sink: &mut impl Sink) {
        let At {
            thread,
            vcpu,
            time_ns,
            ..
        } = happened.at;
        let is_doubtful = || is_tied && fit(&self.stacks, &happened) != Fit::OfItsVcpu;
        let must_wait = self.ties.have(thread) || is_doubtful();
        if !must_wait {
            return self.step(happened, sink);
        }
        self.ties.add(time_ns, thread, vcpu, happened);
        if self.ties.are_full() {
            self.settle(sink);
        }
    }

    /// What waits for others of its time continues.
    fn settle(&mut self, sink: &mut impl Sink) {
        while let Some(next) = self.next_tied() {
            self.step(next, sink);
        }
    }

    /// What fits best. What a thread was interrupted in is the only one of its time in the ring that it came to, so of a
    /// stack that was not seen before what another brings more of is first; of two calls the outer one.
    fn next_tied(&mut self) -> Option<Happened> {
        let stacks = &self.stacks;
        self.ties.next(|happened, waiting| {
            let outer = Reverse(happened.at.slot);
            (fit(stacks, happened), Reverse(waiting), outer)
        })
    }

    fn step(&mut self, happened: Happened, sink: &mut impl Sink) {
        let Happened {
            mut at,
            step,
            values,
        } = happened;
        let Some(stack) = self.stacks.get(at.thread as usize) else {
            return;
        };
        at.time_ns = at.time_ns.max(stack.last_ns);
        self.run(at, values, |run| {
            run.end_dead(at, sink);
            match step {
                _ if run.stack.is_shared => run.entry_only(at, step, sink),
                Step::Entry => run.entry(at, sink),
                Step::Tail => run.tail(at, sink),
                Step::Unhooked => run.unhooked(at, sink),
                Step::Exit => run.exit(at, sink),
            }
            run.stack.last_ns = at.time_ns;
            run.stack.vcpu = Some(at.vcpu);
        });
    }

    fn run(&mut self, at: At, values: Option<Values>, act: impl FnOnce(&mut Run<'_>)) {
        let Some(stack) = self.stacks.get_mut(at.thread as usize) else {
            return;
        };
        act(&mut Run {
            stack,
            open: &mut self.open,
            losses: self.losses,
            is_lossy: at.time_ns < self.lossy_until_ns,
            anomalies: &mut self.anomalies,
            values,
        });
    }
}

/// How well a record fits as the next one of its stack, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It fits, and was made where the thread was.
    OfItsVcpu,
    /// It fits.
    OfAnother,
    /// Something is missing before it.
    NotYet,
}

fn fit(stacks: &[Stack], happened: &Happened) -> Fit {
    let At {
        thread,
        vcpu,
        slot,
        function,
        ..
    } = happened.at;
    let Some(stack) = stacks.get(thread as usize) else {
        return Fit::NotYet;
    };
    if !stack.can_be_next(happened.step, slot, function) {
        return Fit::NotYet;
    }
    match stack.vcpu == Some(vcpu) {
        true => Fit::OfItsVcpu,
        false => Fit::OfAnother,
    }
}

/// One stack at one record.
struct Run<'a> {
    stack: &'a mut Stack,
    open: &'a mut usize,
    losses: u64,
    /// A loss that is known of may still be to come.
    is_lossy: bool,
    anomalies: &'a mut Anomalies,
    /// What was captured at the record, until a step has it.
    values: Option<Values>,
}

impl Run<'_> {
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
            .note(Anomaly::UnmatchedExit, at.function, at.thread);
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
    fn end_dead(&mut self, at: At, sink: &mut impl Sink) {
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
        let hooked = match is_tail {
            true => self.stack.hooked_at(at.slot).flatten(),
            false => Some(at.function),
        };
        self.stack.frames.push(Frame {
            slot: at.slot,
            function: at.function,
            entered_ns: at.time_ns,
            losses: (!self.is_lossy).then_some(self.losses),
            is_tail,
            hooked,
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
        self.anomalies.note(anomaly, at.function, at.thread);
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
                .note(Anomaly::Unsure, frame.function, at.thread);
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
        self.anomalies.note(anomaly, frame.function, at.thread);
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
            .note(Anomaly::SharedStack, at.function, at.thread);
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
