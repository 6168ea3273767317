//! Places in the mirror: threads that claim for the same page at the same moment, and the page whose
//! number is that of an empty place.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use insn::asm::registers::gpr64;
use insn::asm::{CodeAssembler, assemble};
use terms::addr::Gva;
use tracer::ring::reader::{Mode, Patience, RingReader};
use tracer::stub::mirror::Mirror;
use tracer::stub::recorder::Clock;
use tracer::stub::spec::ReturnHook;

use crate::bodies::{NESTED, TAIL};
use crate::expected::{Seen, calls};
use crate::ground::{FUNCTIONS, Ground};
use crate::preempt::call_on;
use crate::rings::{Heard, looked};
use crate::setup::{Place, Records, Setup};

const THREADS: u64 = 4;
const ROUNDS: u64 = 2000;
/// Pages of stack in a round: more than the mirror has room for.
const PAGES: u64 = 6;
/// A thread's part of each page.
const PART: u64 = 4096 / THREADS;

/// Where the calls of a thread begin in a page.
fn top(ground: &Ground, thread: u64, page: u64) -> u64 {
    ground.stack_top() - page * 4096 - thread * PART
}

/// Lets the threads go to their end when the test fails.
struct Free<'a>(&'a AtomicU64);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::SeqCst);
    }
}

/// Each page of the stack is used by all threads, which come to it at the same time.
fn race(variant: ReturnHook, mirror_log2: u32) -> usize {
    let ground = Ground::with(Setup {
        place: Place::Shared,
        sessions: vec![Records::Graph],
        profiles: 0,
        ring_bytes: 1 << 19,
        clock: Clock::Tsc,
        variant,
        mirror_log2,
        captures: false,
        has_all_shapes: false,
        halt: None,
        tasks: None,
    });
    let memory = ground.session(0);
    let geometry = ground.recorders[0].geometry;
    let mut reader =
        RingReader::new(0, geometry, Mode::Overwrite, FUNCTIONS).of(ground.recorders[0].format);
    reader.initialise(&memory);
    reader.switch(&memory, true);
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut unhooked = 0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (ground, begun, ended) = (&ground, &begun, &ended);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    wait_for(begun, round);
                    for page in 0..PAGES {
                        let top = top(ground, thread, page);
                        for number in [NESTED, TAIL] {
                            // SAFETY: this part of the stack is the thread's own.
                            unsafe { call_on(top, ground.function(number)) };
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let _free = Free(&begun);
        for round in 1..=ROUNDS {
            ground.clear_mirror();
            begun.store(round, Ordering::SeqCst);
            wait_for(&ended, round * THREADS);
            let mut heard = Heard::default();
            reader.look(&memory);
            reader.drain(&memory, &looked(&reader), Patience::Over, &mut heard);
            unhooked += check_round(&ground, &heard);
        }
    });
    unhooked
}

/// Everything was recorded, and pages with a place in the mirror are those that were hooked.
fn check_round(ground: &Ground, heard: &Heard) -> usize {
    let tags: Vec<u64> = ground
        .directory()
        .map(|word| word.load(Ordering::SeqCst))
        .filter(|tag| *tag != 0 && *tag != Mirror::NOBODY)
        .collect();
    let pages: BTreeSet<u64> = tags.iter().copied().collect();
    assert_eq!(tags.len(), pages.len(), "a page has two places");
    let has_room = |slot: u64| pages.contains(&(slot >> 12));
    let mut expected = Vec::new();
    for thread in 0..THREADS {
        for page in 0..PAGES {
            let slot = top(ground, thread, page) - 8;
            for number in [NESTED, TAIL] {
                expected.extend(Seen::by(&calls(number, slot, 0, &has_room), Records::Graph));
            }
        }
    }
    let mut seen = Seen::heard(heard, ground);
    // The first calls of a page can be without a place only when it stays so.
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    (PAGES as usize).saturating_sub(pages.len())
}

fn wait_for(word: &AtomicU64, value: u64) {
    while word.load(Ordering::SeqCst) < value {
        std::thread::yield_now();
    }
}

#[test]
fn threads_that_race_for_a_page_end_at_the_same_place() {
    for variant in [ReturnHook::Balanced, ReturnHook::Jmp, ReturnHook::Ret] {
        assert_eq!(race(variant, 6), 0, "there is room for all");
        // Four places, one of them nobody's.
        assert_eq!(race(variant, 2), ROUNDS as usize * 3);
    }
}

/// A stack in the first page of the address space has no place, whatever is in the mirror.
#[test]
fn the_first_page_of_memory_shares_no_place() {
    let ground = Ground::with(Setup {
        place: Place::Shared,
        sessions: vec![Records::Graph],
        profiles: 0,
        ring_bytes: 4096,
        clock: Clock::None,
        variant: ReturnHook::Balanced,
        mirror_log2: 6,
        captures: false,
        has_all_shapes: false,
        halt: None,
        tasks: None,
    });
    let mirror = ground.mirror();
    let look_up = |slot: u64| {
        let mut a = CodeAssembler::new(64).unwrap();
        a.set_prefer_short_branch(false);
        let mut none = a.create_label();
        let (at, spare) = (gpr64::rdi, [gpr64::rsi, gpr64::rdx]);
        let claim = mirror.emit_lookup(&mut a, at, spare, Some(none)).unwrap();
        let word = mirror.word(&mut a, at).unwrap();
        a.lea(gpr64::rax, word).unwrap();
        a.ret().unwrap();
        a.set_label(&mut none).unwrap();
        a.mov(gpr64::rax, 0u64).unwrap();
        a.ret().unwrap();
        claim.emit(&mut a).unwrap();
        let code = assemble(&mut a, ground.idle()).unwrap();
        ground.write(ground.idle(), &code.bytes);
        // SAFETY: the code that was just written takes an address, reads nothing at it, and returns.
        let function = unsafe {
            std::mem::transmute::<*const (), extern "C" fn(u64) -> u64>(ground.idle() as *const ())
        };
        Gva(function(slot))
    };
    for slot in [0, 8, 0xff8] {
        assert_eq!(look_up(slot), Gva(0));
    }
    // 64 pages on, the same place is tried first.
    let other = look_up(64 << 12 | 0x128);
    assert_eq!(other.0 & 0xfff, 0x128);
    assert_ne!(other.0 >> 12, mirror.pages.0 >> 12, "nobody's page");
    assert_eq!(look_up(8), Gva(0));
    assert_eq!(look_up(64 << 12 | 0x128), other);
}
