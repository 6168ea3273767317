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
use super::run::{At, OPEN_MAX, Run};
use super::share::Share;
use super::stack::Stack;
use super::sure::Stretch;
use super::ties::Ties;
use crate::columns::Steps;
use crate::event::{Event, EventKind, RecordKind, Sink, Step, SureStep, Timed, Values, weight};

/// Stacks that are told apart, at most.
pub const THREADS_MAX: usize = 4096;
/// Stacks that are looked at together, at most: each is looked for among the others.
const STAYING_MAX: usize = 64;

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
    /// For steps that are passed on together.
    room: Vec<SureStep>,
}

/// What a record says, and what was captured at it.
#[derive(Debug)]
struct Happened {
    at: At,
    step: Step,
    values: Option<Values>,
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
            room: Vec::new(),
        })
    }

    /// Bytes of a stack.
    #[must_use]
    pub const fn stack_bytes(&self) -> u64 {
        1 << self.stack_log2
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
            if let Some(mut run) = self.run(death.thread, None) {
                run.end_dead(at, sink);
            }
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
                    self.anomalies
                        .note(Anomaly::NoRoom, timed.time_ns, function, u32::MAX);
                    return;
                };
                if timed.is_late {
                    self.losses += 1;
                    self.anomalies
                        .note(Anomaly::Late, timed.time_ns, function, thread);
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
                        self.anomalies
                            .note(Anomaly::NoValues, timed.time_ns, function, thread);
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

    /// The next steps of a vCPU in the order of time, in their places: nothing else is of their time, and nothing was
    /// captured at them.
    pub fn steps(&mut self, mut steps: Steps<'_>, sink: &mut impl Sink) {
        while let Some(first) = steps.records().next() {
            self.advance(first.time_ns, sink);
            let taken = self.stretch(steps, sink);
            if taken == 0 {
                self.record(&Timed::alone(steps.vcpu, first), Found::Nothing, sink);
            }
            steps = steps.after(taken.max(1));
        }
    }

    /// Whether these steps of several vCPUs, in one stretch of time, are of threads that were seen before and stay on
    /// their vCPU, while nothing waits and nobody dies.
    pub fn stay(&self, vcpus: &[Steps<'_>]) -> bool {
        let end_ns = vcpus.iter().filter_map(|steps| steps.times.last()).max();
        let dies = end_ns.is_some_and(|end_ns| self.deaths.next_ns() < *end_ns);
        if dies || !self.ties.are_none() {
            return false;
        }
        let mut seen: Vec<(u64, u16)> = Vec::new();
        let mut stays = |stack: u64, vcpu: u16| {
            if let Some((_, on)) = seen.iter().find(|(other, _)| *other == stack) {
                return *on == vcpu;
            }
            seen.push((stack, vcpu));
            seen.len() <= STAYING_MAX && self.numbers.contains_key(&stack)
        };
        vcpus.iter().all(|steps| {
            let stacks = steps.stacks.map(<[u64]>::iter);
            stacks.is_some_and(|mut stacks| stacks.all(|stack| stays(*stack, steps.vcpu)))
        })
    }

    /// As many of the first of them as are on one stack, and need not be looked at one by one. Returns how many.
    fn stretch(&mut self, steps: Steps<'_>, sink: &mut impl Sink) -> usize {
        let first = steps.steps.first().map(|first| first.slot());
        let Some(first) = first.filter(|_| self.ties.are_none()) else {
            return 0;
        };
        let Some(thread) = self.thread(steps.vcpu, first) else {
            return 0;
        };
        let stretch = Stretch {
            vcpu: steps.vcpu,
            thread,
            stack: first >> self.stack_log2,
            stack_log2: self.stack_log2,
            until_ns: self.deaths.next_ns(),
        };
        let mut room = std::mem::take(&mut self.room);
        let run = self.run(thread, None);
        let taken = run.map_or(0, |mut run| run.stretch(&stretch, steps, &mut room, sink));
        self.room = room;
        taken
    }

    /// Lends the threads of these steps, which [stay](Self::stay): nobody else goes on with them until they are back. `None`
    /// where so many more calls might be open at once that some could not be followed: then it matters who comes first.
    pub fn lend(&mut self, steps: Steps<'_>, all: usize) -> Option<Share> {
        if self.open.saturating_add(all) > OPEN_MAX {
            return None;
        }
        let stacks = steps.stacks.unwrap_or_default().iter();
        let lent = stacks.filter_map(|stack| {
            let number = *self.numbers.get(stack)?;
            let lent = self.stacks.get_mut(number as usize)?;
            Some((*stack, number, std::mem::replace(lent, Stack::new())))
        });
        Some(Share {
            stack_log2: self.stack_log2,
            stacks: lent.collect(),
            opened: self.open,
            open: self.open,
            losses: self.losses,
            lossy_until_ns: self.lossy_until_ns,
            anomalies: Anomalies::default(),
            last: self.last.get(usize::from(steps.vcpu)).copied(),
        })
    }

    /// They are back, from this vCPU.
    pub fn take_back(&mut self, vcpu: u16, share: Share) {
        for (_, number, stack) in share.stacks {
            if let Some(place) = self.stacks.get_mut(number as usize) {
                *place = stack;
            }
        }
        self.open = (self.open + share.open).saturating_sub(share.opened);
        self.anomalies.add(&share.anomalies);
        if let Some((stack, thread)) = share.last {
            self.is_on(vcpu, stack, thread);
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
        if let Some((last, thread)) = self.last.get(usize::from(vcpu))
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
        self.is_on(vcpu, key, thread);
        Some(thread)
    }

    /// A vCPU is on this stack, that of this thread.
    fn is_on(&mut self, vcpu: u16, stack: u64, thread: u32) {
        let vcpu = usize::from(vcpu);
        if vcpu >= self.last.len() {
            self.last.resize(vcpu + 1, (u64::MAX, 0));
        }
        if let Some(last) = self.last.get_mut(vcpu) {
            *last = (stack, thread);
        }
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
        self.ties.weigh(happened.values.as_ref().map_or(0, weight));
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
        let Happened { at, step, values } = happened;
        if let Some(mut run) = self.run(at.thread, values) {
            run.step(at, step, sink);
        }
    }

    /// A stack at its next records.
    fn run(&mut self, thread: u32, values: Option<Values>) -> Option<Run<'_>> {
        Some(Run {
            stack: self.stacks.get_mut(thread as usize)?,
            open: &mut self.open,
            losses: self.losses,
            lossy_until_ns: self.lossy_until_ns,
            anomalies: &mut self.anomalies,
            values,
        })
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
