//! Changes to guest text: decided as plans before any byte is written.
//!
//! `normalise` makes every site one five-byte nop before the first vCPU runs. `functions` knows what
//! stands at each site and what should, and plans the difference; so do the others for what they are about. None of them
//! writes: `text` does.

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
