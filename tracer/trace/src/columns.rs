//! What a ring of a graph brings, as who puts calls together takes it: steps in columns, so that many are looked at at a time.

use std::ops::Range;

use terms::function::FunctionId;

use crate::event::{Record, RecordKind, SlotStep};
use crate::form::Form;

/// So many stacks of some steps are told, at most: a thread, and what interrupts it.
const STACKS_MAX: usize = 16;

/// Fewer steps than this that come after rows are rows, too. Else each step of which something is to be said, and a hostile
/// guest can have that said of all, would have columns of its own: 840 bytes for 48.
const FEW: usize = 16;

/// Steps of a graph, a column for each thing that they say; all columns are as long.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepColumns {
    times: Vec<u64>,
    functions: Vec<FunctionId>,
    steps: Vec<SlotStep>,
    /// Numbers of the stacks that they are on: the first that come, and one more where there are more.
    stacks: Vec<u64>,
    /// That of the last.
    stack: Option<u64>,
    /// A time was before that of the one before.
    goes_back: bool,
}

impl StepColumns {
    /// When each was made, in nanoseconds.
    #[must_use]
    pub fn times(&self) -> &[u64] {
        &self.times
    }

    /// Numbers of the stacks that they are on: addresses in stacks. `None` where those are too many to say.
    #[must_use]
    pub fn stacks(&self) -> Option<&[u64]> {
        Some(&*self.stacks).filter(|stacks| stacks.len() <= STACKS_MAX)
    }

    /// Whether no time is before that of the one before.
    #[must_use]
    pub const fn is_ascending(&self) -> bool {
        !self.goes_back
    }

    /// All of them, as this vCPU made them.
    #[must_use]
    pub fn all(&self, vcpu: u16) -> Steps<'_> {
        self.some(vcpu, 0..self.times.len())
    }

    /// Some of them, as this vCPU made them.
    #[must_use]
    pub fn some(&self, vcpu: u16, range: Range<usize>) -> Steps<'_> {
        Steps {
            vcpu,
            times: self.times.get(range.clone()).unwrap_or_default(),
            functions: self.functions.get(range.clone()).unwrap_or_default(),
            steps: self.steps.get(range).unwrap_or_default(),
            stacks: self.stacks(),
        }
    }

    fn clear(&mut self) {
        let Self {
            times,
            functions,
            steps,
            stacks,
            stack,
            goes_back,
        } = self;
        times.clear();
        functions.clear();
        steps.clear();
        stacks.clear();
        *stack = None;
        *goes_back = false;
    }

    fn add(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep], log2: u32) {
        let mut last_ns = self.times.last().copied().unwrap_or(0);
        for time_ns in times {
            self.goes_back |= *time_ns < last_ns;
            last_ns = *time_ns;
        }
        for at in steps {
            let stack = at.slot() >> log2;
            if self.stack != Some(stack) {
                self.stack = Some(stack);
                if self.stacks.len() <= STACKS_MAX && !self.stacks.contains(&stack) {
                    self.stacks.push(stack);
                }
            }
        }
        self.times.extend_from_slice(times);
        self.functions.extend_from_slice(functions);
        self.steps.extend_from_slice(steps);
    }
}

/// Steps that one vCPU made after each other, and their times ascend; all columns are as long.
#[derive(Debug, Clone, Copy, Default)]
pub struct Steps<'a> {
    /// Which one.
    pub vcpu: u16,
    /// When, in nanoseconds.
    pub times: &'a [u64],
    /// Of which functions.
    pub functions: &'a [FunctionId],
    /// What they were, and where.
    pub steps: &'a [SlotStep],
    /// The stacks that they are on, perhaps with others; `None` where those are too many to say.
    pub stacks: Option<&'a [u64]>,
}

impl<'a> Steps<'a> {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Those after the first so many.
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        Self {
            times: self.times.get(count..).unwrap_or_default(),
            functions: self.functions.get(count..).unwrap_or_default(),
            steps: self.steps.get(count..).unwrap_or_default(),
            ..self
        }
    }

    /// Each of them: when, of which function, what and where.
    #[inline]
    pub fn each(self) -> impl Iterator<Item = (u64, FunctionId, SlotStep)> + 'a {
        let each = self.times.iter().zip(self.functions).zip(self.steps);
        each.map(|((time_ns, function), at)| (*time_ns, *function, *at))
    }

    /// The same as records.
    pub fn records(self) -> impl Iterator<Item = Record> + 'a {
        self.each().map(|(time_ns, function, at)| Record {
            time_ns,
            kind: RecordKind::Graph {
                function,
                step: at.step(),
                slot: at.slot(),
            },
        })
    }
}

/// Some steps that a ring has brought, with the columns that they are in.
#[derive(Debug, Default)]
pub struct LentSteps {
    /// Which vCPU made them.
    pub vcpu: u16,
    /// They and others.
    pub columns: StepColumns,
    /// Which of those they are.
    pub range: Range<usize>,
}

impl LentSteps {
    /// The steps.
    #[must_use]
    pub fn steps(&self) -> Steps<'_> {
        self.columns.some(self.vcpu, self.range.clone())
    }
}

/// Some records of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Steps.
    Steps(StepColumns),
    /// Any.
    Rows(Vec<Record>),
}

