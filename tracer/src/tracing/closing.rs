//! How tracing has ended, for each session that traced: what there is, and what is missing.

use std::path::PathBuf;

use trace::export::compact::Kept;
use trace::export::uftrace::Tally;

use status::Profile;

/// What has become of one session.
#[derive(Debug)]
pub enum Closing {
    /// A trace was written.
    Written {
        /// Where.
        directory: PathBuf,
        /// What is in it.
        tally: Tally,
        /// Records that were lost because a dump had the rings keep what they held.
        held: u64,
    },
    /// A compact trace was written.
    Recorded {
        /// Where.
        directory: PathBuf,
        /// What is in it.
        kept: Kept,
        /// Records that were lost because a dump had the rings keep what they held.
        held: u64,
    },
    /// It has recorded for nobody.
    Unkept {
        /// Its name.
        session: String,
        /// How much.
        records: u64,
    },
    /// It has counted, and nobody has asked what.
    Unasked(Profile),
}

impl Closing {
    /// Whether something is missing, or may be wrong.
    #[must_use]
    pub const fn is_warning(&self) -> bool {
        match self {
            Self::Written { tally, .. } => tally.lost > 0 || tally.anomalies > 0,
            Self::Recorded { kept, .. } => kept.lost > 0 || kept.doubts > 0,
            Self::Unkept { .. } => true,
            Self::Unasked(_) => false,
        }
    }
}
