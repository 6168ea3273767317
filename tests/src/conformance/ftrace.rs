//! Cases like the kernel's own tests of ftrace.

use super::{Case, Ground, Suite};

/// Where a case is shown.
const LINUX: &[Ground] = &[Ground::Linux];
const BOTH: &[Ground] = &[Ground::Linux, Ground::Bundled];

const fn passes(
    name: &'static str,
    grounds: &'static [Ground],
    behaviour: &'static str,
    command: &'static str,
) -> Case {
    Case::passes(Suite::Ftrace, name, grounds, behaviour, command)
}

/// The cases, in the order of the page.
pub(super) const CASES: &[Case] = &[
    passes(
        "func_filter_glob",
        LINUX,
        "globs with `*` at either end, at both, in the middle, with `?` and with sets of characters select what the same regular \
         expression does, and what the kernel's own tracer selects",
        "ctl start --filter '[Ss]y[Ss]_*'",
    )
    .beside("the same functions, but for those that are never traced here, and one that is said to be skipped"),
    passes(
        "fgraph_filter",
        LINUX,
        "a graph of one function has no other in it",
        "ctl start --tracer graph --filter schedule",
    )
    .beside("the same: nothing else"),
    passes(
        "fgraph_multi",
        BOTH,
        "three graphs with other filters, beside one without, have each its own functions",
        "ctl session create one --tracer graph",
    )
    .beside("one graph at a time: an instance refuses a second one"),
    passes(
        "func_profiler",
        BOTH,
        "a profile counts exactly beside a function trace and a graph",
        "ctl session create times --tracer profile",
    )
    .beside("none: this kernel is built without a profile of functions"),
    passes(
        "func_profile_stat",
        BOTH,
        "the numbers of a profile that is switched off stand still, and go on when it is on again",
        "ctl --session times tracing-off",
    )
    .beside("none: this kernel is built without a profile of functions"),
    passes(
        "fgraph_profiler",
        BOTH,
        "a profile of one function beside a graph of all: each has its own",
        "ctl --session times start --filter calls_leaf",
    )
    .beside("none: this kernel is built without a profile of functions"),
    passes(
        "fgraph_retval",
        LINUX,
        "a return of -5 is shown signed, and as hex",
        "ctl probe add 'mem_read%return' '$retval' 'hex=$retval:x64'",
    )
    .beside("the same value, by a kretprobe"),
    passes(
        "func_set_ftrace_file",
        BOTH,
        "filters read back as set; they are appended, taken out of by `!GLOB`, and cleared; one that matches nothing is refused, and says how to wait \
         for a module (`func_mod_trace` does)",
        "ctl filter add '!vfs_read'",
    )
    .beside("the same lists; one that would have nothing in it traces everything there, and is refused here"),
    passes(
        "func_traceonoff_triggers",
        BOTH,
        "at a hit recording goes off, or on, N times (by this host, some milliseconds later; `FUNCTION: stop` ends it at once)",
        "ctl session create watch --trigger 'calls_root: tracing-on other x1'",
    )
    .beside("the same; at the hit itself"),
    passes(
        "func_event_triggers",
        BOTH,
        "at a hit an event is recorded from then on, or no more, N times (by this host, some milliseconds later)",
        "ctl session create watch --trigger 'events_pass: enable message_sent in other'",
    )
    .beside("the same; at the hit itself"),
    passes(
        "func_filter_stacktrace",
        LINUX,
        "at a hit the stack is recorded, by the kernel's own tables (ORC); callers whose returns are hooked are the real ones; it is what the kernel's own \
         tracer records",
        "ctl probe add version_proc_show '$stack'",
    )
    .beside("the same callers; a stack of its own has no offsets"),
    passes(
        "func_filter_pid",
        LINUX,
        "only the calls of a task, by number, name or cgroup; with those that it makes when told so; nothing is counted as lost",
        "ctl tasks set 1234 --follow-forks",
    )
    .beside("the same numbers; it has no names or cgroups"),
    passes(
        "func_filter_notrace_pid",
        LINUX,
        "the calls of all but a task, and but those that it makes when told so",
        "ctl tasks set --not 1234",
    )
    .beside("the same numbers"),
    passes(
        "func_cpumask",
        BOTH,
        "only what these vCPUs execute, of calls and of a profile; the stubs of the others write nothing, and nothing is counted as lost",
        "ctl vcpus set 1",
    )
    .beside("the same"),
    passes(
        "func_mod_trace",
        LINUX,
        "a filter waits for a module, survives its unloading, and its functions are traced when it comes again",
        "ctl start --filter 'mod:binfmt_misc:bm_status_*'",
    )
    .beside("the first time alone: its filter goes with the module, ours stays"),
    passes(
        "kprobe_module",
        LINUX,
        "a probe waits for a module, survives its unloading, and is hit when it comes again, with its callers; a function that the loaded module has not is refused",
        "ctl probe add 'mod:binfmt_misc:bm_status_read $arg3'",
    )
    .beside("as many hits, and the same callers"),
    passes(
        "kprobe_args_syntax",
        BOTH,
        "twenty ways to say a value, and twenty that are none, each refused with what is wrong with it",
        "ctl probe add unoptimised_registers 'item->part.id'",
    )
    .beside("sixteen of its own twenty are taken: it has no names of parameters, no members, no `$args` and no conditions; of twenty that are none it takes one, `$arg17`"),
    passes(
        "kprobe_syntax_errors",
        BOTH,
        "each of twenty errors points at the column of what is wrong",
        "ctl errors",
    )
    .beside("the same columns in ten of twelve; an offset inside an instruction is marked at the function, and no argument is too many"),
    passes(
        "kprobe_args_type",
        BOTH,
        "one value with every type is the same bits; bit fields are theirs",
        "ctl probe add unoptimised_registers 'i8=%rdi:i8' 'item->part.flags'",
    )
    .beside("the same numbers, and the same bits of a register by their offsets"),
    passes(
        "kprobe_args_string",
        BOTH,
        "texts, their beginnings, and all to which the pointers of an array lead",
        "ctl probe add unoptimised_registers 'text:string' 'NAMES:string[64][3]'",
    )
    .beside("the same texts, by offsets that somebody has counted"),
    passes(
        "kprobe_args_char",
        BOTH,
        "characters, and several of them one after the other",
        "ctl probe add unoptimised_registers '*text:char[3]'",
    )
    .beside("there are no characters yet (in 6.1); the same bytes, as numbers"),
    passes(
        "kprobe_args_symbol",
        BOTH,
        "memory of a symbol, what lies after it, and its address",
        "ctl probe add unoptimised_registers ap_limit:u32 '&ap_limit'",
    )
    .beside("the same memory; it cannot be asked for the address"),
    passes(
        "kprobe_insn_boundary",
        BOTH,
        "of 256 offsets those are taken at which an instruction begins; on Linux but for a few, each refused with why: the kernel rewrites it itself, or \
         something may lead into its middle",
        "ctl probe add unoptimised_values+0x17",
    )
    .beside("the same instructions; it takes those, too, that are left alone here"),
    passes(
        "multiple_kprobes",
        BOTH,
        "256 probes are set, switched off, switched on, and gone; every byte is as it was",
        "ctl probe disable all",
    )
    .beside("as many"),
    passes(
        "probepoint",
        BOTH,
        "a name, a name and an offset, and an address; what is past the end or nowhere is refused",
        "ctl probe add spin_leaf+0x5",
    )
    .beside("the same places; it takes what is past the end, if an instruction of another function begins there, and an address that is nowhere"),
    passes(
        "kprobe_ftrace",
        BOTH,
        "a probe and a tracer at one function, in five orders of on and off",
        "ctl probe add spin_leaf",
    )
    .beside("the same numbers, in one of the orders"),
    passes(
        "add_remove_btfarg",
        LINUX,
        "parameters by their names in the kernel's BTF, all of them by `$args`; what is not one is refused",
        "ctl probe add vfs_read '$args'",
    )
    .beside("refused, as in 6.1 it does not know parameters by name; by number they are taken"),
    passes(
        "btf_probe_event",
        LINUX,
        "chains of members, through pointers, by the kernel's BTF",
        "ctl probe add vfs_read 'file->f_path.dentry->d_inode->i_ino'",
    )
    .beside("refused; the same number by offsets that somebody has counted"),
    passes(
        "btf_typecast_accepted",
        LINUX,
        "casts, casts to what a member is in, `$current`, per-CPU reads",
        "ctl probe add vfs_read '(inode,i_data)file->f_mapping->i_ino' '$current->comm'",
    )
    .beside("casts, `$current` and per-CPU reads are refused; `$comm` is taken"),
    passes(
        "fprobe_args_vfs",
        LINUX,
        "names of dentries and files",
        "ctl probe add vfs_open 'path->dentry->d_name.name:string'",
    )
    .beside("members, `%pd` and probes of its own kind for it are refused (in 6.1); the same name by offsets that somebody has counted"),
    passes(
        "tracing_error_log",
        BOTH,
        "the last errors can be asked for, with a mark under what is wrong, and cleared",
        "ctl errors --clear",
    )
    .beside("the same error, with a mark"),
    passes(
        "snapshot",
        BOTH,
        "what was recorded up to now, in a directory of its own, while recording goes on",
        "ctl dump --live DIR",
    )
    .beside("the same calls; it takes them away from the trace"),
    passes(
        "trace_pipe",
        BOTH,
        "a stream of what is recorded, while it is",
        "ctl tail --json",
    )
    .beside("the same; what was read is gone there"),
];
