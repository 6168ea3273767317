//! What the rings bring, kept as it is: who reads the trace puts calls together. Threads are told apart by their stacks alone,
//! so that they are named while they are there.

use std::collections::HashMap;
use std::path::Path;

use terms::addr::Gva;
use terms::field::Field;
use terms::function::FunctionId;
use trace::doubt::TimeNote;
use trace::event::{Moment, Record};
use trace::export::budget::Budget;
use trace::export::compact::{Coder, CompactWriter, Kept};
use trace::export::store::News;
use trace::export::uftrace::layout::Text;
use trace::export::uftrace::{ExportError, Metadata};
use trace::form::Form;
use trace::graph::Death;
use trace::stream::StreamOptions;

use super::backlog::{Batch, Records};

/// A compact trace being written.
#[derive(Debug)]
pub(super) struct Recording {
    writer: CompactWriter,
    stack_bytes: u64,
    /// For what comes as rows: all but calls.
    coder: Coder,
    /// Stacks by the order of appearance: their numbers, for who looks up names.
    stacks: Vec<Gva>,
    /// So many of them have been looked up.
    looked_up: usize,
    names: HashMap<Gva, String>,
}

impl Recording {
    pub fn create(
        directory: &Path,
        text: Text<'_>,
        metadata: Metadata,
        options: &StreamOptions,
        force: bool,
    ) -> Result<Self, ExportError> {
        Ok(Self {
            writer: CompactWriter::create(directory, text, metadata, options, force)?,
            stack_bytes: options.stack_bytes.unwrap_or(1),
            coder: Coder::new(1),
            stacks: Vec::new(),
            looked_up: 0,
            names: HashMap::new(),
        })
    }

    /// Takes what comes from now on from a budget.
    pub fn set_budget(&mut self, budget: &Budget) {
        self.writer.set_budget(budget);
    }

    /// Bytes of a stack of the guest.
    pub const fn stack_bytes(&self) -> u64 {
        self.stack_bytes
    }

    pub fn learn(&mut self, news: &News<'_>) {
        self.writer.learn(news);
    }

    /// What is captured of calls, from now on.
    pub fn values(&mut self, captured: &[(FunctionId, Moment, &[Field])]) {
        self.writer.values(captured.iter().copied());
    }

    /// Writes what was read, and returns it as rows for who listens, if anybody does and there is a `room` for them.
    pub fn take(&mut self, batch: Batch, room: Option<Vec<Record>>) -> Option<Batch> {
        let (mut coded, heard) = match batch.records {
            Records::Compact(coded) => {
                let heard = room.map(|mut room| {
                    coded.decode(&mut room);
                    room
                });
                (coded, heard)
            }
            other => {
                let is_heard = room.is_some();
                let rows = other.into_rows(room.unwrap_or_default());
                rows.iter().for_each(|record| self.coder.record(record));
                (self.coder.take(), is_heard.then_some(rows))
            }
        };
        self.stacks.extend(coded.take_stacks());
        let (origin, values) = (batch.origin, batch.values);
        let (until_ns, looked_ns) = (batch.until_ns, batch.looked_ns);
        self.writer.append(origin, coded, until_ns, looked_ns);
        heard.map(|rows| Batch {
            origin,
            records: Records::Rows(rows),
            values,
            looked_ns,
            until_ns,
        })
    }

    /// Whether [`Self::take_fresh`] has any.
    pub const fn has_fresh(&self) -> bool {
        self.looked_up < self.stacks.len()
    }

    /// The stacks that were seen for the first time since this was asked last.
    pub fn take_fresh(&mut self) -> Vec<(u32, Gva)> {
        let stacks = self.stacks.iter().enumerate().skip(self.looked_up);
        let numbered =
            stacks.map(|(number, stack)| (u32::try_from(number).unwrap_or(u32::MAX), *stack));
        let fresh = numbered.collect();
        self.looked_up = self.stacks.len();
        fresh
    }

    /// What was found out about threads, by these numbers.
    pub fn threads(&mut self, named: Vec<(u32, String)>, deaths: Vec<Death>) {
        let stack = |number: u32| self.stacks.get(number as usize).copied();
        let named = named.into_iter();
        let named: Vec<_> = named
            .filter_map(|(number, name)| Some((stack(number)?, name)))
            .collect();
        let deaths = deaths.into_iter();
        let deaths = deaths.filter_map(|death| Some((stack(death.thread)?, death)));
        let deaths = deaths.collect();
        self.names.extend(named.iter().cloned());
        self.writer.threads(named, deaths);
    }

    /// What the thread on this stack is called.
    pub fn name(&self, stack: Gva) -> Option<&String> {
        self.names.get(&stack)
    }

    pub fn end_round(&mut self) {
        self.writer.end_round();
    }

    pub const fn error(&self) -> Option<&ExportError> {
        self.writer.error()
    }

    pub fn finish(&mut self, doubts: &[TimeNote], until_ns: u64) -> Result<Kept, ExportError> {
        self.writer.recorded_until(until_ns);
        self.writer.finish(doubts)
    }
}
