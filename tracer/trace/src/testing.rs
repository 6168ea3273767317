//! Functions of a guest that is none, and what happens in them.

use std::collections::BTreeSet;
use std::sync::Arc;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

use crate::columns::{LentSteps, Steps};
use crate::crew::{Crew, Job};
use crate::event::{End, Event, EventKind, KeepsApart, Sink, Timed};
use crate::export::uftrace::layout::Text;
use crate::stream::Stream;
use crate::stream::merge::Merge;
use crate::stream::taker::{Pass, Taker};

/// `f0`, `f1` and so on, of 16 bytes each.
pub fn functions(count: u64) -> Vec<Function> {
    let function = |number: u64| {
        let name: Arc<str> = format!("f{number}").into();
        Function {
            address: Gva(0xffff_ffff_8010_0000 + 16 * number),
            size: 16,
            name: Arc::clone(&name),
            display: name,
            ..Function::default()
        }
    };
    (0..count).map(function).collect()
}

/// A text of these functions, to which none can come.
pub const fn text_of(functions: &[Function]) -> Text<'_> {
    let limit = None;
    Text { functions, limit }
}

/// Something happens.
pub const fn event(time_ns: u64, vcpu: u16, thread: u32, depth: u32, kind: EventKind) -> Event {
    Event {
        time_ns,
        vcpu,
        thread,
        depth,
        kind,
        values: None,
    }
}

/// A function is entered.
pub const fn entry(function: u32) -> EventKind {
    EventKind::Entry(FunctionId(function))
}

/// It just returns; how long it took is for the reader to see.
pub const fn exit(function: u32) -> EventKind {
    EventKind::Exit {
        function: FunctionId(function),
        end: End::Returned,
        duration: None,
    }
}

/// Who keeps threads apart, and lends them.
#[derive(Debug, Default)]
pub struct Apart {
    pub events: Vec<Event>,
    /// This thread is not to be had.
    keeps: Option<u32>,
    lent: BTreeSet<u32>,
}

impl Apart {
    /// Who does not lend this thread.
    pub fn without(keeps: Option<u32>) -> Self {
        Self {
            keeps,
            ..Self::default()
        }
    }
}

/// What is lent of these threads.
#[derive(Debug)]
pub struct LentThreads {
    threads: Vec<u32>,
    events: Vec<Event>,
}

impl Sink for Apart {
    fn event(&mut self, event: Event) {
        assert!(!self.lent.contains(&event.thread), "it is lent: {event:?}");
        self.events.push(event);
    }

    fn is_ordered(&self) -> bool {
        false
    }
}

impl Sink for LentThreads {
    fn event(&mut self, event: Event) {
        assert!(self.threads.contains(&event.thread), "not lent: {event:?}");
        self.events.push(event);
    }
}

impl KeepsApart for Apart {
    type Part = LentThreads;

    fn lend(&mut self, threads: &[u32]) -> Option<LentThreads> {
        if self.keeps.is_some_and(|kept| threads.contains(&kept)) {
            return None;
        }
        let are_here = threads.iter().all(|thread| self.lent.insert(*thread));
        assert!(are_here, "twice: {threads:?}");
        Some(LentThreads {
            threads: threads.to_vec(),
            events: Vec::new(),
        })
    }

    fn take_back(&mut self, part: LentThreads) {
        let were_lent = part.threads.iter().all(|thread| self.lent.remove(thread));
        assert!(were_lent, "not lent: {part:?}");
        self.events.extend(part.events);
    }
}

/// Each job has a thread of its own.
#[derive(Debug)]
pub struct ThreadEach;

impl Crew for ThreadEach {
    fn run(&self, jobs: Vec<Job>) {
        let threads = jobs.into_iter().map(std::thread::spawn);
        let threads: Vec<_> = threads.collect();
        // What becomes of those that fail is for who has given the work.
        threads
            .into_iter()
            .map(std::thread::JoinHandle::join)
            .for_each(drop);
    }

    fn is_worth_sharing(&self, _records: usize) -> bool {
        true
    }
}

/// Who takes what a stream passes on, in its way.
pub trait Taking {
    fn take(&mut self, stream: &mut Stream, pass: Pass);
}

impl Taking for Vec<Event> {
    fn take(&mut self, stream: &mut Stream, pass: Pass) {
        stream.pass_on(pass, self);
    }
}

impl Taking for Apart {
    fn take(&mut self, stream: &mut Stream, pass: Pass) {
        stream.pass_apart(pass, self, &ThreadEach);
    }
}

/// What came out of a merge, one by one.
#[derive(Debug, Default)]
struct Popped(Vec<Timed>);

impl Taker for Popped {
    fn one(&mut self, _ring: usize, timed: Timed) {
        self.0.push(timed);
    }

    fn steps(&mut self, steps: Steps<'_>) {
        let each = steps.records();
        self.0
            .extend(each.map(|record| Timed::alone(steps.vcpu, record)));
    }

    fn knows_apart(&self) -> bool {
        false
    }

    fn are_apart(&mut self, _rings: &[Steps<'_>]) -> bool {
        false
    }

    fn apart(&mut self, rings: Vec<LentSteps>) -> Vec<LentSteps> {
        rings
    }
}

/// What is certain of its place, when a round is over.
pub fn popped(merge: &mut Merge) -> Vec<Timed> {
    popped_in(merge, Pass::Round)
}

/// What is passed on so.
pub fn popped_in(merge: &mut Merge, pass: Pass) -> Vec<Timed> {
    let mut popped = Popped::default();
    merge.pass_on(pass, &mut popped);
    popped.0
}
