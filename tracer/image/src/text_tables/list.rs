//! The tables themselves: what each lists, how, and when Linux goes by it (5.10 to 7.3, x86-64).
//!
//! | table | rewritten | |
//! |---|---|---|
//! | `__jump_table` | at any time | a static key is switched: a sysctl, a tracepoint, a socket option, a cgroup |
//! | `.static_call_sites` | at any time | `static_call_update`: tracepoints, perf, the preemption model |
//! | `__mcount_loc` | at any time | the kernel's tracer, kprobes on it, BPF, livepatch |
//! | `.smp_locks` | when a second processor comes to a kernel that started with one | and once before; 7.3 has none |
//! | `.altinstructions` | once, before `init` | a module's: before its text is executed |
//! | `.parainstructions` | once (until 6.7) | |
//! | `.retpoline_sites`, `.return_sites`, `.call_sites` | once | thunks against speculation, ITS too |
//! | `.ibt_endbr_seal`, `.cfi_sites` | once | landing pads, and what is before functions |
//! | `runtime_ptr_*`, `runtime_shift_*`, … | once | constants, since 6.11 |
//! | `__ex_table`, `__bug_table` | never | but the instruction is known by its address |
//!
//! Without a table: breakpoints and jumps of kprobes (`kprobes.rs` asks for them), code that is copied before it is
//! executed (the kernel's tracer; the names in `filter/deny.rs`), and trampolines of static calls, of which
//! `image/static_call.rs` knows. BPF programs, their trampolines and its dispatchers' images lie in memory
//! of their own.

use super::TableError;
use crate::SymbolTable;

/// Where calls are written anew.
pub(super) const STATIC_CALLS: &str = ".static_call_sites";

/// What an entry says.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entries {
    /// Begins with the distance to an instruction, all of which is rewritten; so many bytes to the next entry.
    Instructions {
        /// Bytes of an entry.
        apart: usize,
    },
    /// Is the distance to so many bytes.
    Bytes {
        /// How many.
        length: u64,
    },
    /// `struct alt_instr`.
    Alternatives,
    /// `struct paravirt_patch_site`.
    Paravirt,
}

/// When a kernel must have a table.
#[derive(Debug, Clone, Copy)]
pub(super) enum Due {
    Always,
    /// When a symbol begins so.
    With(&'static str),
    Never,
}

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    /// What it lists: one, and all of them.
    pub what: &'static str,
    pub whats: &'static str,
    /// Its section, where it has one.
    pub section: &'static str,
    /// The symbols that bound it.
    pub bounds: (&'static str, &'static str),
    pub due: Due,
    pub entries: Entries,
    /// Whether the kernel keeps it for as long as it runs.
    pub lasts: bool,
}

impl Table {
    pub fn is_due(&self, symbols: &SymbolTable) -> bool {
        match self.due {
            Due::Always => true,
            Due::With(prefix) => symbols.iter().any(|one| one.name.starts_with(prefix)),
            Due::Never => false,
        }
    }

    pub const fn not_named(&self) -> TableError {
        let (start, stop) = self.bounds;
        TableError::NotNamed {
            what: self.whats,
            start,
            stop,
        }
    }
}

const WORDS: Entries = Entries::Instructions { apart: 4 };

pub(super) const TABLES: [Table; 10] = [
    Table {
        what: "a jump label",
        whats: "jump labels",
        section: "__jump_table",
        bounds: ("__start___jump_table", "__stop___jump_table"),
        due: Due::Always,
        entries: Entries::Instructions { apart: 16 },
        lasts: true,
    },
    Table {
        what: "a static call",
        whats: "static calls",
        section: STATIC_CALLS,
        bounds: ("__start_static_call_sites", "__stop_static_call_sites"),
        due: Due::With("__SCT__"),
        entries: Entries::Instructions { apart: 8 },
        lasts: true,
    },
    Table {
        what: "an alternative",
        whats: "alternatives",
        section: ".altinstructions",
        bounds: ("__alt_instructions", "__alt_instructions_end"),
        due: Due::Always,
        entries: Entries::Alternatives,
        lasts: false,
    },
    Table {
        what: "a lock prefix",
        whats: "lock prefixes",
        section: ".smp_locks",
        bounds: ("__smp_locks", "__smp_locks_end"),
        due: Due::With("alternatives_smp_"),
        entries: Entries::Bytes { length: 1 },
        lasts: false,
    },
    Table {
        what: "a paravirtual call",
        whats: "paravirtual calls",
        section: ".parainstructions",
        bounds: ("__parainstructions", "__parainstructions_end"),
        due: Due::Never,
        entries: Entries::Paravirt,
        lasts: false,
    },
    Table {
        what: "an indirect call",
        whats: "retpolines",
        section: ".retpoline_sites",
        bounds: ("__retpoline_sites", "__retpoline_sites_end"),
        due: Due::Never,
        entries: WORDS,
        lasts: false,
    },
    Table {
        what: "a return",
        whats: "returns",
        section: ".return_sites",
        bounds: ("__return_sites", "__return_sites_end"),
        due: Due::Never,
        entries: WORDS,
        lasts: false,
    },
    Table {
        what: "a call that is counted",
        whats: "counted calls",
        section: ".call_sites",
        bounds: ("__call_sites", "__call_sites_end"),
        due: Due::Never,
        entries: WORDS,
        lasts: false,
    },
    Table {
        what: "a landing pad",
        whats: "landing pads",
        section: ".ibt_endbr_seal",
        bounds: ("__ibt_endbr_seal", "__ibt_endbr_seal_end"),
        due: Due::Never,
        entries: WORDS,
        lasts: false,
    },
    Table {
        what: "a check before a function",
        whats: "checks before functions",
        section: ".cfi_sites",
        bounds: ("__cfi_sites", "__cfi_sites_end"),
        due: Due::Never,
        entries: Entries::Bytes { length: 16 },
        lasts: false,
    },
];

pub(super) const EXCEPTIONS: Table = Table {
    what: "an instruction that may fault",
    whats: "instructions that may fault",
    section: "__ex_table",
    bounds: ("__start___ex_table", "__stop___ex_table"),
    due: Due::Always,
    entries: WORDS,
    lasts: true,
};

const BUGS: Table = Table {
    what: "a warning",
    whats: "warnings",
    section: "__bug_table",
    bounds: ("__start___bug_table", "__stop___bug_table"),
    due: Due::Never,
    entries: WORDS,
    lasts: true,
};

/// Whose instructions are known by their address.
pub(super) const KNOWN: [Table; 2] = [EXCEPTIONS, BUGS];

/// What the names of lists of constants begin with, and how many bytes each constant has.
pub(super) const RUNTIME: [(&str, u64); 3] = [
    ("runtime_ptr_", 8),
    ("runtime_shift_", 1),
    ("runtime_mask_", 4),
];

/// Code that is not only executed where it stands, or on the kernel's own stack and tables.
pub(super) const BETWEEN: [(&str, &str, &str); 4] = [
    (
        "ftrace_caller",
        "ftrace_caller_end",
        "code that the kernel copies",
    ),
    (
        "ftrace_regs_caller",
        "ftrace_regs_caller_end",
        "code that the kernel copies",
    ),
    (
        "__entry_text_start",
        "__entry_text_end",
        "the way into the kernel",
    ),
    (
        "optprobe_template_entry",
        "optprobe_template_end",
        "code that the kernel copies",
    ),
];
