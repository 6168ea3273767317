//! Calls without returns as a directory holds them, made by whoever reads them from a ring: several can do that at a time,
//! and who writes the files does nothing else.

use terms::function::FunctionId;

use super::block::{Block, Call};
use super::called::Called;
use super::entries::Entries;
use super::record::canonical;
use crate::event::{Record, RecordKind, SlotStep};
use crate::form::Form;

/// What one ring brought in one round, as records of a data file.
#[derive(Debug, Default)]
pub struct CodedCalls {
    /// In their order, each as large as what is written at once.
    pub(super) blocks: Vec<Block>,
    /// Functions that were called for the first time.
    pub(super) called: Vec<FunctionId>,
    entries: Entries,
}

impl CodedCalls {
    /// How many calls there are.
    #[must_use]
    pub fn records(&self) -> usize {
        let entries = self.blocks.iter().map(|block| block.counts.entries);
        usize::try_from(entries.sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// The same with those of functions that there are not.
    pub(super) fn calls(&self) -> u64 {
        let counts = self.blocks.iter().map(|block| block.counts);
        counts.map(|counts| counts.entries + counts.unknown).sum()
    }

    /// Adds the calls and losses themselves, for who wants them at once.
    pub fn decode(&self, into: &mut Vec<Record>) {
        into.reserve(self.records());
        let calls = self.blocks.iter().flat_map(Block::events);
        into.extend(calls.filter_map(|(time_ns, call)| {
            let kind = match call {
                Call::Lost(count) => RecordKind::Lost(count),
                Call::Of(address, caller) => {
                    let function = self.entries.function(address)?;
                    match caller.map(canonical) {
                        None => RecordKind::Entry(function),
                        Some(caller) => RecordKind::Called { function, caller },
                    }
                }
            };
            Some(Record { time_ns, kind })
        }));
    }
}

/// Turns calls of one ring into records of a data file.
#[derive(Debug)]
pub struct CallCoder {
    entries: Entries,
    called: Called,
    /// What was made since somebody took it,
    done: CodedCalls,
    /// and what comes after that.
    block: Block,
    /// A loss that the next may be added to.
    lost: Option<(u64, u64)>,
}

impl CallCoder {
    /// Of functions with these entries.
    #[must_use]
    pub fn new(entries: Entries) -> Self {
        Self {
            entries,
            called: Called::default(),
            done: CodedCalls::default(),
            block: Block::default(),
            lost: None,
        }
    }

    /// Functions have come: these are the entries of those of before, and of more.
    pub fn extend(&mut self, entries: Entries) {
        self.entries = entries;
    }

    /// All that came since this was asked last.
    pub fn take(&mut self) -> CodedCalls {
        self.say_lost();
        self.close();
        let done = std::mem::take(&mut self.done);
        CodedCalls {
            entries: self.entries.clone(),
            ..done
        }
    }

    fn say_lost(&mut self) {
        if let Some((time_ns, count)) = self.lost.take().filter(|(_, count)| *count > 0) {
            self.block.lost(time_ns, count);
            self.close_full();
        }
    }

    #[inline]
    fn close_full(&mut self) {
        if self.block.is_full() {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.block.is_nothing() {
            return;
        }
        let next = Block {
            // As much as comes usually.
            records: Vec::with_capacity(self.block.records.len()),
            time: self.block.time,
            ..Block::default()
        };
        let block = std::mem::replace(&mut self.block, next);
        self.done.blocks.push(block);
    }
}

/// None is nothing: such a loss is not said. A record of no call without a return is counted as one of no function.
impl Form for CallCoder {
    fn calls(&mut self, mut times: &[u64], mut functions: &[FunctionId]) {
        self.say_lost();
        while !times.is_empty() {
            let taken = self.block.calls(&self.entries, times, functions);
            let (done, later) = functions.split_at(taken.min(functions.len()));
            let known = done.iter().filter(|function| self.entries.has(**function));
            let first_calls = known.filter(|function| self.called.note(**function));
            self.done.called.extend(first_calls);
            (times, functions) = (times.get(taken..).unwrap_or_default(), later);
            self.close_full();
        }
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        self.say_lost();
        for ((time, function), caller) in times.iter().zip(functions).zip(callers) {
            let Some(entry) = self.entries.of_function(*function) else {
                self.block.counts.unknown += 1;
                continue;
            };
            match caller {
                0 => self.block.entry(*time, entry),
                caller => self.block.entry_from(*time, entry, *caller),
            }
            if self.called.note(*function) {
                self.done.called.push(*function);
            }
            self.close_full();
        }
    }

    fn steps(&mut self, times: &[u64], _functions: &[FunctionId], _steps: &[SlotStep]) {
        self.block.counts.unknown += times.len() as u64;
    }

    fn lost(&mut self, time_ns: u64, count: u64) {
        let (time_ns, before) = self.lost.unwrap_or((time_ns, 0));
        self.lost = Some((time_ns, before.saturating_add(count)));
    }

    fn other(&mut self, _record: &Record) {
        self.block.counts.unknown += 1;
    }
}
