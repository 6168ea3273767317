//! Which calls of a graph are shown: ftrace's options, applied to what was recorded.
//!
//! Depth counts the calls that are shown, so a subtree begins at depth 0. With a threshold an entry
//! waits until its end is known; for a call of unknown duration that is the last thing known of it, and for one that never
//! ends the last thing known of all.

use std::collections::BTreeMap;

use terms::function::FunctionId;

use super::anomaly::Anomalies;
use super::held::Held;
use crate::event::{Event, EventKind, Sink, SureStep};
use crate::glob::Pattern;
use crate::graph::excerpt::Excerpt;

/// What the globs say of one function.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    is_root: bool,
    is_notrace: bool,
    /// Itself is not shown.
    is_hidden: bool,
    /// The way to it is asked for.
    is_goal: bool,
}

/// A call that is open.
#[derive(Debug, Clone)]
struct Open {
    entry: Event,
    /// In a subtree that is asked for.
    is_inside: bool,
    /// In a subtree that is not to be shown.
    is_muted: bool,
    is_shown: bool,
    /// Its entry waits until more is known: how long it took, or what it called.
    is_held: bool,
    /// Bytes of its values, as long as they count among those that wait.
    held: usize,
    /// It need not wait for what it calls.
    is_goal: bool,
    /// Calls around and with it that are shown.
    depth: u32,
}

/// The calls of a thread that are open.
#[derive(Debug, Default)]
struct Calls {
    open: Vec<Open>,
    /// None of the first so many is held: they need not be looked at each time that others are let go.
    free: usize,
}

/// Room for so many open calls a thread keeps.
const KEPT: usize = 1 << 10;
/// Of room for more than those it keeps at most so many times what is open.
const SPARSE: usize = 8;

impl Calls {
    /// Gives room back where little is open any more: a guest can have had thousands open in each of many threads. Returns what
    /// still counts of the call that is over.
    fn pop(&mut self) -> usize {
        let held = self.open.pop().map_or(0, |call| call.held);
        self.free = self.free.min(self.open.len());
        if self.open.capacity() > KEPT && self.open.len() < self.open.capacity() / SPARSE {
            self.open.shrink_to_fit();
        }
        held
    }
}

/// Applies [`Rules`](super::rules::Rules) to calls, or cuts out an [`Excerpt`].
#[derive(Debug)]
pub struct Selection {
    excerpt: Excerpt,
    is_everything: bool,
    marks: Vec<Marks>,
    /// By their numbers, which a directory that somebody else wrote may choose.
    threads: BTreeMap<u32, Calls>,
    held: Held,
    last_ns: u64,
}

impl Selection {
    /// Of a trace of which no function is known yet.
    #[must_use]
    pub fn new(excerpt: impl Into<Excerpt>) -> Self {
        let excerpt = excerpt.into();
        Self {
            is_everything: excerpt.is_everything(),
            excerpt,
            marks: Vec::new(),
            threads: BTreeMap::new(),
            held: Held::default(),
            last_ns: 0,
        }
    }

    /// Values that wait take no more than so many bytes.
    #[cfg(test)]
    pub(crate) fn hold_within(&mut self, bytes: usize) {
        self.held = Held::within(bytes);
    }

    /// Entries whose values could not wait with them: together these took too much.
    #[must_use]
    pub const fn anomalies(&self) -> &Anomalies {
        self.held.anomalies()
    }

    /// The same for who tells people, once.
    pub fn take_remark(&mut self) -> Option<String> {
        self.held.take_remark()
    }

