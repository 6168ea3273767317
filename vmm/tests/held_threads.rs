//! What libraries ask the system for in the middle of a held thread's work. A process of its own: its threads are held for good.
#![cfg(test)]

use std::hint::black_box;
use std::thread;

use vmm::confine::{self, Guest, Role};

/// So large that the allocator takes it from the thread's arena, and gives that back when all of it is free.
const PIECE: usize = 64 << 10;

/// A call that is not on the list would end the process.
#[test]
fn a_held_thread_gives_memory_back_without_reading_a_file() {
    confine::hold_threads(Guest::Own, || {}).unwrap();
    let held = thread::spawn(|| {
        confine::enter(Role::Watchdog);
        for count in [1, 8, 64] {
            let pieces: Vec<Vec<u8>> = (0..count).map(|_| black_box(vec![1; PIECE])).collect();
            drop(pieces);
        }
    });
    held.join().unwrap();
}
