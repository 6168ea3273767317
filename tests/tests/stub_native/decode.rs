//! What a stub consists of, instruction by instruction.

use std::collections::BTreeSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};
use tracer::stub::recorder::Clock;

use crate::bodies;
use crate::ground::{Ground, PAGE};
use crate::registers::{SESSIONS, setup};
use crate::setup::{PLACES, Place};

/// None of them faults on memory that is mapped, and none leaves the guest.
const ALLOWED: [Mnemonic; 22] = [
    Mnemonic::Push,
    Mnemonic::Pop,
    Mnemonic::Mov,
    Mnemonic::Lea,
    Mnemonic::Cmp,
    Mnemonic::Jae,
    Mnemonic::Jb,
    Mnemonic::Je,
    Mnemonic::Jne,
    Mnemonic::Jmp,
    Mnemonic::Rdtsc,
    Mnemonic::Shl,
    Mnemonic::Shr,
    Mnemonic::And,
    Mnemonic::Or,
    Mnemonic::Add,
    Mnemonic::Xadd,
    Mnemonic::Inc,
    Mnemonic::Xor,
    Mnemonic::Lahf,
    Mnemonic::Seto,
    Mnemonic::Sahf,
];

/// The general registers that an instruction writes, aside from the stack pointer and r11.
fn written(instruction: &Instruction) -> BTreeSet<Register> {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    info.used_registers()
        .iter()
        .filter(|used| {
            matches!(
                used.access(),
                OpAccess::Write
                    | OpAccess::ReadWrite
                    | OpAccess::CondWrite
                    | OpAccess::ReadCondWrite
            )
        })
        .map(|used| used.register().full_register())
        .filter(|register| *register != Register::RSP)
        // Nobody's at a function's entry.
        .filter(|register| *register != Register::R11)
        .collect()
}

fn decode(at: u64, code: &[u8]) -> Vec<Instruction> {
    let decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    decoder.into_iter().collect()
}

/// Follows every path through a stub. Returns where the paths leave it.
fn follow(code: &[Instruction]) -> BTreeSet<u64> {
    let first = code[0].ip();
    let mut leaves = BTreeSet::new();
    let mut seen: BTreeSet<(u64, Vec<Register>)> = BTreeSet::new();
    let mut paths = vec![(first, Vec::new())];
    while let Some((at, mut pushed)) = paths.pop() {
        let Some(instruction) = code.iter().find(|instruction| instruction.ip() == at) else {
            assert!(pushed.is_empty(), "left at {at:#x} with {pushed:?} pushed");
            leaves.insert(at);
            continue;
        };
        if !seen.insert((at, pushed.clone())) {
            continue;
        }
        match instruction.mnemonic() {
            Mnemonic::Push => pushed.push(instruction.op0_register()),
            Mnemonic::Pop => assert_eq!(pushed.pop(), Some(instruction.op0_register())),
            _ => {
                for register in written(instruction) {
                    assert!(pushed.contains(&register), "{instruction} is not saved");
                }
            }
        }
        match instruction.flow_control() {
            FlowControl::Next => paths.push((instruction.next_ip(), pushed)),
            FlowControl::UnconditionalBranch => {
                paths.push((instruction.near_branch_target(), pushed));
            }
            FlowControl::ConditionalBranch => {
                paths.push((instruction.next_ip(), pushed.clone()));
                paths.push((instruction.near_branch_target(), pushed));
            }
            other => panic!("{instruction}: {other:?}"),
        }
    }
    leaves
}

#[test]
fn every_path_saves_what_it_changes_and_leads_to_the_function() {
    for place in PLACES {
        for clock in [Clock::Tsc, PAGE, Clock::None] {
            for records in SESSIONS {
                let ground = Ground::with(setup(place, records, clock));
                let sessions = records.len() as u64;
                for ((at, bytes), number) in ground.stubs.iter().zip(0..) {
                    let code = decode(*at, bytes);
                    let shape = bodies::shape_without_hooks(number);
                    let after = bodies::prologue(shape).len() as u64 + 5;
                    let leaves = follow(&code);
                    assert_eq!(leaves, BTreeSet::from([ground.function(number) + after]));
                    check_instructions(&code, place, clock, sessions);
                }
            }
        }
    }
}

fn check_instructions(code: &[Instruction], place: Place, clock: Clock, sessions: u64) {
    for instruction in code {
        let mnemonic = instruction.mnemonic();
        assert!(ALLOWED.contains(&mnemonic), "{instruction}");
        let is_shared = place == Place::Shared;
        let is_update = matches!(mnemonic, Mnemonic::Xadd | Mnemonic::Inc);
        assert_eq!(
            instruction.has_lock_prefix(),
            is_shared && is_update,
            "{instruction}"
        );
        if instruction.segment_prefix() != Register::None {
            assert_eq!(instruction.segment_prefix(), Register::GS);
            assert!(!is_shared, "{instruction}");
        }
    }
    let count = |mnemonic| {
        let of = code.iter().filter(|one| one.mnemonic() == mnemonic);
        of.count() as u64
    };
    assert_eq!(count(Mnemonic::Xadd), sessions);
    let times = if clock == Clock::Tsc { sessions } else { 0 };
    assert_eq!(count(Mnemonic::Rdtsc), times);
}
