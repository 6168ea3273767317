//! Functions of a guest that is none, and what happens in them.

use std::sync::Arc;

use terms::addr::Gva;
use terms::function::{Function, FunctionId};

use crate::columns::Steps;
use crate::event::{End, Event, EventKind, Sink, Timed};
use crate::export::uftrace::layout::Text;
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

/// Who takes threads as they come.
#[derive(Debug, Default)]
pub struct Apart(pub Vec<Event>);

impl Sink for Apart {
    fn event(&mut self, event: Event) {
        self.0.push(event);
    }

    fn is_ordered(&self) -> bool {
        false
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
