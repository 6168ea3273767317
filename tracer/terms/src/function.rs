//! The number of a function: how everything speaks of it.

use serde::{Deserialize, Serialize};

/// A function of an image: an index into its functions, which are sorted by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionId(pub u32);

impl FunctionId {
    /// The place in the function table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}
