//! A trace as its rings had it: the records as they were read, before they are merged, joined and named. Writing it takes
//! a tenth of what the calls of a trace take to be put together, and a file of a tenth of their size; who reads it puts them together then, by
//! the same stream, so that it has what a trace directory of the same run would have.
//!
//! One file, [`STORE_FILE`], in a directory of its own. After 16 bytes, the mark, the version and zeros, blocks follow. Each can be checked
//! by itself, and one that is not whole is the end of what can be read.
//!
//! ```text
//!  block   length of what follows the 12 bytes (4), kind (1), zeros (3), CRC-32 of the 8 bytes before it and of what follows (4)
//!   1      JSON: how the trace was recorded. The first block
//!   2      JSON: functions; later ones add to those before
//!   3      JSON: what the trace says of itself, in place of what it said before
//!   4      JSON: what points are; 5 probes; 6 what is captured of calls: of each the newest
//!   7      JSON: threads that have got a name or have ended, by their stacks
//!   8      records of one ring: what ring (1: calls, 2: points, 3: the clock, 4: the host), whether it was looked at (1), vCPU (2), how many
//!          (4), how many its losses say (8), the time from which they count (8), up to when a loss at their end may have happened (8),
//!          when the ring was looked at (8); then the records (`coder.rs`)
//!   9      looks at rings that brought nothing: of each what ring, 1, vCPU, when
//!  10      a round is over: what is certain continues
//!  11      JSON: the end; without it the trace was not ended in order
//! ```
//!
//! All numbers have their low byte first.

mod accounted;
mod blocks;
mod bytes;
mod coder;
mod decode;
mod described;
mod error;
mod json;
mod kept;
mod looks;
mod notes;
mod part;
mod replay;
mod rows;
mod tail;
#[cfg(test)]
mod tests;
mod unsaid;
mod weight;
mod writer;

use std::path::Path;

pub use crate::export::uftrace::layout::STORE_FILE;

pub use self::coder::{Coded, Coder};
pub use self::error::CompactError;
pub use self::kept::Kept;
pub use self::replay::{Replayed, convert, functions};
pub use self::writer::CompactWriter;

/// What it begins with.
const MARK: [u8; 8] = *b"exotrace";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// Whether this directory has such a trace.
#[must_use]
pub fn is_compact(directory: &Path) -> bool {
    directory.join(STORE_FILE).is_file()
}
