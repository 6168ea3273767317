//! What a trace is made of once it has left the ring: one event, with its time and its vCPU.

use std::sync::Arc;

use terms::event_format::EventId;
use terms::field::FieldValue;
use terms::function::FunctionId;

/// One thing that happened in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// The vCPU it happened on.
    pub vcpu: u16,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A function was entered.
    Entry(FunctionId),
    /// That many records of this vCPU were lost just before.
    Lost(u64),
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
    /// Values of a call: the number that the [graph pipeline](crate::graph::pipeline) keeps them under.
    Captured(u64),
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

/// Values that were captured of a call, right before the record of the same step was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallValues {
    /// The function.
    pub function: FunctionId,
    /// At which step.
    pub moment: Moment,
    /// As [`EventKind::Graph`] has it.
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

/// An event of the guest's own making: a tracepoint that was passed.
#[derive(Debug, Clone, PartialEq)]
pub struct PointEvent {
    /// Nanoseconds since the guest's time began.
    pub time_ns: u64,
    /// The vCPU it happened on.
    pub vcpu: u16,
    /// What happened.
    pub kind: PointKind,
}

/// What happened at a point.
#[derive(Debug, Clone, PartialEq)]
pub enum PointKind {
    /// It was passed, with these values of its fields.
    Passed(EventId, Vec<FieldValue>),
    /// Values of a call were captured.
    Call(CallValues),
    /// That many events of this vCPU were lost just before.
    Lost(u64),
}
