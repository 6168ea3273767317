//! Who wants something at a site: functions, events, probes, dynamic functions, lock prefixes.
//!
//! Each says what is to stand where, and for whom. What stands there, and what that makes of it, the table of sites knows
//! (`text`); nobody here writes, or remembers what was written.

pub mod any;
pub mod breakpoints;
pub mod dynamic;
pub mod events;
pub mod functions;
pub mod locks;
pub mod markers;
pub mod normalise;
pub mod probes;
pub mod tactic;
