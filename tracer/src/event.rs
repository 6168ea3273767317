//! What a trace is made of once it has left the ring: one event, with its time and its vCPU.

use serde::{Deserialize, Serialize};

use crate::image::field::FieldValue;
use crate::image::points::EventId;
use crate::record::Step;

/// A function of the image: an index into [`Image::functions`](crate::image::Image::functions),
/// which is sorted by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionId(pub u32);

impl FunctionId {
    /// The place in the function table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

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
    /// That many events of this vCPU were lost just before.
    Lost(u64),
}
