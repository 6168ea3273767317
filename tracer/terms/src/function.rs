//! A function of the guest, and its number: how everything speaks of it.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
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

/// Which functions that came later lie where: what came last has taken the place of what was there before, so that as many
/// steps find it however much has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lots {
    /// By where each begins: where it ends, and its functions.
    by_start: BTreeMap<Gva, (Gva, Range<u32>)>,
    /// The first function that came later.
    first: Option<u32>,
}

impl Lots {
    /// Functions with these numbers, in the order of their addresses, have come to the text from `start` to `end`.
    pub fn add(&mut self, start: Gva, end: Gva, numbers: Range<u32>) {
        if start >= end || numbers.is_empty() {
            return;
        }
        self.first.get_or_insert(numbers.start);
        let under = self.by_start.range(..end).rev();
        let under = under.take_while(|(_, (other, _))| *other > start);
        let under: Vec<Gva> = under.map(|(at, _)| *at).collect();
        for at in under {
            let Some((other, others)) = self.by_start.remove(&at) else {
                continue;
            };
            if at < start {
                self.by_start.insert(at, (start, others.clone()));
            }
            if other > end {
                self.by_start.insert(end, (other, others));
            }
        }
        self.by_start.insert(start, (end, numbers));
    }

    fn at(&self, address: Gva) -> Option<&Range<u32>> {
        let (_, (end, numbers)) = self.by_start.range(..=address).next_back()?;
        (address < *end).then_some(numbers)
    }
}

/// Functions by number: those of the kernel in the order of their addresses, and then what came later, lot by lot.
#[derive(Debug, Clone, Copy)]
pub struct Functions<'a> {
    all: &'a [Function],
    later: &'a Lots,
}

impl<'a> Functions<'a> {
    /// All of them, and where those lie that came later.
    #[must_use]
    pub const fn new(all: &'a [Function], later: &'a Lots) -> Self {
        Self { all, later }
    }

    /// Which covers `address`: of several the one that came last.
    #[must_use]
    pub fn at(self, address: Gva) -> Option<FunctionId> {
        let own = 0..self.later.first.unwrap_or(u32::MAX);
        let numbers = self.later.at(address).unwrap_or(&own);
        let index = |number: u32| {
            usize::try_from(number)
                .unwrap_or(usize::MAX)
                .min(self.all.len())
        };
        let start = index(numbers.start);
        let lot = self.all.get(start..index(numbers.end))?;
        let found = start + covering(lot, address)?;
        u32::try_from(found).ok().map(FunctionId)
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
