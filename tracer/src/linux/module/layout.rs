//! Where the members of `struct module` lie that tracing reads.

use debuginfo::btf::{Btf, Field};
use image::symbol::SymbolTable;
use terms::addr::Gva;

use crate::linux::kernel_view::KernelTables;

/// Places in the guest's structs, in bytes from their beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleLayout {
    /// The list's head.
    pub head: Gva,
    /// The page tables that map every module.
    pub tables: KernelTables,
    /// `module.list`.
    pub list: u64,
    /// `module.state`.
    pub state: Field,
    /// The state in which text is not there yet, or not any more.
    pub unformed: u32,
    /// The state of one that has been started.
    pub live: u32,
    /// `module.name`.
    pub name: Field,
    /// Where the text lies.
    pub text_base: Field,
    /// How long it is.
    pub text_size: Field,
    /// `module.num_ftrace_callsites`.
    pub sites_count: Field,
    /// `module.ftrace_callsites`.
    pub sites: Field,
    /// `module.kallsyms`.
    pub kallsyms: Field,
    /// `mod_kallsyms.symtab`.
    pub symtab: Field,
    /// `mod_kallsyms.num_symtab`.
    pub symtab_count: Field,
    /// `mod_kallsyms.strtab`.
    pub strtab: Field,
}

impl ModuleLayout {
    /// What the kernel's types and symbols say; nothing when it has no modules, or does not trace
    /// their functions.
    pub(crate) fn find(btf: &Btf<'_>, symbols: &SymbolTable, tables: KernelTables) -> Option<Self> {
        let module = |path| btf.field("module", path);
        let table = |path| btf.field("mod_kallsyms", path);
        // One piece of memory for each kind since 6.4, one for all of them before.
        let text = |new, old| module(new).or_else(|| module(old));
        Some(Self {
            head: symbols.address_of("modules")?,
            tables,
            list: module("list")?.offset,
            state: module("state")?,
            unformed: btf.enumerator("module_state", "MODULE_STATE_UNFORMED")?,
            live: btf.enumerator("module_state", "MODULE_STATE_LIVE")?,
            name: module("name")?,
            text_base: text("mem[0].base", "core_layout.base")?,
            text_size: text("mem[0].size", "core_layout.text_size")?,
            sites_count: module("num_ftrace_callsites")?,
            sites: module("ftrace_callsites")?,
            kallsyms: module("kallsyms")?,
            symtab: table("symtab")?,
            symtab_count: table("num_symtab")?,
            strtab: table("strtab")?,
        })
    }
}
