mod asleep;
mod awake;

use terms::addr::{Gpa, Gva};
use terms::region::Region;

use super::*;
use crate::linux::orc::tests::{TEXT, usual};
use crate::linux::task::testing::{AREA, BYTES, Guest, layout};
use crate::mock::Rights;
use crate::module::Module;
use crate::stack::{OwnReturn, as_it_lies};

const IMAGE: u64 = 0xffff_ffff_8100_0000;
/// The kernel's variables, after its text.
const DATA: u64 = IMAGE + 0x1000;
/// The first task's stack, in the image.
const FIRST: u64 = IMAGE + 0x4000;
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
const VMALLOC: u64 = 0xffff_c900_0000_0000;
/// In the direct map: data of two processors, and anything.
const PER_CPU: u64 = DIRECT_MAP + 0x1000_0000;
const HEAP: u64 = DIRECT_MAP + 0x2000_0000;
/// Of that data: the idle task, the stack of interrupts, and stacks to be used again.
const IDLE: u64 = 0x10;
const INTERRUPTS: u64 = 0x20;
const CACHED: u64 = 0x30;
/// The stacks of those, and what no task has.
const INTERRUPT_STACK: u64 = VMALLOC + 0x40_0000;
const CACHED_STACK: u64 = VMALLOC + 0x41_0000;
const NOBODYS: u64 = VMALLOC + 0x42_0000;
/// The descriptors of pages, and what comes after them.
const DESCRIPTORS: u64 = 0xffff_ea00_0000_0000;
const ENTRIES: u64 = 0xffff_fe00_0000_0000;
/// What is freed of the image, and what of it nobody can write.
const INIT: u64 = IMAGE + 0x2000;
/// Data that nobody can write, beside the image.
const CONSTANT: u64 = VMALLOC + 0x43_0000;

/// In `task_struct`, as [`layout`] leaves them free.
const POINTER: u64 = 0x48;
const ON_CPU: u64 = 0x50;
const KEPT: u64 = 0x58;

const NONE: [u64; 0] = [];

/// A Linux with three tasks in its list, one of which runs, and an idle task beside them.
struct Linux {
    guest: Guest,
    vcpus: Vec<VcpuRegisters>,
    stacks: Stacks,
    mapped: u64,
}

/// The tasks: [`SLEEPS`] executes nowhere; [`RUNS`] has the first processor, the idle task [`IDLES`] the second.
const SLEEPS: u64 = 1;
const RUNS: u64 = 2;
const IDLES: u64 = 5;

const fn task(number: u64) -> u64 {
    AREA + number * BYTES
}

const fn stack(number: u64) -> u64 {
    VMALLOC + number * 0x4000
}

impl Linux {
    fn new() -> Self {
        let mut guest = Guest::new(&[&["swapper/0"], &["sleeps"], &["runs"]]);
        guest.word(task(0) + 0x40, FIRST);
        let running = crate::target::StoppedTarget::vcpus(&guest.0)[0];
        let mut linux = Self {
            vcpus: vec![
                VcpuRegisters {
                    rsp: stack(RUNS) + 0x1800,
                    ..running
                },
                VcpuRegisters {
                    rsp: stack(IDLES) + 0x2800,
                    ..running
                },
            ],
            stacks: Stacks {
                pointer: POINTER,
                on_cpu: ON_CPU,
                kept: vec![KEPT],
                entry: Gva(IMAGE + 0x10),
                image: TextRange {
                    start: Gva(IMAGE),
                    end: Gva(IMAGE + 0x10_0000),
                },
                direct_map: Some((Gva(DATA), Gva(DATA + 8))),
                descriptors: Some(Gva(DATA + 0x18)),
                processors: Some(Processors {
                    per_cpu: PerCpu {
                        offsets: Gva(DATA + 0x100),
                        count: Gva(DATA + 0x10),
                    },
                    started: Some(Gva(DATA + 0x60)),
                    idle: Gva(IDLE),
                    interrupts: Some(Gva(INTERRUPTS)),
                    cached: Some((Gva(CACHED), 8)),
                }),
            },
            guest,
            mapped: 0,
        };
        for at in [
            IMAGE,
            DATA,
            INIT,
            PER_CPU,
            HEAP,
            NOBODYS,
            CONSTANT,
            DESCRIPTORS,
            ENTRIES,
        ] {
            linux.map(at, 1);
        }
        for at in [FIRST, INTERRUPT_STACK, CACHED_STACK] {
            linux.map(at, 4);
        }
        for number in [SLEEPS, RUNS, IDLES] {
            linux.map(stack(number), 4);
        }
        linux.fill();
        linux
    }

