//! Return addresses in a copy of a stack: those that lead to stubs become those that the mirror has of their slots, and nothing else changes.

use std::sync::atomic::Ordering;

use terms::addr::Gva;
use tracer::stub::mirror::Mirror;
use tracer::stub::recorder::Clock;
use tracer::stub::spec::ReturnHook;

use crate::cpu::{Registers, call, return_address};
use crate::ground::Ground;
use crate::random::Random;
use crate::registers::{R11, registers};
use crate::setup::{Place, Records, Setup};

const RAX: usize = 0;
const RCX: usize = 2;
const ROUNDS: usize = 200;
const MARK: u64 = 0x155;
const PAGE: u64 = 4096;

/// What the mirror has of a slot.
fn kept(slot: u64) -> u64 {
    0xffff_ffff_8000_0000 | slot & 0xffff_fff8
}

/// Gives the page of a slot the place `way` of those that it may have, and fills its part of the mirror.
fn claim(ground: &Ground, mirror: Mirror, page: u64, way: u64) {
    let mask = (1 << mirror.pages_log2) - 1;
    let index = (page & mask) ^ way;
    ground
        .word(mirror.directory.0 + 8 * index)
        .store(page, Ordering::SeqCst);
    for word in 0..PAGE / 8 {
        let at = mirror.pages.0 + index * PAGE + 8 * word;
        ground
            .word(at)
            .store(kept(page * PAGE + 8 * word), Ordering::SeqCst);
    }
}

#[test]
fn addresses_of_stubs_become_those_of_their_slots_whatever_place_their_page_has() {
    let mut random = Random::new("addresses_of_stubs_become_those_of_their_slots");
    let ground = Ground::with(Setup {
        place: Place::Shared,
        sessions: vec![Records::Graph],
        profiles: 0,
        ring_bytes: 1 << 16,
        clock: Clock::None,
        variant: ReturnHook::Balanced,
        mirror_log2: 3,
        captures: false,
        has_all_shapes: false,
        halt: None,
        tasks: None,
    });
    let (mirror, at) = (ground.mirror(), Gva(ground.spare()));
    let stubs = (Gva(ground.code_range().start), 0x2_0000);
    let routine = mirror.own_returns_routine(stubs, at).unwrap();
    ground.write(at.0, &routine.bytes);
    let payload = ground.stack_top() - 0x6000;
    let (mut translated, mut unknown) = (0, 0);
    for _ in 0..ROUNDS {
        ground.clear_mirror();
        // Up to two pages, of which one may have no place.
        let words = u64::from(random.below(700));
        let start = 0xffff_c900_0000_0000 + 8 * u64::from(random.below(4096));
        let pages = [start / PAGE, start / PAGE + 1];
        let ways = [u64::from(random.below(4)), u64::from(random.below(4))];
        let mut has_place = [random.below(4) > 0, random.below(4) > 0];
        // The two may want the same one.
        let mask = (1 << mirror.pages_log2) - 1;
        let place = |of: usize| (pages[of] & mask) ^ ways[of];
        has_place[1] &= place(0) != place(1);
        for of in [0, 1] {
            if has_place[of] {
                claim(&ground, mirror, pages[of], ways[of]);
            }
        }
        let stack: Vec<u64> = (0..words)
            .map(|_| match random.below(3) {
                0 => stubs.0.0 + u64::from(random.below(0x2_0000)),
                1 => [stubs.0.0 - 1, stubs.0.0 + stubs.1, 0][random.below(3) as usize],
                _ => random.next(),
            })
            .collect();
        // A word that is not whole at the end, too.
        let halves = stack
            .iter()
            .flat_map(|word| [*word & 0xffff_ffff, word >> 32]);
        let halves: Vec<u64> = halves.chain([7]).collect();
        for (half, number) in halves.iter().zip(0..) {
            ground
                .word(payload + 8 * number)
                .store(half << 32 | MARK, Ordering::SeqCst);
        }
        let slot = ground.stack_top() - 0x7000;
        ground.write(slot, &return_address().to_le_bytes());
        let mut before = registers(&mut random, slot);
        before.general[RAX] = 8 * words + 4;
        before.general[RCX] = start;
        before.general[R11] = payload;
        // SAFETY: the routine returns to the address that was put on its stack, which has room.
        let after = unsafe { call(at.0, &before) };
        let expected = Registers {
            rsp: slot + 8,
            flags: after.flags,
            ..before
        };
        assert_eq!(after, expected);
        for (word, number) in stack.iter().zip(0..) {
            let at = start + 8 * number;
            let of = usize::from(at / PAGE != pages[0]);
            let is_stub = (stubs.0.0..stubs.0.0 + stubs.1).contains(word);
            let is_known = at / PAGE <= pages[1] && has_place[of];
            let expected = if is_stub && is_known { kept(at) } else { *word };
            translated += usize::from(is_stub && is_known);
            unknown += usize::from(is_stub && !is_known);
            let half = |half: u64| {
                ground
                    .word(payload + 8 * (2 * number + half))
                    .load(Ordering::SeqCst)
            };
            assert_eq!((half(0) & 0xffff_ffff, half(1) & 0xffff_ffff), (MARK, MARK));
            assert_eq!(
                half(1) >> 32 << 32 | half(0) >> 32,
                expected,
                "word {number}"
            );
        }
        let last = ground
            .word(payload + 8 * (2 * words))
            .load(Ordering::SeqCst);
        assert_eq!(last, 7 << 32 | MARK);
    }
    assert!(
        translated > 1000 && unknown > 100,
        "{translated}, {unknown}"
    );
}
