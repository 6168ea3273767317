//! What the functions of the test ground do when they are called: the records that must come of it.

use trace::event::Step;

use crate::bodies::{
    LEAF, NESTED, OTHER_RETURN, PROLOGUE, PROLOGUE_TAIL, RECURSIVE, TAIL, TAIL_TO_PROLOGUE, VALUES,
};
use crate::rings::Heard;

/// A record: the function, and in a graph session the step and the stack slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub slot: u64,
    pub function: u32,
    pub step: Option<u8>,
}

impl Seen {
    /// What a session of this kind records of `calls`.
    pub fn by(calls: &[(u32, Step, u64)], is_graph: bool) -> Vec<Self> {
        let all = calls.iter();
        all.filter(|(_, step, _)| is_graph || *step != Step::Exit)
            .map(|(function, step, slot)| Self {
                slot: if is_graph { *slot } else { 0 },
                function: *function,
                step: is_graph.then_some(*step as u8),
            })
            .collect()
    }

    /// What was read.
    pub fn heard(heard: &Heard) -> Vec<Self> {
        let all = heard.records.iter();
        all.map(|record| Self {
            slot: record.beside.step().map_or(0, |(_, slot)| slot),
            function: record.function.0,
            step: record.beside.step().map(|(step, _)| step as u8),
        })
        .collect()
    }
}

/// The steps of a call of `number` with its return address at `slot`. `depth` is that of recursion;
/// `has_room` says of a slot whether the mirror has a place for it.
pub fn calls(
    number: u32,
    slot: u64,
    depth: u64,
    has_room: &dyn Fn(u64) -> bool,
) -> Vec<(u32, Step, u64)> {
    let mut all = Vec::new();
    enter(number, slot, depth, has_room, false, &mut all);
    all
}

fn enter(
    number: u32,
    slot: u64,
    depth: u64,
    has_room: &dyn Fn(u64) -> bool,
    is_under_hook: bool,
    all: &mut Vec<(u32, Step, u64)>,
) {
    let can_hook = number != OTHER_RETURN && has_room(slot);
    let step = match (is_under_hook, can_hook) {
        (true, _) => Step::Tail,
        (false, true) => Step::Entry,
        (false, false) => Step::Unhooked,
    };
    all.push((number, step, slot));
    let is_hooked = step != Step::Unhooked;
    match number {
        TAIL => enter(VALUES, slot, depth, has_room, is_hooked, all),
        TAIL_TO_PROLOGUE => enter(PROLOGUE, slot, depth, has_room, is_hooked, all),
        PROLOGUE_TAIL => enter(TAIL, slot, depth, has_room, is_hooked, all),
        RECURSIVE if depth > 1 => {
            enter(RECURSIVE, slot - 8, depth - 1, has_room, false, all);
        }
        NESTED => {
            enter(LEAF, slot - 8, depth, has_room, false, all);
            enter(LEAF, slot - 8, depth, has_room, false, all);
        }
        _ => {}
    }
    if step == Step::Entry {
        all.push((number, Step::Exit, slot));
    }
}
