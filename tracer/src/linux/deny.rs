//! What must never be patched of a Linux kernel. Nearly all of it has no patch site in the first place (`noinstr`,
//! `notrace`).

use image::{Image, TextRange};

use crate::personality::{NeverChanged, NeverHooked, NeverTraced};

/// The groups of functions, each with its reason.
pub(super) const GROUPS: &[NeverTraced] = &[
    NeverTraced {
        globs: &[
            "asm_*",
            "entry_SYSCALL_*",
            "entry_SYSENTER_*",
            "early_idt_handler_*",
        ],
        why: "exception and system call entry, from Linux arch/x86/entry: GS may be the user's",
    },
    NeverTraced {
        globs: &[
            "error_entry",
            "error_return",
            "paranoid_entry",
            "paranoid_exit",
            "native_iret",
            "native_irq_return_iret",
            "restore_regs_and_return_to_kernel",
            "swapgs_restore_regs_and_return_to_usermode",
        ],
        why: "exception entry and return, from Linux arch/x86/entry/entry_64.S: GS is changing",
    },
    NeverTraced {
        globs: &[
            "exc_*",
            "do_error_trap",
            "do_early_exception",
            "fixup_bad_iret",
            "fred_exc_*",
            "fred_entry_from_*",
            "fred_hwexc*",
            "fred_swexc*",
        ],
        why: "exception handlers, from Linux arch/x86/kernel/traps.c: they run on any state",
    },
    NeverTraced {
        globs: &["nmi_*", "*_nmi", "*_nmi_*", "end_repeat_nmi"],
        why: "non-maskable interrupts, from Linux arch/x86/kernel/nmi.c: they come in anywhere",
    },
    NeverTraced {
        globs: &[
            "ftrace_*",
            "arch_ftrace_*",
            "prepare_ftrace_return",
            "return_to_handler",
        ],
        why: "the guest's own tracer, from Linux kernel/trace and arch/x86/kernel/ftrace.c",
    },
    NeverTraced {
        globs: &[
            "text_poke*",
            "*smp_text_poke_*",
            "poke_int3_handler",
            "apply_alternatives",
            "apply_paravirt",
        ],
        why: "changes text itself, from Linux arch/x86/kernel/alternative.c",
    },
    NeverTraced {
        globs: &["cleanup_highmap"],
        why: "clears the page table entries that the window is in, from Linux arch/x86/mm/init_64.c",
    },
    NeverTraced {
        globs: &["bpf_dispatcher_*_func"],
        why: "the kernel puts a jump at its entry, from Linux include/linux/bpf.h (until 6.1)",
    },
    NeverTraced {
        globs: &[
            "relocate_kernel",
            "identity_mapped",
            "virtual_mapped",
            "swap_pages",
            "core_restore_code",
            "restore_image",
        ],
        why: "copied to another page and executed there, from Linux relocate_kernel_64.S and hibernate_asm_64.S",
    },
    NeverTraced {
        globs: &[
            "__x86_indirect_*",
            "__x86_return_*",
            "*_untrain_ret*",
            "srso_*safe_ret*",
            "*_return_thunk",
            "clear_bhb_loop*",
            "entry_ibpb",
            "write_ibpb",
            "__bhi_args*",
        ],
        why: "how its instructions lie protects against speculation, from Linux arch/x86/lib/retpoline.S",
    },
    NeverTraced {
        globs: &[
            "load_percpu_segment",
            "switch_to_new_gdt",
            "switch_gdt_and_percpu_base",
            "load_direct_gdt",
            "load_fixmap_gdt",
            "native_load_gs_index",
            "__restore_processor_state",
        ],
        why: "sets the GS base that rings are found by, from Linux arch/x86/kernel/cpu",
    },
];

