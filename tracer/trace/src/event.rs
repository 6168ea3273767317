//! What a trace is made of once it has left the rings: the [records](Record) that each brings, and the one stream of
//! [events](Event) that they become, in the order of time ([`Stream`](crate::stream::Stream)).

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use terms::addr::Gva;
use terms::event_format::EventId;
use terms::field::FieldValue;
use terms::function::FunctionId;

use crate::host::HostStep;

/// One thing that happened in the guest, or to what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// The vCPU it happened on.
    pub vcpu: u16,
    /// The thread, by the order of appearance. Where threads are not told apart, each vCPU is one.
    pub thread: u32,
    /// How many calls of this thread are open around it.
    pub depth: u32,
    /// What happened.
    pub kind: EventKind,
    /// Of an entry the arguments, or in a trace that has callers where it was made; of an exit what was returned; where
    /// they were captured. Of a point its fields.
    pub values: Option<Values>,
}

impl Event {
    /// The function that is entered or returned from.
    #[must_use]
    pub const fn function(&self) -> Option<FunctionId> {
        match self.kind {
            EventKind::Entry(function) | EventKind::Exit { function, .. } => Some(function),
            EventKind::Lost(_)
            | EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => None,
        }
    }

    /// Where the call that it begins was made: the address that it returns to, in a trace that has callers.
    #[must_use]
    pub fn caller(&self) -> Option<Gva> {
        match (self.kind, self.values.as_deref()) {
            (EventKind::Entry(_), Some([FieldValue::Pointer(caller)])) => {
                // Some stores keep 48 bits of it.
                Some(caller.canonical())
            }
            _ => None,
        }
    }

    /// Its values as people read them, where there are any.
    #[must_use]
    pub fn shown_values(&self) -> String {
        let values = self.values.as_deref().unwrap_or_default().iter();
        values
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A function was entered. Where returns are not traced, nothing else is said of the call.
    Entry(FunctionId),
    /// The innermost open call ended.
    Exit {
        /// Its function.
        function: FunctionId,
        /// How it ended.
        end: End,
        /// Nanoseconds that it took, where that is known.
        duration: Option<u64>,
    },
    /// That many records of this vCPU were lost; this thread was the last that was seen on it.
    Lost(u64),
    /// An event of the guest's own was passed, or a probe was hit.
    Point(EventId),
    /// That many of those were lost on this vCPU.
    LostPoints(u64),
    /// The clock was late for so many nanoseconds up to now: times of that while are too early.
    Stall(u64),
    /// This vCPU found a ring full and waited for its reader, for so many nanoseconds up to now.
    Wait(u64),
    /// The host did something with this vCPU.
    Host(HostStep),
}

/// How a call ended. The number is the one that trace directories hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum End {
    /// It returned.
    #[default]
    Returned = 0,
    /// It returned, but records were lost meanwhile: it may be two calls of which the end of the
    /// first and the beginning of the last are missing.
    Unsure = 1,
    /// There was no room to hook its return: when it ended is not known.
    Unhooked = 2,
    /// An outer call returned first: it was left by a jump out of it, or is missing for a loss.
    NotSeen = 3,
    /// Its place on the stack was used again: its thread died, or it was left by a jump.
    Unreturned = 4,
    /// Calls on its stack contradict each other: only its entry is known.
    EntryOnly = 5,
}

impl End {
    /// Every way to end, by number.
    pub const ALL: [Self; 6] = [
        Self::Returned,
        Self::Unsure,
        Self::Unhooked,
        Self::NotSeen,
        Self::Unreturned,
        Self::EntryOnly,
    ];

    /// What reports say beside such a call; nothing of one that returned.
    #[must_use]
    pub const fn remark(self) -> Option<&'static str> {
        match self {
            Self::Returned => None,
            Self::Unsure => Some("records lost meanwhile"),
            Self::Unhooked => Some("unhooked"),
            Self::NotSeen => Some("no return seen"),
            Self::Unreturned => Some("unreturned"),
            Self::EntryOnly => Some("entry only"),
        }
    }
}

/// A step of a call of which all is known, without values: it was entered, or has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SureStep {
    /// As that of an [`Event`].
    pub time_ns: u64,
    /// The function.
    pub function: FunctionId,
    /// As that of an [`Event`].
    pub depth: u32,
    /// Nanoseconds that the call took which has returned; none of one that was entered.
    pub lasted_ns: Option<u64>,
}

impl SureStep {
    /// The same as an event of this vCPU and this thread.
    #[must_use]
    pub const fn event(self, vcpu: u16, thread: u32) -> Event {
        let kind = match self.lasted_ns {
            None => EventKind::Entry(self.function),
            duration => EventKind::Exit {
                function: self.function,
                end: End::Returned,
                duration,
            },
        };
        Event {
            time_ns: self.time_ns,
            vcpu,
            thread,
            depth: self.depth,
            kind,
            values: None,
        }
    }
}

/// Where events go to. The calls of one thread come in order: well nested, and never back in time.
pub trait Sink {
    /// The next event.
    fn event(&mut self, event: Event);

    /// The next steps of a thread, on one vCPU: the same as so many events, for who can take them faster than one by one.
    fn steps(&mut self, vcpu: u16, thread: u32, steps: &[SureStep]) {
        for step in steps {
            self.event(step.event(vcpu, thread));
        }
    }

    /// Whether events of different threads have to come in the order of time. Who keeps threads apart can say no: then
    /// what a ring brings need not wait for the others, where nothing has to be put together across them.
    fn is_ordered(&self) -> bool {
        true
    }
}

/// Who keeps threads apart, and can lend what it keeps some of them in, so that several threads are taken side by side.
pub trait KeepsApart: Sink {
    /// What it keeps some threads in.
    type Part: Sink + Debug + Send + 'static;

