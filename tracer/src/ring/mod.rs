//! The rings: memory shared with the guest into which stubs write [`Record`](crate::record::Record)s.
//!
//! Each vCPU has a ring of its own and a [`cell`](crate::stub::cell) with three words: *head*, which
//! the stub advances by one unlocked `xadd` to reserve a slot, *limit*, which the host sets and the
//! stub compares with, and *lost*, which the stub counts up instead of reserving when head has
//! reached the limit. So every call of a traced function does exactly one of two things, each by
//! one instruction that nothing can tear: it reserves, or it counts itself as lost.
//!
//! * *overwrite* mode: the limit is out of reach; the oldest records are written over;
//! * *discard* mode: the limit follows the reader, or the oldest slot that is still unwritten, at the
//!   distance of the ring's size less a sixteenth, for writers that were about to write;
//! * *lossless* mode: the same, but who finds the ring full waits ([`turnstile`]);
//! * *off*: the limit is 0, and stubs do not count either; *held*, for a dump: they count and do not write.
//!
//! The value that `xadd` returns also carries the number of the ring, so a writer that is moved to
//! another vCPU between its instructions still fills the slot that it reserved, and
//! the record's lap mark tells the reader of which lap it is. What the reader does with
//! slots that are reserved and not written is in [`reader`].

pub mod geometry;
#[cfg(test)]
mod model;
pub mod moment;
pub mod payload;
mod pending;
pub mod reader;
pub mod run;
pub mod snapshot;
#[cfg(test)]
mod tests;
pub mod timeline;
pub mod turnstile;
pub(crate) mod wanted;
