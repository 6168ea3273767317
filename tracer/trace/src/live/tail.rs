//! What one listener has not taken yet.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use terms::event_format::EventFormat;
use terms::function::Function;

use super::live_event::{Happening, LiveEvent};
use super::occasion::{Occasion, Watch};
use crate::event::Event;

/// Events that wait for a listener; what comes then is counted, not kept.
const WAITING_MAX: usize = 1 << 16;
/// The same when they take so many bytes: one can have many texts of a guest's.
const BYTES_MAX: usize = 64 << 20;

/// Has whoever takes events look. It is called on the thread that reads the rings, and must not wait.
type Bell = Box<dyn Fn() + Send>;

struct Queue {
    waiting: VecDeque<LiveEvent>,
    /// What they take.
    bytes: usize,
    /// Events that there was no room for, after all that wait.
    unread: u64,
    is_over: bool,
    bell: Bell,
}

impl Queue {
    /// Adds one, which is made only if there is room for it. The bell rings when there was nothing before.
    fn push(&mut self, make: impl FnOnce() -> LiveEvent) {
        if self.waiting.len() >= WAITING_MAX || self.bytes >= BYTES_MAX {
            self.unread = self.unread.saturating_add(1);
            return;
        }
        let event = make();
        let was_empty = self.waiting.is_empty();
        self.say_unread(&event);
        self.add(event);
        if was_empty {
            (self.bell)();
        }
    }

    /// What is missing stands before the next that is there.
    fn say_unread(&mut self, next: &LiveEvent) {
        let count = std::mem::take(&mut self.unread);
        if count > 0 {
            self.add(LiveEvent {
                what: Happening::Unread { count },
                ..next.clone()
            });
        }
    }

    fn add(&mut self, event: LiveEvent) {
        self.bytes = self.bytes.saturating_add(event.bytes());
        self.waiting.push_back(event);
    }

    /// The next ones, at most so many.
    fn take(&mut self, most: usize) -> Vec<LiveEvent> {
        let count = most.min(self.waiting.len());
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        let bytes = taken.iter().map(LiveEvent::bytes).sum();
        self.bytes = self.bytes.saturating_sub(bytes);
        taken
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Queue");
        shown.field("waiting", &self.waiting.len());
        shown.field("unread", &self.unread);
        shown
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // A queue is whole at any moment.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end at which events are taken.
#[derive(Debug)]
pub struct Tail(Arc<Mutex<Queue>>);

/// The end at which they come. It goes with its session; that is the end of the tail.
#[derive(Debug)]
pub struct Listener {
    queue: Weak<Mutex<Queue>>,
    /// What it waits for, unless it is told everything.
    watch: Option<Watch>,
}

/// Both ends; `bell` rings when there is something where nothing was, and at the end.
#[must_use]
pub fn tail(bell: impl Fn() + Send + 'static) -> (Tail, Listener) {
    let queue = Arc::new(Mutex::new(Queue {
        waiting: VecDeque::new(),
        bytes: 0,
        unread: 0,
        is_over: false,
        bell: Box::new(bell),
    }));
    let listener = Listener {
        queue: Arc::downgrade(&queue),
        watch: None,
    };
    (Tail(queue), listener)
}

impl Tail {
    /// The next events, at most so many.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<LiveEvent> {
        lock(&self.0).take(most)
    }

    /// Whether there are any now.
    #[must_use]
    pub fn has_any(&self) -> bool {
        !lock(&self.0).waiting.is_empty()
    }

    /// Whether all was taken and nothing comes any more. Then also how many events were missed after the last.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let queue = lock(&self.0);
        (queue.is_over && queue.waiting.is_empty()).then_some(queue.unread)
    }
}

impl Listener {
    /// The same, which hears of nothing but such occasions, and of so many.
    #[must_use]
    pub fn of(mut self, occasion: Occasion, times: u64) -> Self {
        self.watch = Some(Watch::new(occasion, times));
        self
    }

    /// What it waits for, unless it is told everything.
    #[must_use]
    pub fn occasion(&self) -> Option<&Occasion> {
        self.watch.as_ref().map(|watch| &watch.occasion)
    }

    /// Whether the other end is there, and anything is to come.
    pub(super) fn is_there(&self) -> bool {
        let is_waiting = self.watch.as_ref().is_none_or(|watch| watch.left > 0);
        is_waiting && self.queue.strong_count() > 0
    }

    /// Whether it is to hear of this.
    pub(super) fn wants(
        &mut self,
        event: &Event,
        functions: &[Function],
        points: &[Arc<EventFormat>],
    ) -> bool {
        let watch = self.watch.as_mut();
        watch.is_none_or(|watch| watch.sees(event, functions, points))
    }

    /// The entry of a call that it is to hear of now, because it takes too long.
    pub(super) fn overdue(&mut self, now_ns: u64) -> Option<Event> {
        self.watch.as_mut()?.overdue(now_ns)
    }

    /// It is told one more.
    pub(super) fn hear(&self, make: impl FnOnce() -> LiveEvent) {
        if let Some(queue) = self.queue.upgrade() {
            lock(&queue).push(make);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            let mut queue = lock(&queue);
            queue.is_over = true;
            (queue.bell)();
        }
    }
}
