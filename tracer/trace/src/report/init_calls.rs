//! Which calls are init calls, and what they took: of the kernel by its own list of them, where the trace has it. What is
//! not listed is told from the calls alone, those of modules always.
//!
//! By the calls, an init call has one caller, and whatever makes it calls nothing else of the text that comes after that of
//! the kernel. So one that is called elsewhere, too, is missed, and what alone an init call calls that is not traced stands
//! for it.

use std::collections::{HashMap, HashSet};

use terms::function::FunctionId;

use super::directory::TraceDirectory;
use super::functions::Functions;
use super::spent::Spent;

/// Whether a function is an init call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum IsInitCall {
    /// Its kernel lists it.
    Listed,
    /// Its kernel lists others.
    NotListed,
    /// Nobody says.
    #[default]
    Unsaid,
}

/// What a kernel lists, as numbers of a trace, which are in the order of addresses.
#[derive(Debug, Default)]
pub(super) struct Listed {
    calls: HashSet<FunctionId>,
    /// What comes after it is of modules.
    last: Option<FunctionId>,
}

impl Listed {
    /// What the kernel of this trace lists; none when nobody knows.
    pub fn of(trace: &TraceDirectory, functions: &Functions) -> Option<Self> {
        let said = &trace.side.as_ref()?.metadata.init_calls;
        let calls = said.iter().filter_map(|at| functions.at(at));
        let last = said.kernel_ends_with();
        (!said.is_empty()).then(|| Self {
            calls: calls.collect(),
            last: last.and_then(|at| functions.at(at)),
        })
    }

    pub fn says(&self, function: FunctionId) -> IsInitCall {
        let is_of_module = self.last.is_some_and(|last| function > last);
        match self.calls.contains(&function) {
            true => IsInitCall::Listed,
            false if is_of_module => IsInitCall::Unsaid,
            false => IsInitCall::NotListed,
        }
    }
}

/// The callees of a call that makes an init call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Made {
    /// None so far that may be it.
    #[default]
    Nothing,
    /// One that may be, which took so long and waited so long.
    One(FunctionId, Spent),
    /// Several, so they are what an init call calls that is not traced.
    Several,
    /// One that is listed.
    Listed(FunctionId, Spent),
    /// Several of those, so one that is not traced calls others.
    SeveralListed,
}

impl Made {
    /// And one that may be it.
    pub const fn and(self, function: FunctionId, spent: Spent) -> Self {
        match self {
            Self::Nothing => Self::One(function, spent),
            Self::One(..) | Self::Several => Self::Several,
            listed => listed,
        }
    }

    /// And one that is listed.
    pub const fn and_listed(self, function: FunctionId, spent: Spent) -> Self {
        match self {
            Self::Listed(..) | Self::SeveralListed => Self::SeveralListed,
            _ => Self::Listed(function, spent),
        }
    }
}

/// A function that may be an init call: what it took, and those calls that made it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InitCall {
    pub spent: Spent,
    pub made_in: Spent,
    /// Its kernel lists it. If not, it is none where others call it, too.
    pub is_listed: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct InitCalls {
    listed: Option<Listed>,
    calls: HashMap<FunctionId, InitCall>,
    /// All that made init calls.
    pub runs: Spent,
}

impl InitCalls {
    pub fn new(listed: Option<Listed>) -> Self {
        Self {
            listed,
            ..Self::default()
        }
    }

    /// Whether a function is one.
    pub fn says(&self, function: FunctionId) -> IsInitCall {
        let listed = self.listed.as_ref();
        listed.map_or(IsInitCall::Unsaid, |listed| listed.says(function))
    }

    /// One was made in a call that took so long.
    pub fn add(&mut self, made: Made, made_in: Spent) {
        self.runs.add(made_in);
        let (function, spent, is_listed) = match made {
            Made::One(function, spent) => (function, spent, false),
            Made::Listed(function, spent) => (function, spent, true),
            Made::Nothing | Made::Several | Made::SeveralListed => return,
        };
        let call = self.calls.entry(function).or_default();
        call.is_listed = is_listed;
        call.spent.add(spent);
        call.made_in.add(made_in);
    }

    /// Those that are traced.
    pub fn named(
        &self,
        has_callers: impl Fn(FunctionId) -> bool,
    ) -> impl Iterator<Item = (FunctionId, &InitCall)> {
        let calls = self.calls.iter().map(|(id, call)| (*id, call));
        calls.filter(move |(id, call)| call.is_listed || !has_callers(*id))
    }

    /// What names them.
    pub const fn rule(&self) -> &'static str {
        match self.listed {
            Some(_) => {
                "init calls are those that the kernel lists; of modules, what alone is called to make one"
            }
            None => {
                "init calls are told from the calls alone, as this trace does not have the kernel's list of them: some \
                 can be missing, or have the name of what they call"
            }
        }
    }
}