    /// Lends what these threads are kept in. Until it is back, nothing else comes of them. `None` where that is not to be
    /// had: then they come to itself.
    fn lend(&mut self, threads: &[u32]) -> Option<Self::Part>;

    /// It is back.
    fn take_back(&mut self, part: Self::Part);
}

impl Sink for Vec<Event> {
    fn event(&mut self, event: Event) {
        self.push(event);
    }
}

impl Sink for VecDeque<Event> {
    fn event(&mut self, event: Event) {
        self.push_back(event);
    }
}

/// What a ring brings: nothing is known of its place among what other rings bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// What it says.
    pub kind: RecordKind,
}

// There are as many as a large ring holds, in memory at once.
const _: () = assert!(size_of::<Record>() == 24);

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordKind {
    /// A function was entered.
    Entry(FunctionId),
    /// A function was entered, and it is known from where.
    Called {
        /// The function.
        function: FunctionId,
        /// Where it will return to, in the guest; 0 where that is not known.
        caller: u64,
    },
    /// A step of a function graph.
    Graph {
        /// The function.
        function: FunctionId,
        /// What it did.
        step: Step,
        /// The address at which its return address lies, in the guest: what tells calls and
        /// threads apart.
        slot: u64,
    },
    /// That many records of this ring were lost just before.
    Lost(u64),
    /// A point was passed.
    Point(Box<Passed>),
    /// Values of a call were captured.
    Captured(Box<CallValues>),
    /// The clock was late for so many nanoseconds.
    Stall(u64),
    /// A vCPU waited for the reader of a ring.
    Wait {
        /// Which one.
        vcpu: u16,
        /// For so many nanoseconds.
        length_ns: u64,
    },
    /// The host did something with this vCPU.
    Host(Box<HostStep>),
}

/// A record on its way.
#[derive(Debug, PartialEq, Eq)]
pub struct Timed {
    /// The record, with the time that it was made at.
    pub record: Record,
    /// The vCPU that it was made on.
    pub vcpu: u16,
    /// Its place: that time, or one that others have passed.
    pub time_ns: u64,
    /// Of a loss: the time up to which it may have happened.
    pub until_ns: u64,
    /// Later records of other rings have gone on before it, because too many waited.
    pub is_late: bool,
    /// Other rings may still bring records of the same place.
    pub is_tied: bool,
}

impl Timed {
    /// A record of this vCPU in its own place, of which no other ring brings anything.
    #[must_use]
    pub const fn alone(vcpu: u16, record: Record) -> Self {
        let time_ns = record.time_ns;
        Self {
            record,
            vcpu,
            time_ns,
            until_ns: time_ns,
            is_late: false,
            is_tied: false,
        }
    }
}

/// A point that was passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Which.
    pub event: EventId,
    /// The values of its fields.
    pub values: Values,
}

/// What a record of a function graph stands for. The number is the one that stubs write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Step {
    /// The function was entered and its return is hooked: an exit follows if it ever returns.
    Entry = 0,
    /// The function returned.
    Exit = 1,
    /// The function was entered by a tail jump from a hooked one: the exit of that one is its, too.
    Tail = 2,
    /// The function was entered and there was no room to hook its return: no exit follows.
    Unhooked = 3,
}

impl Step {
    /// The step of this number.
    #[must_use]
    pub const fn of(bits: u64) -> Option<Self> {
        match bits {
            0 => Some(Self::Entry),
            1 => Some(Self::Exit),
            2 => Some(Self::Tail),
            3 => Some(Self::Unhooked),
            _ => None,
        }
    }
}

/// A step of a graph and the stack slot that it was at, in one word: slots are multiples of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotStep(u64);

impl SlotStep {
    /// Of a slot and the number of a step; what does not fit is cut.
    #[must_use]
    pub const fn new(slot: u64, step: u64) -> Self {
        Self(slot & !7 | step & 3)
    }

    /// The address at which the function's return address lies.
    #[must_use]
    pub const fn slot(self) -> u64 {
        self.0 & !7
    }

    /// What happened.
    #[must_use]
    pub const fn step(self) -> Step {
        match self.0 & 3 {
            0 => Step::Entry,
            1 => Step::Exit,
            2 => Step::Tail,
            _ => Step::Unhooked,
        }
    }
}

/// When values of a call were captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Moment {
    /// When the function was entered.
    Entry = 0,
    /// When it had returned.
    Exit = 1,
}

/// Values of a call, in the order of its function's parameters.
pub type Values = Arc<[FieldValue]>;

/// Bytes that these take in memory, with the counts of who has them and who waits for them: a value of one byte in a file is one of 24 here.
pub(crate) fn weight(values: &Values) -> usize {
    const COUNTS: usize = 2 * size_of::<usize>();
    let each = values.iter();
    let each = each.map(|value| size_of_val(value) + value.weight());
    COUNTS + each.sum::<usize>()
}

/// Values that were captured of a call, right before the record of the same step was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallValues {
    /// The function.
    pub function: FunctionId,
    /// At which step.
    pub moment: Moment,
    /// As [`RecordKind::Graph`] has it.
    pub slot: u64,
    /// The values.
    pub values: Values,
}

impl CallValues {
    /// What a routine has written: its own place on the stack, then the values.
    #[must_use]
    pub fn of(function: FunctionId, moment: Moment, fields: Vec<FieldValue>) -> Self {
        let mut fields = fields.into_iter();
        let slot = match fields.next() {
            Some(FieldValue::Pointer(slot)) => slot.0 & !7,
            _ => 0,
        };
        Self {
            function,
            moment,
            slot,
            values: fields.collect(),
        }
    }
}
