//! Which calls of a graph are shown: ftrace's options, applied to what was recorded.
//!
//! Depth counts the calls that are shown, so a subtree begins at depth 0. With a threshold an entry
//! waits until its end is known; for a call of unknown duration that is the last thing known of it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use terms::function::FunctionId;

use crate::event::{Event, EventKind, Sink};
use crate::glob::{GlobError, Pattern};
use terms::quantity::{self, BadQuantity};

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Calls deeper than this many are left out.
    pub max_depth: Option<NonZeroU32>,
    /// Only these functions and what they call; with none, everything.
    pub roots: Vec<Pattern>,
    /// Not these functions, nor what they call.
    pub notrace: Vec<Pattern>,
    /// Calls that take less are left out.
    pub threshold: Option<Threshold>,
}

impl Rules {
    /// Rules with these globs.
    ///
    /// # Errors
    /// [`GlobError::Bad`].
    pub fn new(
        max_depth: Option<NonZeroU32>,
        roots: &[String],
        notrace: &[String],
        threshold: Option<Threshold>,
    ) -> Result<Self, GlobError> {
        let patterns = |globs: &[String]| {
            let patterns = globs.iter().map(|glob| Pattern::new(glob));
            patterns.collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            max_depth,
            roots: patterns(roots)?,
            notrace: patterns(notrace)?,
            threshold,
        })
    }

    /// Whether everything is shown.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// A duration, as `10us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Threshold {
    /// In nanoseconds.
    pub nanoseconds: u64,
}

impl From<Threshold> for String {
    fn from(threshold: Threshold) -> Self {
        format!("{}ns", threshold.nanoseconds)
    }
}

impl TryFrom<String> for Threshold {
    type Error = BadQuantity;

    fn try_from(text: String) -> Result<Self, BadQuantity> {
        text.parse()
    }
}

impl FromStr for Threshold {
    type Err = BadQuantity;

    /// A number alone is in microseconds, as in ftrace's `tracing_thresh`.
    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let nanoseconds = quantity::nanoseconds(text, "us")?;
        Ok(Self { nanoseconds })
    }
}

/// What the globs say of one function.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    is_root: bool,
    is_notrace: bool,
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
    /// Its entry waits until its duration is known.
    is_held: bool,
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

impl Calls {
    fn pop(&mut self) {
        self.open.pop();
        self.free = self.free.min(self.open.len());
    }
}

/// Applies [`Rules`] to calls.
#[derive(Debug)]
pub struct Selection {
    rules: Rules,
    marks: Vec<Marks>,
    /// By their numbers, which a directory that somebody else wrote may choose.
    threads: BTreeMap<u32, Calls>,
    last_ns: u64,
}

impl Selection {
    /// Of a trace of which no function is known yet.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self {
            rules,
            marks: Vec::new(),
            threads: BTreeMap::new(),
            last_ns: 0,
        }
    }

    /// How many functions it knows.
    #[must_use]
    pub fn functions(&self) -> usize {
        self.marks.len()
    }

    /// The next function, in the order of [`FunctionId`], has these names.
    pub fn add_function(&mut self, names: &[&str]) {
        self.add(|pattern| names.iter().any(|name| pattern.matches_name(name)));
    }

    /// The next function, in the order of [`FunctionId`], is matched by the patterns of which `matches` says so.
    pub fn add(&mut self, matches: impl Fn(&Pattern) -> bool) {
        self.marks.push(Marks {
            is_root: self.rules.roots.iter().any(&matches),
            is_notrace: self.rules.notrace.iter().any(&matches),
        });
    }

    /// Whether subtrees are asked for, and no function is the root of one.
    #[must_use]
    pub fn root_is_missing(&self) -> bool {
        !self.rules.roots.is_empty() && !self.marks.iter().any(|marks| marks.is_root)
    }

    /// The next step of a thread; passes on what is to be shown.
    pub fn call(&mut self, event: Event, sink: &mut impl Sink) {
        if self.rules.is_everything() {
            sink.event(event);
            return;
        }
        self.last_ns = self.last_ns.max(event.time_ns);
        match event.kind {
            EventKind::Entry(function) => self.enter(event, function, sink),
            EventKind::Exit { .. } => self.leave(event, sink),
            EventKind::Lost(_) => {
                let depth = self.release(event.thread, sink);
                sink.event(Event { depth, ..event });
            }
            // They are no part of a call.
            EventKind::Point(_) | EventKind::LostPoints(_) | EventKind::Stall(_) => {
                sink.event(event);
            }
        }
    }

    fn enter(&mut self, event: Event, function: FunctionId, sink: &mut impl Sink) {
        let marks = self
            .marks
            .get(function.index())
            .copied()
            .unwrap_or_default();
        let open = &mut self.threads.entry(event.thread).or_default().open;
        let around = open.last();
        let depth = around.map_or(0, |around| around.depth);
        let is_inside = self.rules.roots.is_empty()
            || marks.is_root
            || around.is_some_and(|around| around.is_inside);
        let is_muted = marks.is_notrace || around.is_some_and(|around| around.is_muted);
        let fits = self.rules.max_depth.is_none_or(|most| depth < most.get());
        let is_shown = is_inside && !is_muted && fits;
        let is_held = is_shown && self.rules.threshold.is_some();
        let entry = Event { depth, ..event };
        if is_shown && !is_held {
            sink.event(entry.clone());
        }
        open.push(Open {
            entry,
            is_inside,
            is_muted,
            is_shown,
            is_held,
            depth: depth + u32::from(is_shown),
        });
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
        let threshold = self
            .rules
            .threshold
            .map_or(0, |threshold| threshold.nanoseconds);
        let elapsed = event.time_ns.saturating_sub(ending.entry.time_ns);
        let is_long = elapsed >= threshold;
        if ending.is_shown && is_long {
            self.release(thread, sink);
        }
        if ending.is_shown && (is_long || !ending.is_held) {
            let depth = ending.entry.depth;
            sink.event(Event { depth, ..event });
        }
        if let Some(calls) = self.threads.get_mut(&thread) {
            calls.pop();
        }
    }

    /// Passes on the entries of a thread that wait; returns its depth.
    fn release(&mut self, thread: u32, sink: &mut impl Sink) -> u32 {
        let Some(Calls { open, free }) = self.threads.get_mut(&thread) else {
            return 0;
        };
        let unseen = open.get_mut(*free..).unwrap_or_default();
        for call in unseen.iter_mut().filter(|call| call.is_held) {
            call.is_held = false;
            sink.event(call.entry.clone());
        }
        *free = open.len();
        open.last().map_or(0, |call| call.depth)
    }

    /// A thread has no more steps: calls that are open for long enough are shown.
    pub fn finish_thread(&mut self, thread: u32, sink: &mut impl Sink) {
        let threshold = self
            .rules
            .threshold
            .map_or(0, |threshold| threshold.nanoseconds);
        let last_ns = self.last_ns;
        let Some(calls) = self.threads.get_mut(&thread) else {
            return;
        };
        for call in std::mem::take(calls).open {
            let elapsed = last_ns.saturating_sub(call.entry.time_ns);
            if call.is_held && elapsed >= threshold {
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
