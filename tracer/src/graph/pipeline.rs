//! The whole way from rings to calls.

use super::merge::Merge;
use super::selection::{Rules, Selection};
use super::threads::{BadStackSize, Threads};
use super::{Anomalies, CallEvent, CallSink};
use crate::addr::Gva;
use crate::event::Event;
use crate::image::Image;

/// Events that may wait for a ring that is behind.
pub const WAITING_MAX: usize = 1 << 20;

/// Turns the events of all rings into calls.
#[derive(Debug)]
pub struct Pipeline {
    merge: Merge,
    threads: Threads,
    selection: Selection,
}

/// Where calls go on their way through the selection.
struct Selected<'a, S> {
    selection: &'a mut Selection,
    sink: &'a mut S,
}

impl<S: CallSink> CallSink for Selected<'_, S> {
    fn call(&mut self, event: CallEvent) {
        self.selection.call(event, self.sink);
    }
}

impl Pipeline {
    /// For this many rings and a guest with stacks of this many bytes. `waiting` events may wait for
    /// a ring that is behind: [`WAITING_MAX`] while the guest runs.
    ///
    /// # Errors
    /// [`BadStackSize`].
    pub fn new(rings: usize, stack_bytes: u64, waiting: usize) -> Result<Self, BadStackSize> {
        Ok(Self {
            merge: Merge::new(rings, waiting),
            threads: Threads::new(stack_bytes)?,
            selection: Selection::new(Rules::default()),
        })
    }

    /// Passes on only what the rules select among the calls of this image's functions.
    pub fn select(&mut self, rules: Rules, image: &Image) {
        self.selection = Selection::new(rules);
        self.extend(image);
    }

    /// Functions have come: `image` has those of before, and more.
    pub fn extend(&mut self, image: &Image) {
        let new = image.functions.get(self.selection.functions()..);
        for function in new.unwrap_or_default() {
            self.selection.add(|pattern| pattern.matches(function));
        }
    }

    /// The next event of its ring, as [`Merge::push`] takes it.
    pub fn push(&mut self, event: Event, until_ns: u64) {
        self.merge.push(event, until_ns);
    }

    /// As [`Merge::looked`].
    pub fn looked(&mut self, ring: u16, time_ns: u64) {
        self.merge.looked(ring, time_ns);
    }

    /// Passes on what is certain so far.
    pub fn run(&mut self, sink: &mut impl CallSink) {
        let (selection, merge) = (&mut self.selection, &mut self.merge);
        let mut selected = Selected { selection, sink };
        while let Some(timed) = merge.pop() {
            self.threads.event(&timed, &mut selected);
        }
    }

    /// Passes on everything: no ring brings any more.
    pub fn finish(&mut self, sink: &mut impl CallSink) {
        let (selection, merge) = (&mut self.selection, &mut self.merge);
        let mut selected = Selected { selection, sink };
        while let Some(timed) = merge.pop_rest() {
            self.threads.event(&timed, &mut selected);
        }
        self.selection.finish(sink);
    }

    /// Whether [`Self::take_fresh`] has any.
    #[must_use]
    pub fn has_fresh(&self) -> bool {
        self.threads.has_fresh()
    }

    /// As [`Threads::take_fresh`].
    pub fn take_fresh(&mut self) -> Vec<(u32, Gva)> {
        self.threads.take_fresh()
    }

    /// What did not fit so far.
    #[must_use]
    pub const fn anomalies(&self) -> &Anomalies {
        self.threads.anomalies()
    }
}
