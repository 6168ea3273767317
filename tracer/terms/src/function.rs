//! A function of the guest, and its number: how everything speaks of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::addr::Gva;

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

/// One function: all symbols of function type at one address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Function {
    /// Where it begins.
    pub address: Gva,
    /// Its size; where the symbol says none, up to the next function.
    pub size: u64,
    /// Its raw name; of several symbols, a global one.
    pub name: Arc<str>,
    /// The demangled name.
    pub display: Arc<str>,
    /// Every other raw or demangled name that it has.
    pub aliases: Vec<Arc<str>>,
    /// The module that it came with.
    pub module: Option<Arc<str>>,
}

/// Which of these functions, which are in the order of their addresses, covers `address`.
#[must_use]
pub fn function_at(functions: &[Function], address: Gva) -> Option<FunctionId> {
    let end = functions.partition_point(|function| function.address <= address);
    let index = end.checked_sub(1)?;
    let function = functions.get(index)?;
    let offset = address.0.checked_sub(function.address.0)?;
    (offset < function.size).then(|| u32::try_from(index).ok().map(FunctionId))?
}

impl Function {
    /// Every name of the function, raw and demangled.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name, &self.display]
            .into_iter()
            .chain(&self.aliases)
            .map(|name| &**name)
    }
}
