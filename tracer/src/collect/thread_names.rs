//! The names of a guest's threads, asked of its lists of tasks, for a share of the time only.
//!
//! The lists are as long as the guest likes, and it can bring up a new stack as often as it likes: each look is bounded
//! ([`TaskList`]), and one that took long is not repeated soon. The thread that looks is the one that reads the
//! rings. Now and then it is looked although nothing is new: a stack that belongs to another task than before tells that
//! the one before has ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use image::Image;
use terms::addr::Gva;

use crate::guest::SharedMemory;
use crate::guest_kind;
use crate::introspection::{Task, TaskList};
use trace::graph::Death;

use super::ring_clock::TraceTime;

/// A look that took longer is followed by a rest.
const LONG: Duration = Duration::from_millis(10);
/// So many times as long as the look was.
const REST: u32 = 8;
/// Between two looks at threads that are known.
const PERIOD: Duration = Duration::from_secs(1);

/// What is known of the threads of one trace.
#[derive(Debug, Default)]
pub(super) struct ThreadNames {
    /// Where to ask, and when that is.
    guest: Option<(Arc<dyn SharedMemory>, TraceTime)>,
    /// Where the guest has its tasks, found out at the first look.
    tasks: Option<Option<Box<dyn TaskList>>>,
    /// The tasks that threads were named after.
    named: BTreeMap<u32, Named>,
    /// When was looked last.
    looked: Option<Duration>,
    /// The next look is not before this.
    rest_until: Option<Duration>,
    /// It was said that the lists have no end.
    is_said: bool,
}

/// A task on whose stack a thread was seen.
#[derive(Debug)]
struct Named {
    task: Task,
    /// When it was there, at the latest look.
    alive_ns: u64,
}

impl Named {
    /// What a look at `now` on its stack tells, which was begun at `begun_ns` and is over at `over_ns`. A name that is
    /// another one now, or when the thread has ended, which has the stack's number.
    fn see(&mut self, thread: u32, now: &Task, begun_ns: u64, over_ns: u64) -> Seen {
        let alive_ns = std::mem::replace(&mut self.alive_ns, begun_ns);
        let before = std::mem::replace(&mut self.task, now.clone());
        if before.at != now.at {
            // A program that a thread has started in place of its process keeps its place and changes its number.
            return Seen::Another(Death {
                thread,
                alive_ns,
                gone_ns: over_ns,
            });
        }
        match before.pid == now.pid && before.name != now.name {
            true => Seen::Renamed,
            false => Seen::Same,
        }
    }
}

/// What became of a thread between two looks.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Same,
    Renamed,
    Another(Death),
}

impl ThreadNames {
    /// Asks this memory from now on.
    pub fn ask(&mut self, memory: &Arc<dyn SharedMemory>, time: TraceTime) {
        self.guest = Some((Arc::clone(memory), time));
    }

    /// Whether a look is to be taken now; `has_fresh` when there are threads that have no name.
    pub fn is_due(&self, has_fresh: bool) -> bool {
        let Some((_, time)) = &self.guest else {
            return false;
        };
        let now = (time.rings.host().now)();
        let may = self.rest_until.is_none_or(|until| now >= until);
        let is_long_ago = || {
            let looked = self.looked.filter(|_| !self.named.is_empty());
            looked.is_some_and(|looked| now.saturating_sub(looked) >= PERIOD)
        };
        may && (has_fresh || is_long_ago())
    }

