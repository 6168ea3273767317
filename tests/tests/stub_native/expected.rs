//! What the functions of the test ground do when they are called: the records that must come of it.

use trace::event::Step;

use crate::bodies::{
    LEAF, NESTED, OTHER_RETURN, PROLOGUE, PROLOGUE_TAIL, RECURSIVE, TAIL, TAIL_TO_PROLOGUE, VALUES,
};
use crate::ground::Ground;
use crate::rings::Heard;
use crate::setup::{MadeAt, Records};
use tracer::record::Beside;

/// A record: the function, and what its session records beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub slot: u64,
    pub function: u32,
    pub step: Option<u8>,
    /// Where the call was made, where that is recorded.
    pub made_at: Option<MadeAt>,
}

impl Seen {
    /// What a session of this kind records of `calls`, the first of which is made outside.
    pub fn by(calls: &[(u32, Step, u64)], records: Records) -> Vec<Self> {
        let is_graph = records == Records::Graph;
        let outermost = calls.first().map(|(_, _, slot)| *slot);
        let mut within = 0;
        let mut all = Vec::new();
        for (function, step, slot) in calls {
            let made_at = match step {
                _ if *function == OTHER_RETURN => MadeAt::Unknown,
                Step::Tail => MadeAt::Stub,
                _ if Some(*slot) == outermost => MadeAt::Outside,
                _ => MadeAt::In(within),
            };
            if [RECURSIVE, NESTED].contains(function) {
                within = *function;
            }
            if is_graph || *step != Step::Exit {
                all.push(Self {
                    slot: if is_graph { *slot } else { 0 },
                    function: *function,
                    step: is_graph.then_some(*step as u8),
                    made_at: (records == Records::Callers).then_some(made_at),
                });
            }
        }
        all
    }

    /// What was read of the rings of a ground.
    pub fn heard(heard: &Heard, ground: &Ground) -> Vec<Self> {
        let all = heard.records.iter();
        all.map(|record| Self {
            slot: record.beside.step().map_or(0, |(_, slot)| slot),
            function: record.function.0,
            step: record.beside.step().map(|(step, _)| step as u8),
            made_at: match record.beside {
                Beside::Caller(address) => Some(ground.made_at(address)),
                Beside::Nothing | Beside::Step(..) => None,
            },
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
