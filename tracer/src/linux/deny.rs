//! What must never be patched of a Linux kernel. Nearly all of it has no patch site in the first place (`noinstr`,
//! `notrace`).

use crate::personality::NeverTraced;

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
            "*_untrain_ret",
            "*_return_thunk",
            "clear_bhb_loop*",
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
pub(super) const WITHOUT_SITES: &[NeverTraced] = &[
    NeverTraced {
        globs: &[
            "ret_from_fork*",
            "*kretprobe_trampoline",
            "*rethook_trampoline",
            "rewind_stack_*",
        ],
        why: "not entered by a call: what lies on the stack is no return address, from Linux arch/x86/entry/entry_64.S",
    },
    NeverTraced {
        globs: &[
            "startup_64*",
            "secondary_startup_64*",
            "__startup_*64",
            "verify_cpu",
            "sev_verify_cbit",
            "start_cpu0",
            "wakeup_long64",
        ],
        why: "runs before the GS base is set that rings are found by, from Linux arch/x86/kernel/head_64.S",
    },
];