    /// Maps pages, each somewhere else than the one before.
    fn map(&mut self, at: u64, pages: u64) {
        for page in 0..pages {
            let rights = Rights {
                user: false,
                write: at != CONSTANT,
                execute: true,
            };
            let to = Gpa(0x900_0000 + (self.mapped ^ 1) * 4096);
            let at = Gva(at + page * 4096);
            self.guest.0.map(at, to, 4096, rights).unwrap();
            self.mapped += 1;
        }
    }

    fn fill(&mut self) {
        let guest = &mut self.guest;
        guest.word(DATA, DIRECT_MAP);
        guest.word(DATA + 8, VMALLOC);
        guest.word(DATA + 0x18, DESCRIPTORS);
        guest.word(DATA + 0x10, 3);
        guest.word(DATA + 0x60, 0b11);
        // Two processors, and one that there is not.
        for (number, offset) in [PER_CPU, PER_CPU + 0x800, DATA].into_iter().enumerate() {
            guest.word(DATA + 0x100 + 8 * number as u64, offset);
        }
        guest.word(DATA + INTERRUPTS, NOBODYS + 0x4000 - 8);
        guest.word(PER_CPU + IDLE, task(0));
        guest.word(PER_CPU + 0x800 + IDLE, task(IDLES));
        guest.word(PER_CPU + INTERRUPTS, INTERRUPT_STACK + 0x4000 - 8);
        // An area that is one of the kernel's, and where it lies.
        guest.word(PER_CPU + 0x800 + CACHED + 8, HEAP + 0x800);
        guest.word(HEAP + 0x808, CACHED_STACK);
        guest.word(task(IDLES) + 0x40, stack(IDLES));
        for (number, pointer, on_cpu) in [
            (0, FIRST + 0x3000, 0),
            (SLEEPS, stack(SLEEPS) + 0x1230, 0),
            (RUNS, stack(RUNS) + 0x2000, 1),
            (IDLES, stack(IDLES) + 0x3000, 1),
        ] {
            guest.word(task(number) + POINTER, pointer);
            guest.word(task(number) + ON_CPU, on_cpu);
        }
    }

    fn physical(&self, at: u64) -> Gpa {
        let tables = layout(&self.guest.0).tables;
        let view = super::super::kernel_view::KernelView::new(&self.guest.0, tables);
        view.physical(Gva(at)).unwrap().0
    }

    /// Which of these addresses of words it may return by.
    fn live(&self, words: &[u64]) -> Vec<u64> {
        self.live_with(words, false)
    }

    fn returns(&self, has_kprobes: bool) -> Returns {
        let tasks = layout(&self.guest.0);
        self.stacks
            .returns(&self.guest.0, &tasks, has_kprobes, &self.vcpus)
    }

    fn live_with(&self, words: &[u64], has_kprobes: bool) -> Vec<u64> {
        let returns = self.returns(has_kprobes);
        let is_in = |parts: &[Region], at| parts.iter().any(|part| part.holds(at, 8));
        let is_live = |at: &&u64| {
            let at = self.physical(**at);
            let within = returns.within.as_ref().ok();
            within.is_none_or(|within| is_in(within, at)) && !is_in(&returns.unused, at)
        };
        words.iter().filter(is_live).copied().collect()
    }

    fn lives(&self, at: u64) -> bool {
        !self.live(&[at]).is_empty()
    }
}

