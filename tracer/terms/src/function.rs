//! A function of the guest, and its number: how everything speaks of it.

use std::ops::Deref;
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

/// Functions by number. Those of modules come later, lot by lot; each lot is in the order of its addresses.
#[derive(Debug, Clone, Copy)]
pub struct Functions<'a> {
    all: &'a [Function],
    later: &'a [u32],
}

impl<'a> Functions<'a> {
    /// All of them, and the number of the first of each lot that came later, ascending.
    #[must_use]
    pub const fn new(all: &'a [Function], later: &'a [u32]) -> Self {
        Self { all, later }
    }

    /// Which covers `address`: of several the one that came last, as it has taken the place of the others.
    #[must_use]
    pub fn at(self, address: Gva) -> Option<FunctionId> {
        let mut end = self.all.len();
        let later = self.later.iter().rev();
        let starts = later.map(|start| usize::try_from(*start).unwrap_or(usize::MAX));
        for start in starts.chain([0]) {
            let lot = self.all.get(start..end)?;
            if let Some(index) = covering(lot, address) {
                return u32::try_from(start + index).ok().map(FunctionId);
            }
            end = start;
        }
        None
    }
}

impl Deref for Functions<'_> {
    type Target = [Function];

    fn deref(&self) -> &[Function] {
        self.all
    }
}

/// Which of a lot covers `address`.
fn covering(lot: &[Function], address: Gva) -> Option<usize> {
    let end = lot.partition_point(|function| function.address <= address);
    let index = end.checked_sub(1)?;
    let function = lot.get(index)?;
    let offset = address.0.checked_sub(function.address.0)?;
    (offset < function.size).then_some(index)
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
