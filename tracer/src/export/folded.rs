//! A graph trace as folded stacks: `outer;inner NANOSECONDS`, the input of flame graph tools.
//!
//! Each line has the time that was spent in the innermost function itself. Calls of unknown duration
//! add no time of their own; what they called does.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::event::FunctionId;
use crate::graph::{CallEvent, CallKind};

/// Adds up stacks.
#[derive(Debug, Default)]
pub struct Folded {
    /// Nanoseconds of each stack, outermost function first.
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
    /// The next step of a thread.
    pub fn add(&mut self, step: &CallEvent) {
        let thread = self.threads.entry(step.thread).or_default();
        match step.kind {
            CallKind::Entry(function) => {
                thread.functions.push(function);
                thread.inner.push(0);
            }
            CallKind::Exit { duration, .. } => {
                let inner = thread.inner.pop().unwrap_or_default();
                if let Some(duration) = duration {
                    let own = duration.saturating_sub(inner);
                    match self.stacks.get_mut(&thread.functions) {
                        Some(sum) => *sum = sum.saturating_add(own),
                        None => drop(self.stacks.insert(thread.functions.clone(), own)),
                    }
                    if let Some(around) = thread.inner.last_mut() {
                        *around = around.saturating_add(duration);
                    }
                }
                thread.functions.pop();
            }
            CallKind::Lost(_) => {}
        }
    }

    /// Writes one line for each stack that took time.
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
        for (stack, nanoseconds) in self.stacks.iter().filter(|(_, time)| **time > 0) {
            let names = stack
                .iter()
                .map(|function| name(*function).into().replace(';', ":"));
            writeln!(out, "{} {nanoseconds}", names.collect::<Vec<_>>().join(";"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::End;

    #[test]
    fn each_stack_has_the_time_of_its_innermost_function() {
        let mut folded = Folded::default();
        let mut step = |kind| {
            folded.add(&CallEvent {
                time_ns: 0,
                vcpu: 0,
                thread: 0,
                depth: 0,
                kind,
            });
        };
        let exit = |function, duration| CallKind::Exit {
            function: FunctionId(function),
            end: End::Returned,
            duration,
        };
        step(CallKind::Entry(FunctionId(0)));
        for duration in [Some(30), Some(12), None] {
            step(CallKind::Entry(FunctionId(1)));
            step(exit(1, duration));
        }
        step(exit(0, Some(50)));
        let mut text = Vec::new();
        let name = |function: FunctionId| format!("f{};", function.0);
        folded.write(name, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "f0: 8\nf0:;f1: 42\n");
    }
}