#[test]
fn a_task_returns_by_what_lies_above_its_pointer() {
    let mut linux = Linux::new();
    let around = |number: u64, at: u64| [stack(number) + at - 8, stack(number) + at];
    // One that executes nowhere, by its own word for it; one that executes, by its vCPU's.
    for (number, pointer) in [(SLEEPS, 0x1230), (RUNS, 0x1800), (IDLES, 0x2800)] {
        let words = around(number, pointer);
        assert_eq!(linux.live(&words), [words[1]], "task {number}");
        assert!(!linux.lives(stack(number)) && linux.lives(stack(number) + 0x3ff8));
    }
    let words = [FIRST + 0x2ff8, FIRST + 0x3000];
    assert_eq!(linux.live(&words), [words[1]]);
    // A pointer of another stack says nothing, nor does one that is as high as a stack ends.
    for pointer in [stack(SLEEPS) - 8, stack(SLEEPS) + 0x4000, HEAP, 0] {
        linux.guest.word(task(SLEEPS) + POINTER, pointer);
        assert!(linux.lives(stack(SLEEPS)), "{pointer:#x}");
    }
    // A kernel of which nobody knows more has that much.
    let mut less = Linux::new();
    less.stacks.processors = None;
    less.stacks.direct_map = None;
    assert_eq!(less.live(&around(SLEEPS, 0x1230)), [stack(SLEEPS) + 0x1230]);
    assert!(less.lives(stack(IDLES)) && less.lives(HEAP));
}

#[test]
fn a_task_in_ring_3_returns_by_nothing_of_its_stack_and_one_that_is_being_switched_by_all() {
    let mut linux = Linux::new();
    let top = stack(RUNS) + 0x3f00;
    linux.vcpus[0].cpl = 3;
    linux.vcpus[0].rsp = 0x7ffc_0000_0000;
    assert!(!linux.lives(top));
    // Another has its processor still, too: nobody knows which of them it is.
    linux.guest.word(task(SLEEPS) + ON_CPU, 1);
    assert!(linux.lives(top) && linux.lives(stack(SLEEPS)));
    linux.guest.word(task(SLEEPS) + ON_CPU, 0);
    // The list leads nowhere before the one in ring 3 is found: the other is not it.
    linux.guest.word(task(SLEEPS) + ON_CPU, 1);
    linux.guest.word(task(SLEEPS), 0x1234_0000_0000);
    assert!(linux.lives(top) && linux.lives(stack(SLEEPS) + 0x3f00));
}

#[test]
fn of_two_pointers_to_one_stack_the_lower_one_is_believed() {
    let mut linux = Linux::new();
    linux.vcpus[1].rsp = stack(RUNS) + 0x800;
    let words = [stack(RUNS) + 0x7f8, stack(RUNS) + 0x800];
    assert_eq!(linux.live(&words), [words[1]]);
}

#[test]
fn stacks_of_interrupts_are_in_use_while_a_vcpu_is_not_on_a_stack_of_a_task() {
    let mut linux = Linux::new();
    let words = [INTERRUPT_STACK, INTERRUPT_STACK + 0x3ff8, CACHED_STACK];
    assert_eq!(linux.live(&words), NONE);
    // Beside them, and where nobody knows what it is.
    assert!(linux.lives(NOBODYS));
    let quiet = linux.vcpus.clone();
    // In an interrupt; in a guest of this guest; in system management; waiting to be started, which is none.
    assert!(!linux.returns(false).may_tell_more());
    linux.vcpus[0].rsp = INTERRUPT_STACK + 0x3f00;
    assert_eq!(linux.live(&words), words);
    assert!(linux.returns(false).may_tell_more());
    linux.vcpus[0] = VcpuRegisters {
        cr3: 0x900_0000,
        ..quiet[0]
    };
    assert_eq!(linux.live(&words), words);
    assert!(linux.lives(stack(RUNS)));
    let heap = [HEAP];
    let waits = VcpuRegisters {
        cr0: 0x6000_0010,
        rip: 0xfff0,
        ..VcpuRegisters::default()
    };
    for managed in [
        VcpuRegisters {
            rip: 0x8000,
            ..waits
        },
        VcpuRegisters { cr0: 0x11, ..waits },
        VcpuRegisters {
            online: false,
            ..quiet[0]
        },
    ] {
        linux.vcpus[0] = managed;
        assert_eq!(linux.live(&words), words, "{managed:?}");
        assert_eq!(linux.live(&heap), heap, "{managed:?}");
    }
    linux.vcpus[0] = waits;
    assert_eq!(linux.live(&words), NONE);
    assert_eq!(linux.live(&heap), NONE);
    linux.vcpus = quiet;
    // A list that leads nowhere.
    linux.guest.word(PER_CPU + INTERRUPTS, 0x1234_0000_0000);
    linux.guest.word(PER_CPU + 0x800 + CACHED + 8, 0);
    assert_eq!(linux.live(&words), words);
}

