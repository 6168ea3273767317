//! A task that waits returns by what its functions have kept, and by nothing that lies beside that.

use super::*;

/// What [`SLEEPS`] leaves at its pointer, which leads to what follows a call that is its function's first instruction; then that
/// function's return address, a frame with room for eight words and the caller's frame pointer, its return
/// address, and what lies above.
fn sleep(linux: &mut Linux) -> [u64; 3] {
    let pointer = stack(SLEEPS) + 0x1230;
    let frame = pointer + 64 + 8 * 8;
    let slots = [pointer + 48, pointer + 56, frame + 8];
    for (at, word) in [
        (pointer + 40, frame),
        (slots[0], TEXT + 0x101),
        (slots[1], TEXT + 0x140),
        (frame, 0x1234),
        (slots[2], TEXT + 0x290),
    ] {
        linux.guest.word(at, word);
    }
    slots
}

/// The words that a sleeping task's stack has in use.
fn in_use() -> Vec<u64> {
    (0x1230 / 8..0x800)
        .map(|word| stack(SLEEPS) + 8 * word)
        .collect()
}

/// Those of them that do not lie beside what it returns by.
fn on_the_way(linux: &Linux, modules: &[Module]) -> Vec<u64> {
    on_the_way_with(linux, modules, &as_it_lies)
}

fn on_the_way_with(linux: &Linux, modules: &[Module], own: &OwnReturn<'_>) -> Vec<u64> {
    let tasks = layout(&linux.guest.0);
    let look = Look::new(&linux.stacks, &linux.guest.0, &tasks, &linux.vcpus);
    let places = [linux.physical(stack(SLEEPS) + 0x3000)];
    let beside = look.beside_returns((&usual(), own), modules, &places);
    let lies = |at: &u64| beside.iter().any(|part| part.holds(linux.physical(*at), 8));
    let all = in_use().into_iter();
    all.filter(|at| !lies(at)).collect()
}

#[test]
fn a_task_that_waits_returns_by_its_return_addresses_only() {
    let mut linux = Linux::new();
    let all = in_use();
    // Its stack makes no sense yet.
    assert_eq!(on_the_way(&linux, &[]), all);
    let slots = sleep(&mut linux);
    assert_eq!(on_the_way(&linux, &[]), slots);
    // Those of tasks that execute are none of it.
    let tasks = layout(&linux.guest.0);
    let look = Look::new(&linux.stacks, &linux.guest.0, &tasks, &linux.vcpus);
    let places = [SLEEPS, RUNS, IDLES].map(|number| linux.physical(stack(number) + 0x3ff8));
    let beside = look.beside_returns((&usual(), &as_it_lies), &[], &places);
    for number in [RUNS, IDLES] {
        let top = linux.physical(stack(number) + 0x3ff8);
        assert!(!beside.iter().any(|part| part.holds(top, 8)), "{number}");
    }
    // It executes after all, or does so again.
    linux.guest.word(task(SLEEPS) + ON_CPU, 1);
    assert_eq!(on_the_way(&linux, &[]), all);
    linux.guest.word(task(SLEEPS) + ON_CPU, 0);
    let vcpus = linux.vcpus.clone();
    linux.vcpus[0].rsp = stack(SLEEPS) + 0x1230;
    assert_eq!(on_the_way(&linux, &[]), all);
    linux.vcpus = vcpus;
    // Its return addresses are kept elsewhere.
    linux.guest.word(task(SLEEPS) + KEPT, HEAP);
    assert_eq!(on_the_way(&linux, &[]), all);
    linux.guest.word(task(SLEEPS) + KEPT, 0);
    // Somebody's text is on the way: ours, for one. Each of the words matters, also where the kernel's own tables would lead on.
    let inside = [TEXT + 0x1000_0040, TEXT + 0x1000_0140, TEXT + 0x1000_0290];
    for (slot, to) in slots.into_iter().zip(inside) {
        let before = [TEXT + 0x101, TEXT + 0x140, TEXT + 0x290];
        linux.guest.word(slot, to);
        assert_eq!(on_the_way(&linux, &[]), all, "{to:#x}");
        let own = before[slots.iter().position(|one| *one == slot).unwrap()];
        linux.guest.word(slot, own);
    }
    assert_eq!(on_the_way(&linux, &[]), slots);
    // A text that is the kernel's, until it is taken to be smaller; or a module's.
    linux.stacks.image.end = Gva(TEXT + 0x200);
    assert_eq!(on_the_way(&linux, &[]), all);
    let module = Module {
        at: Gva(0),
        name: "module".into(),
        text: TextRange {
            start: Gva(TEXT + 0x200),
            end: Gva(TEXT + 0x300),
        },
    };
    assert_eq!(on_the_way(&linux, &[module]), slots);
    linux.stacks.image.end = Gva(IMAGE + 0x10_0000);
    // Nobody has asked about it.
    let tasks = layout(&linux.guest.0);
    let look = Look::new(&linux.stacks, &linux.guest.0, &tasks, &linux.vcpus);
    let elsewhere = [linux.physical(stack(SLEEPS)), linux.physical(FIRST)];
    assert_eq!(
        look.beside_returns((&usual(), &as_it_lies), &[], &elsewhere),
        []
    );
    // It ends where nothing is known.
    linux.guest.word(slots[2], TEXT + 0x500);
    assert_eq!(on_the_way(&linux, &[]), all);
}

/// A hooked call returns to a stub, and to its own caller after that. Who was interrupted in a stub goes on in it.
#[test]
fn a_task_that_waits_in_hooked_calls_returns_by_them_only() {
    const STUB: u64 = TEXT + 0x1000_0040;
    let mut linux = Linux::new();
    let slots = sleep(&mut linux);
    linux.guest.word(slots[1], STUB);
    assert_eq!(on_the_way(&linux, &[]), in_use());
    let own = |slot: Gva, there: Gva| match (slot.0 == slots[1], there.0) {
        (true, STUB) => Gva(TEXT + 0x140),
        _ => there,
    };
    assert_eq!(on_the_way_with(&linux, &[], &own), slots);
    // Of that caller's caller nothing is known.
    let nowhere = |slot: Gva, there: Gva| match slot.0 == slots[1] {
        true => Gva(TEXT + 0x500),
        false => there,
    };
    assert_eq!(on_the_way_with(&linux, &[], &nowhere), in_use());
    // The frame of an interrupt in the stub. A call that returned by its first word once says nothing.
    let frame = slots[1] + 8;
    let kept = [STUB, 0x10, 0x246, frame + 40, 0x18];
    linux.guest.word(slots[0], TEXT + 0x301);
    for (at, word) in (frame..).step_by(8).zip(kept) {
        linux.guest.word(at, word);
    }
    let own = |slot: Gva, there: Gva| match slot.0 == frame {
        true => Gva(TEXT + 0x280),
        false => there,
    };
    assert_eq!(on_the_way_with(&linux, &[], &own), in_use());
    // Had it been interrupted elsewhere, it would be known.
    linux.guest.word(frame, TEXT + 0x280);
    assert_eq!(on_the_way_with(&linux, &[], &as_it_lies), [slots[0], frame]);
}