/// Those among the functions that have no patch site: where they have one, the kernel says that they are entered by calls, and that
/// its own tracer can stand there.
pub(super) const WITHOUT_SITES: &[NeverTraced] = &[NeverTraced {
    globs: &[
        "ret_from_fork*",
        "*kretprobe_trampoline",
        "*rethook_trampoline",
        "rewind_stack_*",
        "vmx_vmexit",
    ],
    why: "not entered by a call: what lies on the stack is no return address, from Linux arch/x86/entry/entry_64.S, kvm/vmx/vmenter.S",
}];

/// Functions whose callers are found by unwinding and not only shown: an exception of a BPF program (since 6.7)
/// looks for that program's frame, and takes it to be there. Where a return is hooked the unwinder meets a stub, which is none of the
/// kernel's text, and stops. Programs cannot throw out of callbacks, so nothing else of the kernel's is between the two.
/// `__unwind_start` begins in its own frame.
pub(super) const UNWOUND: &[NeverHooked] = &[NeverHooked {
    names: &["bpf_throw", "arch_bpf_stack_walk", "__unwind_start"],
    why: "the kernel finds its caller by unwinding and relies on that, from Linux kernel/bpf/helpers.c",
}];

/// What a processor executes before anything of ours can be executed on it.
const BEFORE_GS_WHY: &str =
    "runs before the GS base is set that rings are found by, from Linux arch/x86/kernel/head_64.S";

/// Those by name.
pub(super) const BEFORE_GS: &[NeverTraced] = &[NeverTraced {
    globs: &[
        "*startup_64*",
        "__startup_*64",
        "verify_cpu",
        "sev_verify_cbit",
        "start_cpu0",
        "soft_restart_cpu",
        "wakeup_long64",
    ],
    why: BEFORE_GS_WHY,
}];

/// Where the code begins that a processor comes to from 32 bits, and the last function of it: `head_64.S` has them one after
/// the other, in every version from 5.10 to 7.3, with functions between them that get other names now and then.
const BEFORE_GS_BOUNDS: (&str, &str) = ("secondary_startup_64", "verify_cpu");
/// It has some 700 bytes: functions that lie farther apart do not bound it.
const BEFORE_GS_BYTES: u64 = 4096;

/// Where it lies, if the image names both.
pub(super) fn before_gs(image: &Image) -> Option<NeverChanged> {
    let (first, last) = BEFORE_GS_BOUNDS;
    let start = image.symbols.address_of(first)?;
    let last = image.symbols.address_of(last)?;
    let last = image.function_at(last).and_then(|id| image.function(id))?;
    let end = last.address.wrapping_add(last.size);
    let is_it = start <= last.address && end.0.checked_sub(start.0)? <= BEFORE_GS_BYTES;
    is_it.then_some(NeverChanged {
        text: TextRange { start, end },
        between: "secondary_startup_64 to verify_cpu",
        why: BEFORE_GS_WHY,
    })
}

#[cfg(test)]
mod tests {
    use image::testing::{ElfFile, TEXT};

    use super::*;

    fn between(functions: &[(&'static str, u64)]) -> Option<(u64, u64)> {
        let text = ElfFile::new().text(TEXT, &[0x90; 0x2000]);
        let file = functions.iter().fold(text, |file, (name, offset)| {
            file.function(name, TEXT + offset, 16)
        });
        let found = before_gs(&Image::parse(&file.build()).unwrap())?;
        Some((found.text.start.0 - TEXT, found.text.end.0 - TEXT))
    }

    #[test]
    fn what_lies_between_runs_before_the_gs_base_is_set() {
        let (first, last) = BEFORE_GS_BOUNDS;
        assert_eq!(between(&[(first, 16), (last, 64)]), Some((16, 80)));
        // One of them alone, the other way round, or of different files.
        for functions in [
            [(first, 16), ("other", 64)],
            [("other", 16), (last, 64)],
            [(last, 16), (first, 64)],
            [(first, 16), (last, 0x1800)],
        ] {
            assert_eq!(between(&functions), None, "{functions:?}");
        }
    }
}