#[test]
fn a_vcpu_on_which_the_kernel_has_never_run_does_not_return_to_it() {
    let mut linux = Linux::new();
    let words = [INTERRUPT_STACK, HEAP];
    for (vcpu, base) in linux.vcpus.iter_mut().zip([PER_CPU, PER_CPU + 0x800]) {
        vcpu.gs_base = base;
    }
    // The firmware has left it halted, in protected mode.
    linux.vcpus.push(VcpuRegisters {
        cr0: 0x11,
        rip: 0xf_d0c5,
        ..VcpuRegisters::default()
    });
    assert_eq!(linux.live(&words), NONE);
    let quiet = linux.vcpus.clone();
    // One in ring 3 has been started.
    linux.vcpus[0].cpl = 3;
    linux.vcpus[0].gs_base = 0x1000;
    assert_eq!(linux.live(&words), NONE);
    let elsewhere = Untold::Elsewhere {
        vcpu: 2,
        rip: Gva(0xf_d0c5),
    };
    // One that is just being started, or of which it is not known whose it is, is none that is looked for.
    for base in [PER_CPU + 0x1000, 0] {
        linux.vcpus.clone_from(&quiet);
        linux.vcpus[0].gs_base = base;
        assert_eq!(linux.live(&words), words);
        assert_eq!(linux.returns(false).within, Err(elsewhere));
    }
    linux.vcpus = quiet;
    // It has been started, or nobody can say.
    for mask in [0b111, 0] {
        linux.guest.word(DATA + 0x60, mask);
        assert_eq!(linux.live(&words), words, "{mask:#b}");
        assert_eq!(linux.returns(false).within, Err(elsewhere), "{mask:#b}");
    }
    linux.guest.word(DATA + 0x60, 0b11);
    for started in [None, Some(Gva(0x1234_0000_0000))] {
        linux.stacks.processors.as_mut().unwrap().started = started;
        assert_eq!(linux.live(&words), words, "{started:?}");
    }
}

/// A program can make its stack pointer whatever it likes, and call the kernel.
#[test]
fn a_pointer_of_a_program_s_making_frees_nobody_s_stack() {
    let mut linux = Linux::new();
    let entry = linux.stacks.entry.0;
    let top = stack(SLEEPS) + 0x3f00;
    for rip in [entry, entry + 0x3ff] {
        linux.vcpus[0].rip = rip;
        for pointer in [top, stack(RUNS) + 0x3f00] {
            linux.vcpus[0].rsp = pointer;
            assert!(linux.lives(pointer - 8), "{rip:#x} {pointer:#x}");
            let on_none = Untold::OnNoStack {
                vcpu: 0,
                rsp: Gva(pointer),
            };
            assert_eq!(linux.returns(false).within, Err(on_none));
        }
    }
    // And wherever else: who waits has said where.
    linux.vcpus[0].rip = entry + 0x400;
    linux.vcpus[0].rsp = top;
    assert!(linux.lives(top - 8));
    linux.vcpus[0].rsp = stack(RUNS) + 0x3f00;
    assert!(!linux.lives(stack(RUNS) + 0x3ef8));
}

#[test]
fn a_stack_that_ends_where_addresses_do_is_nobodys() {
    let mut linux = Linux::new();
    linux.guest.word(task(SLEEPS) + 0x40, 0xffff_ffff_ffff_e000);
    linux
        .guest
        .word(task(SLEEPS) + POINTER, 0xffff_ffff_ffff_f000);
    let tasks = layout(&linux.guest.0);
    let look = Look::new(&linux.stacks, &linux.guest.0, &tasks, &linux.vcpus);
    assert_eq!(
        look.beside_returns((&usual(), &as_it_lies), &[], &[Gpa(0)]),
        []
    );
    let (pointer, end) = (Gva(0xffff_ffff_ffff_f000), Gva(0x2000));
    assert_eq!(look.slots(pointer, end, (&usual(), &as_it_lies), &[]), None);
}

