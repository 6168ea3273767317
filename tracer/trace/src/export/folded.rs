//! A trace as folded stacks: `outer;inner NANOSECONDS`, the input of flame graph tools.
//!
//! Each line has the time that was spent in the innermost function itself. Calls of unknown duration
//! add no time of their own; what they called does. Stacks that took none are left out: that is what
//! flame graph tools do with them. A trace without times or returns has calls in place of nanoseconds.
//!
//! A line has no place for a remark: tools would take it for a stack. So what the lines lack is said to who asks for it
//! ([`Folded::remarks`]), for who is told beside the file.

use std::collections::BTreeMap;
use std::io::{self, Write};

use terms::function::FunctionId;
use terms::quantity::counted;

use crate::event::{Event, EventKind};

/// What stacks are weighed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Weight {
    /// Nanoseconds in the innermost function itself.
    #[default]
    Time,
    /// Calls of the innermost function.
    Calls,
}

impl Weight {
    /// Its unit.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Time => "ns",
            Self::Calls => "calls",
        }
    }
}

/// Bytes that the lines of all stacks take, at most, and for each stack so many more. In a file that somebody has made up, stacks can
/// be thousands of calls deep, and each line has them all.
const LINES_MAX: usize = 256 << 20;
const LINE_MEAN_MAX: usize = 4 << 10;

/// The stack of a thread that is in no call.
const NOBODY: usize = 0;

/// A stack: one more call, in those of another stack.
#[derive(Debug, Clone, Copy, Default)]
struct Stack {
    caller: usize,
    weight: u64,
}

/// All stacks that there were. What they have in common is there once: a stack takes no more room when it is deep.
#[derive(Debug)]
struct Stacks {
    /// The first is [`NOBODY`].
    all: Vec<Stack>,
    /// By the stacks that they are called from, and their innermost functions.
    called: BTreeMap<(usize, FunctionId), usize>,
}

impl Default for Stacks {
    fn default() -> Self {
        Self {
            all: vec![Stack::default()],
            called: BTreeMap::new(),
        }
    }
}

impl Stacks {
    /// The stack where this function is called from another stack.
    fn called(&mut self, caller: usize, function: FunctionId) -> usize {
        let next = self.all.len();
        let stack = *self.called.entry((caller, function)).or_insert(next);
        if stack == next {
            self.all.push(Stack { caller, weight: 0 });
        }
        stack
    }

    /// Those that are called from this one, in the order of their functions.
    fn called_from(&self, caller: usize) -> impl Iterator<Item = (FunctionId, usize)> {
        let all = (caller, FunctionId(0))..=(caller, FunctionId(u32::MAX));
        let called = self.called.range(all);
        called.map(|((_, function), stack)| (*function, *stack))
    }

    fn at(&self, stack: usize) -> Stack {
        self.all.get(stack).copied().unwrap_or_default()
    }

    fn add(&mut self, stack: usize, weight: u64) {
        if let Some(stack) = self.all.get_mut(stack) {
            stack.weight = stack.weight.saturating_add(weight);
        }
    }
}

/// Adds up stacks.
#[derive(Debug, Default)]
pub struct Folded {
    weight: Weight,
    stacks: Stacks,
    threads: BTreeMap<u32, Thread>,
    /// Calls that were made, and those of them of which is known how long they took.
    calls: u64,
    timed: u64,
    /// Records that were lost.
    lost: u64,
}

/// The calls of one thread that are open, as a stack, and the nanoseconds in the calls from each.
#[derive(Debug, Default)]
struct Thread {
    stack: usize,
    inner: Vec<u64>,
}

impl Folded {
    /// No stacks yet.
    #[must_use]
    pub fn by(weight: Weight) -> Self {
        Self {
            weight,
            ..Self::default()
        }
    }

    /// A call of which is not known by whom.
    pub fn add_alone(&mut self, function: FunctionId) {
        let stack = self.stacks.called(NOBODY, function);
        self.stacks.add(stack, 1);
    }

    /// So many records were lost.
    pub const fn lose(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
    }