    /// Looks at the guest's tasks, and names the threads of these stacks and again those that a program was started in
    /// since: a task keeps its number then, but not its name. Returns the threads that have ended.
    pub fn look(
        &mut self,
        image: &Image,
        fresh: Vec<(u32, Gva)>,
        mut name: impl FnMut(u32, String),
    ) -> Vec<Death> {
        let Some((memory, time)) = &self.guest else {
            return Vec::new();
        };
        let find = || guest_kind::of(image).introspection(image)?.tasks();
        let Some(tasks) = self.tasks.get_or_insert_with(find) else {
            return Vec::new();
        };
        let now = time.rings.host().now;
        let begun = now();
        self.looked = Some(begun);
        // What is seen was so at some time between these two.
        let begun_ns = time.now_ns();
        let tasks = tasks.look(&**memory);
        let over_ns = time.now_ns();
        let of: HashMap<Gva, &Task> = tasks.found.iter().map(|task| (task.stack, task)).collect();
        let mut deaths = Vec::new();
        for (thread, named) in &mut self.named {
            // Whose stack is nobody's now has no successor in the way of whose calls its own would be.
            let Some(now) = of.get(&named.task.stack) else {
                continue;
            };
            match named.see(*thread, now, begun_ns, over_ns) {
                Seen::Same => {}
                Seen::Renamed => name(*thread, now.name.clone()),
                Seen::Another(death) => deaths.push(death),
            }
        }
        for (thread, stack) in fresh {
            if let Some(task) = of.get(&stack) {
                name(thread, task.name.clone());
                let named = Named {
                    task: (*task).clone(),
                    alive_ns: begun_ns,
                };
                self.named.insert(thread, named);
            }
        }
        self.say(tasks.given_up);
        let took = now().saturating_sub(begun);
        self.rest_until = (took > LONG).then(|| begun + took * REST);
        deaths
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::clock::{HostClock, RunClock};
    use crate::collect::ring_clock::RingClock;
    use crate::guest::Guest;
    use crate::introspection::Tasks;
    use crate::mock::{MockGuest, MockTarget};
    use crate::target::PhysicalMemory;
    use image::testing::nop_image;

    #[test]
    fn a_stack_with_another_task_on_it_tells_that_the_one_before_has_ended() {
        let task = |at: u64, pid, name: &str| Task {
            at: Gva(at),
            stack: Gva(0x1000),
            pid,
            name: name.to_owned(),
        };
        let mut named = Named {
            task: task(1, 7, "sh-7"),
            alive_ns: 10,
        };
        assert_eq!(named.see(3, &task(1, 7, "sh-7"), 20, 21), Seen::Same);
        assert_eq!(named.see(3, &task(1, 7, "ls-7"), 30, 31), Seen::Renamed);
        // A thread that starts a program becomes its process' first one: the same task with another number.
        assert_eq!(named.see(3, &task(1, 5, "ls-5"), 40, 41), Seen::Same);
        let death = Death {
            thread: 3,
            alive_ns: 40,
            gone_ns: 51,
        };
        let another = task(2, 9, "sh-9");
        assert_eq!(named.see(3, &another, 50, 51), Seen::Another(death));
        assert_eq!(named.see(3, &another, 60, 61), Seen::Same);
    }

    thread_local! {
        /// What this thread's clock says.
        static MILLISECONDS: Cell<u64> = const { Cell::new(0) };
    }

    /// A list of one task, another one at each look, which takes 3 ms.
    #[derive(Debug, Default)]
    struct Fleeting(Cell<u64>);

    impl TaskList for Fleeting {
        fn look(&self, _: &dyn PhysicalMemory) -> Tasks {
            MILLISECONDS.set(MILLISECONDS.get() + 3);
            self.0.set(self.0.get() + 1);
            let task = Task {
                at: Gva(self.0.get()),
                stack: Gva(0x1000),
                pid: 1,
                name: "short".to_owned(),
            };
            Tasks {
                found: vec![task],
                is_whole: true,
                given_up: None,
            }
        }
    }

    /// It was once dated with when the round was over before which it was looked: a thread was gone before that had been seen.
    #[test]
    fn a_thread_was_there_before_a_look_and_is_gone_after_one() {
        let clock = HostClock {
            counter: || MILLISECONDS.get() * 1_000_000,
            now: || Duration::from_millis(MILLISECONDS.get()),
            rest: |_| {},
        };
        let time = TraceTime {
            run: RunClock::new(0, 1_000_000),
            rings: RingClock::None(clock),
        };
        let guest = MockGuest::new(MockTarget::new(1, 1 << 20));
        let memory: Arc<dyn SharedMemory> = Arc::new(guest.memory().clone());
        let mut names = ThreadNames {
            tasks: Some(Some(Box::new(Fleeting::default()))),
            ..ThreadNames::default()
        };
        names.ask(&memory, time);
        let image = nop_image(1);
        MILLISECONDS.set(10);
        let fresh = vec![(3, Gva(0x1000))];
        assert_eq!(names.look(&image, fresh, |_, _| ()), []);
        MILLISECONDS.set(20);
        let death = Death {
            thread: 3,
            alive_ns: 10_000_000,
            gone_ns: 23_000_000,
        };
        assert_eq!(names.look(&image, Vec::new(), |_, _| ()), [death]);
    }
}