/// The kernel says of an idle task that it executes, before it ever has.
#[test]
fn a_processor_that_was_never_started_has_nobody_in_ring_3() {
    let mut linux = Linux::new();
    const NEVER: u64 = 6;
    linux.map(PER_CPU + 0x1000, 1);
    linux.map(stack(NEVER), 4);
    linux.guest.word(DATA + 0x110, PER_CPU + 0x1000);
    linux.guest.word(PER_CPU + 0x1000 + IDLE, task(NEVER));
    linux.guest.word(task(NEVER) + 0x40, stack(NEVER));
    linux.guest.word(task(NEVER) + ON_CPU, 1);
    linux.vcpus[0].cpl = 3;
    linux.vcpus[0].rsp = 0x7ffc_0000_0000;
    let top = stack(RUNS) + 0x3f00;
    assert!(!linux.lives(top));
    linux.guest.word(DATA + 0x60, 0b111);
    assert!(linux.lives(top));
}

#[test]
fn what_is_on_no_stack_is_returned_by_only_if_return_addresses_are_kept_elsewhere() {
    let mut linux = Linux::new();
    // The init part of the image, which is free memory; and what it may not write.
    let words = [HEAP, INIT, CONSTANT, DESCRIPTORS];
    assert_eq!(linux.live(&words), NONE);
    assert!(linux.lives(ENTRIES) && linux.lives(NOBODYS));
    let other = linux.stacks.descriptors.take();
    assert_eq!(linux.live(&words), [DESCRIPTORS]);
    linux.stacks.descriptors = other;
    // The rest of the image's last large page, which is any memory; beside it there is nothing of the image.
    for (at, is_live) in [
        (IMAGE + 0x1f_f000, false),
        (IMAGE + 0x20_0000, true),
        (IMAGE - 0x1000, true),
    ] {
        linux.map(at, 1);
        assert_eq!(linux.lives(at), is_live, "{at:#x}");
    }
    // All up to there would be descriptors.
    linux.guest.word(DATA + 0x18, 0);
    assert!(linux.lives(NOBODYS));
    linux.guest.word(DATA + 0x18, DESCRIPTORS);
    assert_eq!(linux.live_with(&words, true), words);
    for number in [0, SLEEPS, RUNS, IDLES] {
        linux.guest.word(task(number) + KEPT, HEAP);
        assert_eq!(linux.live(&words), words, "task {number}");
        linux.guest.word(task(number) + KEPT, 0);
    }
    // The same memory, mapped as a stack may be, too.
    let heap = linux.physical(HEAP);
    let rights = Rights::ALL;
    let alias = Gva(NOBODYS + 0x1000);
    linux.guest.0.map(alias, heap, 4096, rights).unwrap();
    assert_eq!(linux.live(&words), [HEAP]);
    let entry = linux.guest.0.entry(alias, 1).unwrap();
    linux.guest.0.write_word(entry, 0).unwrap();
    assert_eq!(linux.live(&words), NONE);
    // A kernel that has its stacks in the direct map.
    linux
        .guest
        .word(task(SLEEPS) + 0x40, DIRECT_MAP + 0x3000_0000);
    assert_eq!(linux.live(&words), words);
    linux.guest.word(task(SLEEPS) + 0x40, stack(SLEEPS));
    // One that does not say where that is, or not in a way that makes sense.
    linux.guest.word(DATA + 8, DIRECT_MAP);
    assert_eq!(linux.live(&words), words);
    linux.guest.word(DATA + 8, VMALLOC);
    // A vCPU that is somewhere else, and a list that has no end.
    linux.vcpus[1].rsp = HEAP + 0x100;
    assert_eq!(linux.live(&words), words);
    linux.vcpus[1].rsp = stack(IDLES) + 0x100;
    assert_eq!(linux.live(&words), NONE);
    // All that there are in it, and it goes on.
    linux.guest.word(task(RUNS), task(SLEEPS));
    assert_eq!(linux.live(&words), words);
    linux.guest.word(task(RUNS), 0x1234_0000_0000);
    assert_eq!(linux.live(&words), words);
    linux.guest.word(task(RUNS), task(0));
    assert_eq!(linux.live(&words), NONE);
}
