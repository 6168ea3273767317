//! What makes of a ring's records what whoever writes wants ([`Form`](trace::form::Form)).

use trace::columns::Columns;
use trace::export::compact::Coder;
use trace::export::uftrace::{CallCoder, Entries};

/// What that is, if it is not rows.
#[derive(Debug, Clone)]
pub enum Encoding {
    /// Bytes, of a guest with stacks of this many bytes.
    Compact(u64),
    /// Records for a data file, of functions with these entries.
    DataFile(Entries),
    /// Steps in columns, of a guest with stacks of this many bytes.
    Columns(u64),
}

/// Records of calls that are read before what there is is written: as rows they fit a processor's cache.
pub(super) const AT_ONCE: usize = 1 << 14;

/// What makes it of the records of one ring.
#[derive(Debug)]
pub(super) enum Encoder {
    Rows,
    Compact(Coder),
    DataFile(CallCoder),
    Columns(Columns),
}

/// So many records of one ring wait while somebody else writes, at most: then who reads it waits, too.
const WAITING_MAX: usize = 1 << 17;

impl Encoder {
    /// The same of this one. Who waits with steps works on them meanwhile, so those are to be in a processor's cache still.
    pub fn waiting_max(&self) -> usize {
        match self {
            Self::Columns(_) => AT_ONCE,
            Self::Rows | Self::Compact(_) | Self::DataFile(_) => WAITING_MAX,
        }
    }

    /// Functions have come.
    pub fn extend(&mut self, entries: &Entries) {
        if let Self::DataFile(coder) = self {
            coder.extend(entries.clone());
        }
    }
}

impl From<Encoding> for Encoder {
    fn from(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Compact(stack_bytes) => Self::Compact(Coder::new(stack_bytes)),
            Encoding::DataFile(entries) => Self::DataFile(CallCoder::new(entries)),
            Encoding::Columns(stack_bytes) => Self::Columns(Columns::new(stack_bytes)),
        }
    }
}