    /// Whether every call is shown, as it is.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.is_everything
    }

    /// How many functions it knows.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.marks.len()
    }

    /// The next function, in the order of [`FunctionId`], has this name, and so many bytes, if that is known.
    pub fn add_function(&mut self, name: &str, bytes: Option<u64>) {
        self.add(|pattern| pattern.matches_name(name));
        let is_small = bytes
            .zip(self.excerpt.min_bytes)
            .is_some_and(|(bytes, least)| bytes < least);
        if let Some(marks) = self.marks.last_mut() {
            marks.is_hidden |= is_small;
        }
    }

    /// The next function, in the order of [`FunctionId`], is matched by the patterns of which `matches` says so.
    pub fn add(&mut self, matches: impl Fn(&Pattern) -> bool) {
        let Excerpt {
            rules,
            callers_of,
            hidden,
            ..
        } = &self.excerpt;
        self.marks.push(Marks {
            is_root: rules.roots.iter().any(&matches),
            is_notrace: rules.notrace.iter().any(&matches),
            is_hidden: hidden.iter().any(&matches),
            is_goal: callers_of.iter().any(&matches),
        });
    }

    /// Whether subtrees are asked for, and no function is the root of one.
    #[must_use]
    pub fn root_is_missing(&self) -> bool {
        let mut marks = self.marks.iter();
        !self.excerpt.rules.roots.is_empty() && !marks.any(|marks| marks.is_root)
    }

    /// Whether ways are asked for, and no function is where one leads to.
    #[must_use]
    pub fn goal_is_missing(&self) -> bool {
        let mut marks = self.marks.iter();
        !self.excerpt.callers_of.is_empty() && !marks.any(|marks| marks.is_goal)
    }

    /// The next step of a thread; passes on what is to be shown.
    pub fn call(&mut self, event: Event, sink: &mut impl Sink) {
        if self.is_everything {
            sink.event(event);
            return;
        }
        self.last_ns = self.last_ns.max(event.time_ns);
        match event.kind {
            EventKind::Entry(function) => self.enter(event, function, sink),
            EventKind::Exit { .. } => self.leave(event, sink),
            EventKind::Lost(_) => self.lost(event, sink),
            // They are no part of a call.
            EventKind::Point(_)
            | EventKind::LostPoints(_)
            | EventKind::Stall(_)
            | EventKind::Wait(_)
            | EventKind::Host(_) => {
                sink.event(event);
            }
        }
    }

    /// The next steps of a thread, on one vCPU.
    pub fn calls(&mut self, vcpu: u16, thread: u32, steps: &[SureStep], sink: &mut impl Sink) {
        if self.is_everything {
            return sink.steps(vcpu, thread, steps);
        }
        for step in steps {
            self.call(step.event(vcpu, thread), sink);
        }
    }

    fn enter(&mut self, event: Event, function: FunctionId, sink: &mut impl Sink) {
        let marks = self
            .marks
            .get(function.index())
            .copied()
            .unwrap_or_default();
        let rules = &self.excerpt.rules;
        let open = &mut self.threads.entry(event.thread).or_default().open;
        let around = open.last();
        let depth = around.map_or(0, |around| around.depth);
        let is_inside = rules.roots.is_empty()
            || marks.is_root
            || around.is_some_and(|around| around.is_inside);
        let is_muted = marks.is_notrace || around.is_some_and(|around| around.is_muted);
        let fits = rules.max_depth.is_none_or(|most| depth < most.get());
        let is_here = self.excerpt.has_vcpu(event.vcpu) && !self.excerpt.is_late(event.time_ns);
        let is_shown = is_inside && !is_muted && !marks.is_hidden && fits && is_here;
        let is_early = self.excerpt.is_early(event.time_ns);
        // A function that has no name is no goal, but none is missing where no way is asked for.
        let is_goal = marks.is_goal || self.excerpt.callers_of.is_empty();
        let waits = rules.threshold.is_some() || is_early || !is_goal;
        let (thread, mut entry) = (event.thread, Event { depth, ..event });
        let held = match is_shown && waits {
            true => self.held.hold(&mut entry),
            false => 0,
        };
        if !is_shown {
            entry.values = None;
        }
        open.push(Open {
            entry,
            is_inside,
            is_muted,
            is_shown,
            is_held: is_shown,
            held,
            is_goal,
            depth: depth + u32::from(is_shown),
        });
        if is_shown && !waits {
            self.release(thread, sink);
        }
    }

    fn leave(&mut self, event: Event, sink: &mut impl Sink) {
        let thread = event.thread;
        let ending = self
            .threads
            .get(&thread)
            .and_then(|calls| calls.open.last());
        let Some(ending) = ending.cloned() else {
            return;
        };
        let is_wanted = self.is_wanted(&ending, event.time_ns);
        if ending.is_shown && is_wanted {
            self.release(thread, sink);
        }
        if ending.is_shown && (is_wanted || !ending.is_held) {
            let depth = ending.entry.depth;
            sink.event(Event { depth, ..event });
        }
        if let Some(calls) = self.threads.get_mut(&thread) {
            self.held.let_go(calls.pop());
        }
    }

    /// Whether a call that waited is shown after all, when it has lasted until this time.
    fn is_wanted(&self, call: &Open, until_ns: u64) -> bool {
        self.is_long(call, until_ns) && call.is_goal && !self.excerpt.is_early(until_ns)
    }

    /// Whether a call that has lasted until this time has lasted for long enough.
    fn is_long(&self, call: &Open, until_ns: u64) -> bool {
        let threshold = self.excerpt.rules.threshold;
        let elapsed = until_ns.saturating_sub(call.entry.time_ns);
        threshold.is_none_or(|threshold| elapsed >= threshold.nanoseconds)
    }

    /// How long the calls are that are open is not known any more.
    fn lost(&mut self, event: Event, sink: &mut impl Sink) {
        if !self.excerpt.has(event.vcpu, event.time_ns) {
            return;
        }
        let depth = match self.excerpt.callers_of.is_empty() {
            true => self.release(event.thread, sink),
            // What they called is what they wait for.
            false => 0,
        };
        sink.event(Event { depth, ..event });
    }

    /// Passes on the entries of a thread that wait; returns its depth.
    fn release(&mut self, thread: u32, sink: &mut impl Sink) -> u32 {
        let Some(Calls { open, free }) = self.threads.get_mut(&thread) else {
            return 0;
        };
        let unseen = open.get_mut(*free..).unwrap_or_default();
        for call in unseen.iter_mut().filter(|call| call.is_held) {
            call.is_held = false;
            self.held.let_go(std::mem::take(&mut call.held));
            // They are of no use to what stays.
            let values = call.entry.values.take();
            sink.event(Event {
                values,
                ..call.entry
            });
        }
        *free = open.len();
        open.last().map_or(0, |call| call.depth)
    }

    /// The trace goes on at least until then, whatever its calls: what is open at the end has lasted as long.
    pub fn lasts_until(&mut self, time_ns: u64) {
        self.last_ns = self.last_ns.max(time_ns);
    }

    /// Whether calls of a thread are shown or not by when the trace ends, if the thread has no more steps.
    #[must_use]
    pub fn asks_for_end(&self, thread: u32) -> bool {
        let calls = self.threads.get(&thread);
        let mut open = calls.into_iter().flat_map(|calls| &calls.open);
        open.any(|call| call.is_held && call.is_goal && !self.is_long(call, self.last_ns))
    }

    /// A thread has no more steps: calls that are open for long enough are shown.
    pub fn finish_thread(&mut self, thread: u32, sink: &mut impl Sink) {
        let last_ns = self.last_ns;
        let Some(calls) = self.threads.get_mut(&thread) else {
            return;
        };
        for call in std::mem::take(calls).open {
            self.held.let_go(call.held);
            // It has not ended before any time, however far other threads have been read.
            if call.is_held && call.is_goal && self.is_long(&call, last_ns) {
                sink.event(call.entry);
            }
        }
    }

    /// No thread has any more steps.
    pub fn finish(&mut self, sink: &mut impl Sink) {
        let threads: Vec<u32> = self.threads.keys().copied().collect();
        for thread in threads {
            self.finish_thread(thread, sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terms::field::FieldValue;

    use super::*;
    use crate::event::Values;
    use crate::graph::rules::{Rules, Threshold};
    use crate::testing::{entry, event, exit};

    fn of_long_calls() -> Selection {
        let threshold = Some(Threshold { nanoseconds: 100 });
        Selection::new(Rules {
            threshold,
            ..Rules::default()
        })
    }

    #[test]
    fn values_of_an_entry_count_as_long_as_it_waits() {
        let mut selection = of_long_calls();
        let mut shown: Vec<Event> = Vec::new();
        let mut enter = |selection: &mut Selection, time_ns| {
            let values: Values = [FieldValue::Fault].into();
            let entry = Event {
                values: Some(Arc::clone(&values)),
                ..event(time_ns, 0, 0, 0, entry(0))
            };
            selection.call(entry, &mut shown);
            assert!(selection.held.bytes() > 0);
            values
        };
        type End = fn(&mut Selection, &mut Vec<Event>);
        let ends: [(usize, End); 4] = [
            (1, |all, to| all.call(event(200, 0, 0, 0, exit(0)), to)),
            (0, |all, to| all.call(event(50, 0, 0, 0, exit(0)), to)),
            (1, |all, to| {
                all.call(event(60, 0, 0, 0, EventKind::Lost(1)), to);
            }),
            (1, |all, to| all.finish(to)),
        ];
        for (has_them, end) in ends {
            let values = enter(&mut selection, 0);
            let mut seen = Vec::new();
            end(&mut selection, &mut seen);
            let with = seen.iter().filter(|event| event.values.is_some());
            assert_eq!(with.count(), has_them);
            assert_eq!(selection.held.bytes(), 0);
            // Nobody else has them any more, though the call may be open still.
            assert_eq!(Arc::strong_count(&values), 1 + has_them);
        }
    }

    #[test]
    fn calls_whose_values_have_no_room_are_shown_without() {
        let mut selection = of_long_calls();
        selection.hold_within(0);
        let mut shown: Vec<Event> = Vec::new();
        let values = Some([FieldValue::Fault].into());
        let entry = event(0, 0, 0, 0, entry(0));
        let entry = Event { values, ..entry };
        selection.call(entry, &mut shown);
        selection.call(event(200, 0, 0, 0, exit(0)), &mut shown);
        assert!(shown.iter().all(|event| event.values.is_none()));
        assert_eq!(shown.len(), 2);
        assert!(selection.take_remark().is_some());
    }

    /// Each of a guest's thousands of threads kept it.
    #[test]
    fn a_thread_that_was_deep_once_gives_its_room_back() {
        let call = Open {
            entry: event(0, 0, 0, 0, entry(0)),
            is_inside: true,
            is_muted: false,
            is_shown: true,
            is_held: false,
            held: 0,
            is_goal: true,
            depth: 0,
        };
        let mut calls = Calls::default();
        calls.open.resize(16 * KEPT, call);
        while calls.open.len() > 2 {
            calls.pop();
        }
        assert!(calls.open.capacity() <= KEPT, "{}", calls.open.capacity());
    }
}