    /// What the lines lack.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let lost = (self.lost > 0).then(|| {
            let records = counted(self.lost, "record");
            format!("{records} lost: what they would have said is in no stack")
        });
        let untimed = match self.weight {
            Weight::Time => self.calls.saturating_sub(self.timed),
            Weight::Calls => 0,
        };
        let untimed = match untimed {
            0 => None,
            1 => Some("1 call of unknown duration adds no time of its own".to_owned()),
            _ => Some(format!(
                "{} of unknown duration add no time of their own",
                counted(untimed, "call")
            )),
        };
        lost.into_iter().chain(untimed).collect()
    }

    /// The next step of a thread.
    pub fn add(&mut self, step: &Event) {
        let thread = self.threads.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                thread.stack = self.stacks.called(thread.stack, function);
                thread.inner.push(0);
                self.calls += 1;
                if self.weight == Weight::Calls {
                    self.stacks.add(thread.stack, 1);
                }
            }
            EventKind::Exit { duration, .. } => {
                let inner = thread.inner.pop().unwrap_or_default();
                if let Some(duration) = duration.filter(|_| self.weight == Weight::Time) {
                    // Nothing is cut: times do not go back in a call of known duration.
                    let own = duration.saturating_sub(inner);
                    self.stacks.add(thread.stack, own);
                    self.timed += 1;
                    if let Some(around) = thread.inner.last_mut() {
                        *around = around.saturating_add(duration);
                    }
                }
                thread.stack = self.stacks.at(thread.stack).caller;
            }
            EventKind::Lost(count) => self.lose(count),
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => {}
        }
    }

    /// Frames of all stacks that are kept.
    #[cfg(test)]
    pub fn frames(&self) -> usize {
        self.stacks.called.len()
    }

    /// Writes one line for each stack that has a weight. Returns how many there was no room for: more than any guest needs.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write<'a, N>(
        &self,
        name: impl Fn(FunctionId) -> N,
        out: &mut impl Write,
    ) -> io::Result<u64>
    where
        N: Into<std::borrow::Cow<'a, str>>,
    {
        let mean = LINE_MEAN_MAX.saturating_mul(self.stacks.all.len());
        self.write_within(LINES_MAX.saturating_add(mean), name, out)
    }

    /// The same in so many bytes.
    fn write_within<'a, N>(
        &self,
        mut room: usize,
        name: impl Fn(FunctionId) -> N,
        out: &mut impl Write,
    ) -> io::Result<u64>
    where
        N: Into<std::borrow::Cow<'a, str>>,
    {
        let (mut line, mut left_out) = (String::new(), 0);
        // What is called from each stack in the line, and where in it that ends.
        let mut around = vec![(self.stacks.called_from(NOBODY), 0)];
        while let Some((called, end)) = around.last_mut() {
            line.truncate(*end);
            let Some((function, stack)) = called.next() else {
                around.pop();
                continue;
            };
            if around.len() > 1 {
                line.push(';');
            }
            // No line with more of it has room.
            if line.len() <= room {
                line.push_str(&name(function).into().replace(';', ":"));
            }
            around.push((self.stacks.called_from(stack), line.len()));
            let weight = self.stacks.at(stack).weight;
            if weight == 0 {
                continue;
            }
            match room.checked_sub(line.len()) {
                Some(rest) => {
                    room = rest;
                    writeln!(out, "{line} {weight}")?;
                }
                None => left_out += 1,
            }
        }
        Ok(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::End;
    use crate::testing::{entry, event, exit};

    #[test]
    fn each_stack_has_the_time_of_its_innermost_function() {
        assert_eq!(text_by(Weight::Time), "f0: 8\nf0:;f1: 42\n");
    }

    #[test]
    fn without_times_each_stack_has_the_calls_of_its_innermost_function() {
        assert_eq!(text_by(Weight::Calls), "f0: 1\nf0:;f1: 3\n");
    }

    /// Stacks that are deep take more room in lines than where they are kept: that has an end, and it is said how many are left out.
    #[test]
    fn there_is_room_for_so_many_lines_and_the_rest_is_counted() {
        let mut folded = Folded::by(Weight::Calls);
        for depth in 0..1_000 {
            folded.add(&event(0, 0, 0, depth, entry(depth)));
        }
        assert_eq!(folded.frames(), 1_000);
        let write = |room| {
            let mut text = Vec::new();
            let left_out = folded.write_within(room, |_| "f", &mut text).unwrap();
            (String::from_utf8(text).unwrap(), left_out)
        };
        let (text, left_out) = write(1 + 3 + 5);
        assert_eq!((&*text, left_out), ("f 1\nf;f 1\nf;f;f 1\n", 997));
        assert_eq!(write(1 + 3 + 5 - 1).1, 998);
        let (text, left_out) = write(1_000_000);
        assert_eq!((text.lines().count(), left_out), (1_000, 0));
        let most = LINES_MAX + 1_001 * LINE_MEAN_MAX;
        assert!(text.len() < most, "any guest has room");
    }

    /// A stack of a thousand names of a megabyte each took a gigabyte before it was left out.
    #[test]
    fn a_line_that_has_no_room_is_not_made() {
        let mut folded = Folded::by(Weight::Calls);
        for depth in 0..1_000 {
            folded.add(&event(0, 0, 0, depth, entry(depth)));
        }
        let asked = std::cell::Cell::new(0);
        let name = |_: FunctionId| {
            asked.set(asked.get() + 1);
            "a name that is long"
        };
        let left_out = folded.write_within(100, name, &mut Vec::new()).unwrap();
        assert_eq!((left_out, asked.get()), (998, 3));
    }

    #[test]
    fn lines_are_in_the_order_of_their_functions_the_outermost_first() {
        let mut folded = Folded::by(Weight::Calls);
        // They are met in another order.
        for (depth, function) in [(0, 2), (1, 1), (2, 3)] {
            folded.add(&event(0, 0, 0, depth, entry(function)));
        }
        for function in [3, 1, 2] {
            folded.add(&event(0, 0, 0, 0, exit(function)));
        }
        folded.add_alone(FunctionId(0));
        folded.add_alone(FunctionId(3));
        folded.add(&event(0, 0, 1, 0, entry(2)));
        folded.add(&event(0, 0, 1, 1, entry(0)));
        let mut text = Vec::new();
        let name = |function: FunctionId| function.0.to_string();
        assert_eq!(folded.write(name, &mut text).unwrap(), 0);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "0 1\n2 2\n2;0 1\n2;1 1\n2;1;3 1\n3 1\n");
    }

    #[test]
    fn what_lines_have_no_place_for_is_said_to_who_asks() {
        let said = |weight| {
            let mut folded = Folded::by(weight);
            for (time_ns, kind) in [(0, entry(0)), (1, entry(1)), (2, EventKind::Lost(1_234))] {
                folded.add(&event(time_ns, 0, 0, 0, kind));
            }
            let end = |duration| EventKind::Exit {
                function: FunctionId(1),
                end: End::Returned,
                duration,
            };
            for kind in [end(None), entry(1), end(Some(5))] {
                folded.add(&event(9, 0, 0, 1, kind));
            }
            folded.remarks()
        };
        let lost = "1,234 records lost: what they would have said is in no stack";
        // One has no end at all.
        let untimed = "2 calls of unknown duration add no time of their own";
        assert_eq!(said(Weight::Time), [lost, untimed]);
        assert_eq!(said(Weight::Calls), [lost]);
        assert_eq!(Folded::default().remarks(), [""; 0]);
    }

    fn text_by(weight: Weight) -> String {
        let mut folded = Folded::by(weight);
        let mut step = |kind| {
            folded.add(&Event {
                time_ns: 0,
                vcpu: 0,
                thread: 0,
                depth: 0,
                kind,
                values: None,
            });
        };
        let exit = |function, duration| EventKind::Exit {
            function: FunctionId(function),
            end: End::Returned,
            duration,
        };
        step(EventKind::Entry(FunctionId(0)));
        for duration in [Some(30), Some(12), None] {
            step(EventKind::Entry(FunctionId(1)));
            step(exit(1, duration));
        }
        step(exit(0, Some(50)));
        let mut text = Vec::new();
        let name = |function: FunctionId| format!("f{};", function.0);
        assert_eq!(folded.write(name, &mut text).unwrap(), 0);
        String::from_utf8(text).unwrap()
    }
}
