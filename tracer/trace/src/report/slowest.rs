//! The slowest calls of a graph, each with when and where it was made, and who made it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use terms::function::FunctionId;
use terms::quantity::plain;

use super::callers::{Caller, Callers, NOT_SEEN_IS};
use super::table::{Cell, Column, Table, Unit};
use crate::event::{Event, EventKind};

/// A call that has returned. The order is that of what took longer, and of that what came first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    duration_ns: u64,
    entered_ns: Reverse<u64>,
    vcpu: u16,
    thread: u32,
    function: FunctionId,
    caller: Caller,
}

/// The slowest so far.
#[derive(Debug)]
pub(super) struct Slowest {
    most: usize,
    calls: BinaryHeap<Reverse<Call>>,
    callers: Callers,
    timed: u64,
}

impl Slowest {
    /// Of which so many are kept.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            calls: BinaryHeap::new(),
            callers: Callers::default(),
            timed: 0,
        }
    }

    /// The next step of a thread; of the functions that are wanted calls are kept.
    pub fn add(&mut self, step: &Event, is_wanted: bool) {
        let caller = self.callers.caller(step);
        let EventKind::Exit {
            function, duration, ..
        } = step.kind
        else {
            return;
        };
        let Some(duration_ns) = duration.filter(|_| is_wanted) else {
            return;
        };
        self.timed += 1;
        let call = Reverse(Call {
            duration_ns,
            entered_ns: Reverse(step.time_ns.saturating_sub(duration_ns)),
            vcpu: step.vcpu,
            thread: step.thread,
            function,
            caller,
        });
        if self.calls.len() < self.most {
            self.calls.push(call);
        } else if let Some(mut last) = self.calls.peek_mut()
            && call < *last
        {
            *last = call;
        }
    }

    /// The slowest first.
    pub fn table<N: Into<String>>(&self, name: impl Fn(FunctionId) -> N) -> Table {
        let shown = self.calls.clone().into_sorted_vec();
        let remark = format!(
            "{} of {} of known duration",
            shown.len(),
            plain(self.timed, "call")
        );
        let is_not_seen = |Reverse(call): &Reverse<Call>| call.caller == Caller::NotSeen;
        let not_seen = shown
            .iter()
            .any(is_not_seen)
            .then(|| NOT_SEEN_IS.to_owned());
        let row = |Reverse(call): Reverse<Call>| {
            let Reverse(entered_ns) = call.entered_ns;
            let name = |id: FunctionId| name(id).into();
            vec![
                call.duration_ns.into(),
                entered_ns.into(),
                u64::from(call.vcpu).into(),
                u64::from(call.thread).into(),
                Cell::name(name(call.function)),
                Cell::Name(call.caller.shown(name)),
            ]
        };
        Table {
            name: "slowest",
            columns: vec![
                Column::new("duration", "DURATION us", Unit::Duration(14)),
                Column::new("entered", "ENTERED AT s", Unit::Time),
                Column::new("cpu", "CPU", Unit::Number(4)),
                Column::new("thread", "THREAD", Unit::Number(7)),
                Column::new("function", "FUNCTION", Unit::Name("")),
                Column::new("caller", "<-CALLER", Unit::Name("<-")),
            ],
            rows: shown.into_iter().map(row).collect(),
            remarks: std::iter::once(remark).chain(not_seen).collect(),
        }
    }
}
