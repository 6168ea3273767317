//! The names of a guest's threads, asked of its lists of tasks, for a share of the time only.
//!
//! The lists are as long as the guest likes, and it can bring up a new stack as often as it likes: each look is bounded
//! (`tracer::linux::task`), and one that took long is not repeated soon. The thread that looks is the one that reads the
//! rings.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use image::Image;
use terms::addr::Gva;
use tracer::linux::Kernel;
use tracer::linux::kernel_view::KernelView;
use tracer::linux::task;
use tracer::linux::task::{Task, TaskLayout};

use crate::memory::Memory;

/// A look that took longer is followed by a rest.
const LONG: Duration = Duration::from_millis(10);
/// So many times as long as the look was.
const REST: u32 = 8;

/// What is known of the threads of one trace.
#[derive(Debug, Default)]
pub(super) struct ThreadNames {
    /// Where to ask.
    memory: Option<Memory>,
    /// Where the guest has its tasks, found out at the first look.
    layout: Option<Option<TaskLayout>>,
    /// The tasks that threads were named after.
    named: BTreeMap<u32, Task>,
    /// The next look is not before this.
    rest_until: Option<Instant>,
    /// It was said that the lists have no end.
    is_said: bool,
}

impl ThreadNames {
    /// Asks this memory from now on.
    pub fn ask(&mut self, memory: &Memory) {
        self.memory = Some(memory.clone());
    }

    /// Whether a look may be taken now.
    pub fn is_ready(&self) -> bool {
        self.rest_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Looks at the guest's tasks, and names the threads of these stacks and again those that a program was started in
    /// since: a task keeps its number then, but not its name.
    pub fn look(
        &mut self,
        image: &Image,
        fresh: Vec<(u32, Gva)>,
        mut name: impl FnMut(u32, String),
    ) {
        let Some(memory) = &self.memory else {
            return;
        };
        let find = || Kernel::of(image).and_then(|kernel| kernel.tasks);
        let Some(layout) = self.layout.get_or_insert_with(find) else {
            return;
        };
        let begun = Instant::now();
        let tasks = task::tasks(&KernelView::new(memory, layout.tables), layout);
        let of: HashMap<Gva, &Task> = tasks.found.iter().map(|task| (task.stack, task)).collect();
        for (thread, named) in &mut self.named {
            let now = of.get(&named.stack);
            let now = now.filter(|now| now.pid == named.pid && now.name != named.name);
            if let Some(now) = now {
                name(*thread, now.name.clone());
                named.clone_from(now);
            }
        }
        for (thread, stack) in fresh {
            if let Some(task) = of.get(&stack) {
                name(thread, task.name.clone());
                self.named.insert(thread, (*task).clone());
            }
        }
        self.say(tasks.given_up);
        let took = begun.elapsed();
        self.rest_until = (took > LONG).then(|| begun + took * REST);
    }

    fn say(&mut self, given_up: Option<usize>) {
        if let Some(steps) = given_up
            && !std::mem::replace(&mut self.is_said, true)
        {
            log::warn!(
                "the guest's lists of tasks have no end within {steps} steps: threads can lack names"
            );
        }
    }
}
