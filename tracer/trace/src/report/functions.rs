//! The functions of a trace, by their addresses.

use std::borrow::Cow;

use terms::function::FunctionId;

use super::directory::{Names, TraceDirectory};
use super::step_map::StepMap;
use crate::event::Event;
use crate::export::uftrace::layout::SYMBOL_END;
use crate::export::uftrace::record::truncated;
use crate::graph::selection::Selection;

/// The functions of a trace: those that its symbols name first, then what else is called.
#[derive(Debug)]
pub struct Functions {
    ids: StepMap<u64, FunctionId>,
    addresses: Vec<u64>,
    /// Where what the symbols name begins, ascending, and where there is none from there on.
    begins: Vec<(u64, Option<FunctionId>)>,
}

impl Functions {
    pub(super) fn new(names: &Names, selection: &mut Selection) -> Self {
        let mut functions = Self {
            ids: StepMap::default(),
            addresses: Vec::new(),
            begins: Vec::new(),
        };
        let names = names.sorted();
        // As uftrace takes it: a function reaches to the next one.
        let next = names.iter().skip(1).map(|(address, _)| Some(*address));
        for ((address, name), next) in names.iter().zip(next.chain([None])) {
            let id = functions.add(*address);
            let is_one = *name != SYMBOL_END;
            functions.begins.push((*address, is_one.then_some(id)));
            let bytes = next.and_then(|next| next.checked_sub(*address));
            selection.add_function(name, bytes);
        }
        functions
    }

    fn add(&mut self, address: u64) -> FunctionId {
        let id = FunctionId(u32::try_from(self.addresses.len()).unwrap_or(u32::MAX));
        self.addresses.push(address);
        self.ids.insert(address, id);
        id
    }

    pub(super) fn id(&mut self, address: u64) -> FunctionId {
        match self.ids.get(&address) {
            Some(id) => *id,
            None => self.add(address),
        }
    }

    /// The function that begins at an address, if it is one of those known by now.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<FunctionId> {
        self.ids.get(&truncated(address)).copied()
    }

    /// The function that has the code at an address.
    #[must_use]
    pub fn around(&self, address: u64) -> Option<FunctionId> {
        let address = truncated(address);
        let after = self.begins.partition_point(|(begin, _)| *begin <= address);
        self.begins.get(after.checked_sub(1)?)?.1
    }

    /// The name of a function of this trace.
    #[must_use]
    pub fn name<'a>(&self, trace: &'a TraceDirectory, function: FunctionId) -> Cow<'a, str> {
        trace.names.name(self.address(function))
    }

    /// The names of all of them.
    pub(super) fn names<'a>(&self, trace: &'a TraceDirectory) -> Vec<Cow<'a, str>> {
        let addresses = self.addresses.iter();
        addresses.map(|at| trace.names.name(*at)).collect()
    }

    /// The function that made the call that begins with this step, where the trace says where it was made.
    #[must_use]
    pub fn caller(&self, trace: &TraceDirectory, step: &Event) -> Option<FunctionId> {
        // What was called last in a function that it does not come back to returns to where the next one begins.
        let call = step.caller()?.0.wrapping_sub(1);
        self.around(call).filter(|_| trace.has_callers())
    }

    /// The low 48 bits of a function's address.
    #[must_use]
    pub fn address(&self, function: FunctionId) -> u64 {
        self.addresses.get(function.index()).copied().unwrap_or(0)
    }
}
