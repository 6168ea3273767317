//! A trace as folded stacks: `outer;inner NANOSECONDS`, the input of flame graph tools.
//!
//! Each line has the time that was spent in the innermost function itself. Calls of unknown duration
//! add no time of their own; what they called does. Stacks that took none are left out: that is what
//! flame graph tools do with them. A trace without times or returns has calls in place of nanoseconds.

use std::collections::BTreeMap;
use std::io::{self, Write};

use terms::function::FunctionId;

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

/// Adds up stacks.
#[derive(Debug, Default)]
pub struct Folded {
    weight: Weight,
    /// The weight of each stack, outermost function first.
    stacks: BTreeMap<Vec<FunctionId>, u64>,
    threads: BTreeMap<u32, Thread>,
}

/// The calls of one thread that are open, and the nanoseconds in the calls from each.
#[derive(Debug, Default)]
struct Thread {
    functions: Vec<FunctionId>,
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
        add(&mut self.stacks, &[function], 1);
    }

    /// The next step of a thread.
    pub fn add(&mut self, step: &Event) {
        let thread = self.threads.entry(step.thread).or_default();
        match step.kind {
            EventKind::Entry(function) => {
                thread.functions.push(function);
                thread.inner.push(0);
                if self.weight == Weight::Calls {
                    add(&mut self.stacks, &thread.functions, 1);
                }
            }
            EventKind::Exit { duration, .. } => {
                let inner = thread.inner.pop().unwrap_or_default();
                if let Some(duration) = duration.filter(|_| self.weight == Weight::Time) {
                    // Nothing is cut: times do not go back in a call of known duration.
                    let own = duration.saturating_sub(inner);
                    add(&mut self.stacks, &thread.functions, own);
                    if let Some(around) = thread.inner.last_mut() {
                        *around = around.saturating_add(duration);
                    }
                }
                thread.functions.pop();
            }
            EventKind::Lost(_)
            | EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => {}
        }
    }

    /// Writes one line for each stack that has a weight.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write<'a, N>(
        &self,
        name: impl Fn(FunctionId) -> N,
        out: &mut impl Write,
    ) -> io::Result<()>
    where
        N: Into<std::borrow::Cow<'a, str>>,
    {
        for (stack, weight) in self.stacks.iter().filter(|(_, weight)| **weight > 0) {
            let names = stack
                .iter()
                .map(|function| name(*function).into().replace(';', ":"));
            writeln!(out, "{} {weight}", names.collect::<Vec<_>>().join(";"))?;
        }
        Ok(())
    }
}

fn add(stacks: &mut BTreeMap<Vec<FunctionId>, u64>, stack: &[FunctionId], weight: u64) {
    match stacks.get_mut(stack) {
        Some(sum) => *sum = sum.saturating_add(weight),
        None => drop(stacks.insert(stack.to_vec(), weight)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::End;

    #[test]
    fn each_stack_has_the_time_of_its_innermost_function() {
        assert_eq!(text_by(Weight::Time), "f0: 8\nf0:;f1: 42\n");
    }

    #[test]
    fn without_times_each_stack_has_the_calls_of_its_innermost_function() {
        assert_eq!(text_by(Weight::Calls), "f0: 1\nf0:;f1: 3\n");
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
        folded.write(name, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }
}
