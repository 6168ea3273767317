//! The entry record of each function, and which function an entry record is of.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use terms::function::{Function, FunctionId};

use super::record::{Kind, truncated, value_of, word};

/// The packed word of each function's entry record, by number: one table for all who use it.
#[derive(Debug, Clone, Default)]
pub struct Entries(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: Vec<u64>,
    /// Which function has which address, of which these are the low bits: where somebody asks.
    functions: OnceLock<HashMap<u64, FunctionId>>,
}

fn entry(function: &Function) -> u64 {
    word(Kind::Entry, truncated(function.address.0))
}

impl Entries {
    /// Of these functions.
    #[must_use]
    pub fn of(functions: &[Function]) -> Self {
        Self(Arc::new(Table {
            entries: functions.iter().map(entry).collect(),
            functions: OnceLock::new(),
        }))
    }

    /// Functions have come: `functions` are those of before, and more. Where nobody else has it the table stays, and becomes longer.
    pub(super) fn grow(&mut self, functions: &[Function]) {
        let Some(table) = Arc::get_mut(&mut self.0) else {
            *self = Self::of(functions);
            return;
        };
        let new = functions.get(table.entries.len()..).unwrap_or_default();
        table.entries.extend(new.iter().map(entry));
        table.functions = OnceLock::new();
    }

    /// None of a function that there is not.
    #[inline]
    pub(super) fn of_function(&self, function: FunctionId) -> Option<u64> {
        self.0.entries.get(function.index()).copied()
    }

    /// The low bits of its address; none of a function that there is not.
    pub(super) fn address(&self, function: FunctionId) -> Option<u64> {
        self.of_function(function).map(value_of)
    }

    /// Whether there is this function.
    #[inline]
    pub(super) fn has(&self, function: FunctionId) -> bool {
        function.index() < self.0.entries.len()
    }

    /// Those of the first of these functions that there are. Returns how many these are.
    pub(super) fn of_functions(&self, functions: &[FunctionId], column: &mut [u64]) -> usize {
        let entries = &self.0.entries;
        let places = column.iter_mut().zip(functions);
        let of_each = places.map_while(|(place, function)| {
            *place = *entries.get(function.index())?;
            Some(())
        });
        of_each.count()
    }

    /// The function at an address, of which these are the low bits.
    pub(super) fn function(&self, address: u64) -> Option<FunctionId> {
        let functions = self.0.functions.get_or_init(|| {
            let functions = (0..).map(FunctionId).zip(&self.0.entries);
            functions
                .map(|(id, entry)| (value_of(*entry), id))
                .collect()
        });
        functions.get(&address).copied()
    }
}
