//! What operations of tracing tell: plain data, for who shows it, sends it, or reads what was sent. A client of the
//! control socket needs this, and nothing that patches.

#![forbid(unsafe_code)]

mod dynamic;
mod events;
mod functions;
mod pauses;
mod probes;
mod profile;
mod rings;
mod sessions;
mod tracing;
mod wait_time;

pub use dynamic::{DynamicChange, DynamicChanged, DynamicList, DynamicStatus};
pub use events::{EventList, EventStatus, EventsChanged, FieldStatus};
pub use functions::{Changed, Function, Functions};
pub use pauses::microseconds;
pub use probes::{ProbeList, ProbeStatus, ProbesChanged};
pub use profile::{Profile, ProfiledFunction};
pub use rings::{Dumped, RingStatus, WaitStatus};
pub use sessions::{
    Deleted, OnlyStatus, SessionList, SessionStatus, Switched, TaskStatus, TasksChanged, Thawed,
};
pub use tracing::{
    ClockPageStatus, Digest, FrozenStatus, LocksStatus, SwitchedLocks, SwitchedSites,
    TracingStatus, VcpuClocksStatus,
};
pub use wait_time::WaitTime;
