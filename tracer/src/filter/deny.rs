//! What must never be patched, whatever the user asks for. A name here is harmless in a guest
//! that has no such function. Nearly all of these have no patch site in the first place (Linux
//! marks them `noinstr` or `notrace`): the list holds where a build forgot to.

use globset::{GlobSet, GlobSetBuilder};

use trace::glob::{GlobError, compile};

/// Globs with one reason.
struct Group {
    globs: &'static [&'static str],
    why: &'static str,
}

const GROUPS: &[Group] = &[
    Group {
        globs: &["__fentry__", "mcount", "_mcount", "__mcount"],
        why: "the profiling function that sites call, from gcc's -pg",
    },
    Group {
        globs: &[
            "asm_*",
            "entry_SYSCALL_*",
            "entry_SYSENTER_*",
            "early_idt_handler_*",
        ],
        why: "exception and system call entry, from Linux arch/x86/entry: GS may be the user's",
    },
    Group {
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
    Group {
        globs: &[
            "exc_*",
            "do_error_trap",
            "do_early_exception",
            "fixup_bad_iret",
        ],
        why: "exception handlers, from Linux arch/x86/kernel/traps.c: they run on any state",
    },
    Group {
        globs: &["nmi_*", "*_nmi", "*_nmi_*", "end_repeat_nmi"],
        why: "non-maskable interrupts, from Linux arch/x86/kernel/nmi.c: they come in anywhere",
    },
    Group {
        globs: &[
            "ftrace_*",
            "arch_ftrace_*",
            "prepare_ftrace_return",
            "return_to_handler",
        ],
        why: "the guest's own tracer, from Linux kernel/trace and arch/x86/kernel/ftrace.c",
    },
    Group {
        globs: &[
            "text_poke*",
            "poke_int3_handler",
            "apply_alternatives",
            "apply_paravirt",
        ],
        why: "changes text itself, from Linux arch/x86/kernel/alternative.c",
    },
    Group {
        globs: &["bpf_dispatcher_*_func"],
        why: "the kernel puts a jump at its entry, from Linux include/linux/bpf.h (until 6.1)",
    },
    Group {
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
    Group {
        globs: &[
            "__x86_indirect_*",
            "__x86_return_*",
            "*_untrain_ret",
            "*_return_thunk",
            "clear_bhb_loop*",
        ],
        why: "how its instructions lie protects against speculation, from Linux arch/x86/lib/retpoline.S",
    },
    Group {
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

/// The list, ready to match.
#[derive(Debug)]
pub struct DenyList {
    set: GlobSet,
    /// The glob and the reason for each member of the set.
    entries: Vec<(&'static str, &'static str)>,
}

impl DenyList {
    /// The list.
    ///
    /// # Errors
    /// [`GlobError::Bad`], which a test rules out.
    pub fn new() -> Result<Self, GlobError> {
        let mut builder = GlobSetBuilder::new();
        let mut entries = Vec::new();
        for group in GROUPS {
            for glob in group.globs {
                builder.add(compile(glob)?);
                entries.push((*glob, group.why));
            }
        }
        let set = builder.build().map_err(|error| GlobError::Bad {
            glob: "built-in list".to_owned(),
            reason: error.kind().to_string(),
        })?;
        Ok(Self { set, entries })
    }

    /// The glob that forbids this name, and why.
    pub fn forbids(&self, name: &str) -> Option<(&'static str, &'static str)> {
        let first = self.set.matches(name).into_iter().next()?;
        self.entries.get(first).copied()
    }
}
