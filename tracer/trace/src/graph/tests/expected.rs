//! What of some steps is to be shown, found call by call with the whole trace at hand: without thinking of how
//! [`Selection`](super::Selection) finds it as it goes.

use std::collections::BTreeMap;

use crate::event::{Event, EventKind};
use crate::graph::rules::Rules;

/// A call of a thread: which steps are its own, and what is to become of it.
struct Call {
    entry: usize,
    exit: Option<usize>,
    is_inside: bool,
    is_muted: bool,
    /// The depth that it is shown at, unless it is too short.
    depth: Option<u32>,
    /// Shown calls around it, and itself if it is one.
    shown: u32,
    /// Records were lost while it was open.
    is_lossy: bool,
}

/// The steps of each thread.
pub(super) fn by_thread(steps: Vec<Event>) -> BTreeMap<u32, Vec<Event>> {
    let mut threads: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
    for step in steps {
        threads.entry(step.thread).or_default().push(step);
    }
    threads
}

/// What is to be shown of each thread.
pub(super) fn selected(steps: &[Event], rules: &Rules) -> BTreeMap<u32, Vec<Event>> {
    let end = steps.iter().map(|step| step.time_ns).max().unwrap_or(0);
    let mut shown = Vec::new();
    for (_, steps) in by_thread(steps.to_vec()) {
        let mut kept: BTreeMap<usize, u32> = BTreeMap::new();
        for call in calls(&steps, rules, &mut kept) {
            let Some(depth) = call.depth else { continue };
            let entered = steps[call.entry].time_ns;
            let left = call.exit.map_or(end, |exit| steps[exit].time_ns);
            let least = rules.threshold.map_or(0, |threshold| threshold.nanoseconds);
            if call.is_lossy || left - entered >= least {
                kept.insert(call.entry, depth);
                kept.extend(call.exit.map(|exit| (exit, depth)));
            }
        }
        shown.extend(kept.into_iter().map(|(at, depth)| Event {
            depth,
            ..steps[at].clone()
        }));
    }
    by_thread(shown)
}

/// Every call of a thread; losses are kept at once.
fn calls(steps: &[Event], rules: &Rules, kept: &mut BTreeMap<usize, u32>) -> Vec<Call> {
    let (mut open, mut done): (Vec<Call>, Vec<Call>) = (Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        match step.kind {
            EventKind::Entry(function) => {
                let name = format!("f{}", function.0);
                let is_one = |globs: &[crate::glob::Pattern]| {
                    globs.iter().any(|glob| glob.matches_name(&name))
                };
                let around = open.last();
                let shown = around.map_or(0, |around| around.shown);
                let is_inside = rules.roots.is_empty()
                    || is_one(&rules.roots)
                    || around.is_some_and(|around| around.is_inside);
                let is_muted =
                    is_one(&rules.notrace) || around.is_some_and(|around| around.is_muted);
                let has_room = rules.max_depth.is_none_or(|most| shown < most.get());
                let depth = (is_inside && !is_muted && has_room).then_some(shown);
                open.push(Call {
                    entry: at,
                    exit: None,
                    is_inside,
                    is_muted,
                    depth,
                    shown: shown + u32::from(depth.is_some()),
                    is_lossy: false,
                });
            }
            EventKind::Exit { .. } => {
                let call = open.pop().expect("an exit has its entry");
                done.push(Call {
                    exit: Some(at),
                    ..call
                });
            }
            EventKind::Lost(_) => {
                let shown = open.last().map_or(0, |call| call.shown);
                let depth = if rules.is_everything() {
                    step.depth
                } else {
                    shown
                };
                kept.insert(at, depth);
                open.iter_mut().for_each(|call| call.is_lossy = true);
            }
            _ => {}
        }
    }
    done.extend(open);
    done
}
