//! So does one that a vCPU executes in the kernel.

use super::*;

const POINTER_OF_RUNS: u64 = 0x1800;

/// The first vCPU is in a leaf that was called from a frame with room for eight words and the caller's frame pointer.
fn execute(linux: &mut Linux) -> [u64; 2] {
    let pointer = stack(RUNS) + POINTER_OF_RUNS;
    let frame = pointer + 8 + 8 * 8;
    let slots = [pointer, frame + 8];
    for (at, word) in [
        (slots[0], TEXT + 0x140),
        (frame, 0x1234),
        (slots[1], TEXT + 0x290),
    ] {
        linux.guest.word(at, word);
    }
    linux.vcpus[0].rip = TEXT;
    linux.vcpus[0].rbp = frame;
    linux.stacks.entry = Gva(IMAGE + 0x800);
    slots
}

/// The words of the stack in use, and those of them that do not lie beside what is returned by.
fn in_use() -> Vec<u64> {
    let words = POINTER_OF_RUNS / 8..0x800;
    words.map(|word| stack(RUNS) + 8 * word).collect()
}

fn on_the_way(linux: &Linux) -> Vec<u64> {
    let tasks = layout(&linux.guest.0);
    let look = Look::new(&linux.stacks, &linux.guest.0, &tasks, &linux.vcpus);
    let places = [linux.physical(stack(RUNS) + 0x3000)];
    let beside = look.beside_returns((&usual(), &as_it_lies), &[], &places);
    let lies = |at: &u64| beside.iter().any(|part| part.holds(linux.physical(*at), 8));
    in_use().into_iter().filter(|at| !lies(at)).collect()
}

#[test]
fn a_task_that_a_vcpu_executes_returns_by_its_return_addresses_only() {
    let mut linux = Linux::new();
    // Of where its vCPU is nothing is known.
    assert!(on_the_way(&linux) == in_use());
    let slots = execute(&mut linux);
    assert_eq!(on_the_way(&linux), slots);
    let quiet = linux.vcpus.clone();
    // In the middle of a function it has pushed what it keeps; there the first of the words is none.
    linux.vcpus[0].rip = TEXT + 0x140;
    assert_eq!(on_the_way(&linux), slots[1..]);
    // It executes what is at an address, and does not return to it from what is before that.
    linux.vcpus[0].rip = TEXT + 0x280;
    assert_eq!(on_the_way(&linux), NONE);
    for rip in [TEXT + 0x500, TEXT + 0x1000_0040] {
        linux.vcpus[0].rip = rip;
        assert!(on_the_way(&linux) == in_use(), "{rip:#x}");
    }
    linux.vcpus.clone_from(&quiet);
    // Another is on the same stack, or says so.
    linux.vcpus[1].rsp = stack(RUNS) + 0x3000;
    assert!(on_the_way(&linux) == in_use());
    linux.vcpus = quiet;
    // It has returned to a stub of ours, or was hooked and not given back.
    linux.guest.word(slots[1], TEXT + 0x1000_0290);
    assert!(on_the_way(&linux) == in_use());
}