impl Part {
    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Steps(steps) => steps.times.len(),
            Self::Rows(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When one of them was made, in nanoseconds, as far as it says.
    #[must_use]
    pub fn time_ns(&self, index: usize) -> Option<u64> {
        match self {
            Self::Steps(steps) => steps.times.get(index).copied(),
            Self::Rows(rows) => rows.get(index).map(|record| record.time_ns),
        }
    }

    /// Whether it is a loss.
    #[must_use]
    pub fn is_loss(&self, index: usize) -> bool {
        match self {
            Self::Steps(_) => false,
            Self::Rows(rows) => rows
                .get(index)
                .is_some_and(|record| matches!(record.kind, RecordKind::Lost(_))),
        }
    }

    /// Leaves nothing but its room.
    pub fn clear(&mut self) {
        match self {
            Self::Steps(steps) => steps.clear(),
            Self::Rows(rows) => rows.clear(),
        }
    }

    /// For how many there is room.
    #[must_use]
    pub const fn room(&self) -> usize {
        match self {
            Self::Steps(steps) => steps.times.capacity(),
            Self::Rows(rows) => rows.capacity(),
        }
    }

    /// Its room, for rows: none if it was for steps.
    #[must_use]
    pub fn into_rows(self) -> Vec<Record> {
        match self {
            Self::Rows(rows) => rows,
            Self::Steps(_) => Vec::new(),
        }
    }

    /// Takes one of them; what is there then is of no use.
    pub fn take(&mut self, index: usize) -> Option<Record> {
        match self {
            Self::Steps(steps) => steps.some(0, index..index + 1).records().next(),
            Self::Rows(rows) => {
                let nothing = Record {
                    time_ns: 0,
                    kind: RecordKind::Lost(0),
                };
                Some(std::mem::replace(rows.get_mut(index)?, nothing))
            }
        }
    }
}

/// What a ring of a graph brought, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    stack_log2: u32,
    parts: Vec<Part>,
    /// For the next steps.
    room: StepColumns,
}

impl Columns {
    /// Nothing yet, of a guest with stacks of this many bytes, a power of two.
    #[must_use]
    pub fn new(stack_bytes: u64) -> Self {
        Self {
            stack_log2: stack_bytes.trailing_zeros() % u64::BITS,
            ..Self::default()
        }
    }

    /// The next steps come into this room.
    pub fn use_room(&mut self, mut room: StepColumns) {
        room.clear();
        self.room = room;
    }

    /// All that came since this was asked last.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let next = Self {
            stack_log2: self.stack_log2,
            ..Self::default()
        };
        std::mem::replace(self, next)
    }

    /// What it is made of.
    #[must_use]
    pub fn into_parts(self) -> Vec<Part> {
        self.parts
    }

    /// The same, where it stays.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How many records there are.
    #[must_use]
    pub fn records(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    /// Adds the records themselves.
    pub fn decode(self, into: &mut Vec<Record>) {
        into.reserve(self.records());
        for part in self.parts {
            match part {
                Part::Steps(steps) => into.extend(steps.all(0).records()),
                Part::Rows(rows) => into.extend(rows),
            }
        }
    }

    fn add_rows(&mut self, add: impl FnOnce(&mut Vec<Record>)) {
        if let Some(Part::Rows(rows)) = self.parts.last_mut() {
            return add(rows);
        }
        let mut rows = Vec::new();
        add(&mut rows);
        self.parts.push(Part::Rows(rows));
    }
}

/// Rows, as they are.
impl From<Vec<Record>> for Columns {
    fn from(rows: Vec<Record>) -> Self {
        Self {
            parts: vec![Part::Rows(rows)],
            ..Self::default()
        }
    }
}

impl Form for Columns {
    fn calls(&mut self, times: &[u64], functions: &[FunctionId]) {
        self.add_rows(|rows| rows.calls(times, functions));
    }

    fn called(&mut self, times: &[u64], functions: &[FunctionId], callers: &[u64]) {
        self.add_rows(|rows| rows.called(times, functions, callers));
    }

    fn steps(&mut self, times: &[u64], functions: &[FunctionId], steps: &[SlotStep]) {
        match self.parts.last_mut() {
            Some(Part::Steps(columns)) => {
                return columns.add(times, functions, steps, self.stack_log2);
            }
            Some(Part::Rows(rows)) if times.len() < FEW => {
                return rows.steps(times, functions, steps);
            }
            Some(Part::Rows(_)) | None => {}
        }
        let mut columns = std::mem::take(&mut self.room);
        columns.add(times, functions, steps, self.stack_log2);
        self.parts.push(Part::Steps(columns));
    }

    fn lost(&mut self, time_ns: u64, count: u64) {
        self.add_rows(|rows| rows.lost(time_ns, count));
    }

    fn other(&mut self, record: &Record) {
        self.add_rows(|rows| rows.other(record));
    }
}

#[cfg(test)]
mod tests {
    use crate::event::Step;

    use super::*;

    /// A step of which something is to be said has no columns of its own, and what comes many at a time has.
    #[test]
    fn few_steps_after_rows_are_rows_too() {
        const DOUBTFUL: usize = 1000;
        let mut columns = Columns::new(1 << 14);
        let at = SlotStep::new(0x1000, Step::Entry as u64);
        for time_ns in 0..DOUBTFUL as u64 {
            columns.lost(time_ns, 0);
            columns.steps(&[time_ns], &[FunctionId(0)], &[at]);
        }
        columns.steps(&[DOUBTFUL as u64; FEW], &[FunctionId(0); FEW], &[at; FEW]);
        columns.steps(&[DOUBTFUL as u64], &[FunctionId(0)], &[at]);
        let parts = columns.into_parts();
        assert!(matches!(
            parts.as_slice(),
            [Part::Rows(rows), Part::Steps(steps)]
                if rows.len() == 2 * DOUBTFUL && steps.times().len() == FEW + 1
        ));
    }
}
