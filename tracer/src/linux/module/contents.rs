//! The functions of a module and their sites, from its own symbol table and list of call sites.

use insn::nop::NOP5;
use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use super::layout::ModuleLayout;
use super::list::{pointer, word};
use crate::introspection::{Contents, ModuleError};
use crate::module::Module;
use crate::target::TargetMemory;

/// More symbols, or sites, than that are no module's.
const SYMBOLS_MAX: u64 = 1 << 17;
const SITES_MAX: u64 = 1 << 16;
/// An entry of an ELF symbol table, and where in it are name, section and value.
const SYMBOL: usize = 24;
const SECTION: usize = 6;
const VALUE: usize = 8;
/// The longest name, all names of one module together, and how much is read of one at once.
const NAME_MAX: usize = 512;
const NAMES_MAX: usize = 4 << 20;
const NAME_STEP: usize = 64;

/// How many symbols `module` says that it has: what reading it costs.
///
/// # Errors
/// A [`ModuleError`].
pub fn symbols(
    memory: &(impl TargetMemory + ?Sized),
    layout: &ModuleLayout,
    module: &Module,
) -> Result<usize, ModuleError> {
    let table = Gva(word(memory, module.at, layout.kallsyms)?);
    let count = word(memory, table, layout.symtab_count)?;
    bounded(module, "symbols", count, SYMBOLS_MAX)
}

/// Reads what `module` has. It may be unloaded meanwhile: then this is of no use, and the next walk
/// along the list says so.
///
/// # Errors
/// A [`ModuleError`].
pub fn contents(
    memory: &(impl TargetMemory + ?Sized),
    layout: &ModuleLayout,
    module: &Module,
) -> Result<Contents, ModuleError> {
    Ok(Contents {
        functions: functions(memory, layout, module)?,
        sites: with_bytes(memory, sites(memory, layout, module)?),
    })
}

/// What stands at the sites. The kernel makes nops of all of them or, when its tracer has switched itself off, of none
/// (`ftrace_module_init`): so the first one tells whether the others have to be looked at.
fn with_bytes(
    memory: &(impl TargetMemory + ?Sized),
    sites: Vec<Gva>,
) -> Vec<(Gva, [u8; SITE_LENGTH])> {
    let at = |site: Gva| {
        let mut bytes = [0; SITE_LENGTH];
        // What cannot be read is told when it is to be changed.
        let read = memory.read(site, &mut bytes);
        read.map_or(NOP5, |()| bytes)
    };
    let are_nops = sites.first().is_none_or(|first| at(*first) == NOP5);
    let bytes = |site| if are_nops { NOP5 } else { at(site) };
    sites.into_iter().map(|site| (site, bytes(site))).collect()
}

fn sites(
    memory: &(impl TargetMemory + ?Sized),
    layout: &ModuleLayout,
    module: &Module,
) -> Result<Vec<Gva>, ModuleError> {
    let count = word(memory, module.at, layout.sites_count)?;
    let count = bounded(module, "call sites", count, SITES_MAX)?;
    let list = Gva(word(memory, module.at, layout.sites)?);
    let mut bytes = vec![0; count * 8];
    memory.read(list, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let mut sites: Vec<Gva> = words
        .iter()
        .map(|word| Gva(u64::from_le_bytes(*word)))
        .filter(|site| module.text.holds(*site, 5))
        .collect();
    sites.sort_unstable();
    sites.dedup();
    Ok(sites)
}

fn functions(
    memory: &(impl TargetMemory + ?Sized),
    layout: &ModuleLayout,
    module: &Module,
) -> Result<Vec<(Gva, String)>, ModuleError> {
    let table = Gva(word(memory, module.at, layout.kallsyms)?);
    let count = symbols(memory, layout, module)?;
    let symtab = Gva(word(memory, table, layout.symtab)?);
    let strtab = pointer(memory, table.wrapping_add(layout.strtab.offset))?;
    let mut bytes = vec![0; count * SYMBOL];
    memory.read(symtab, &mut bytes)?;
    let mut functions = Vec::new();
    let mut names = 0;
    for symbol in bytes.as_chunks::<SYMBOL>().0 {
        let Some((address, name)) = function(memory, strtab, symbol, module)? else {
            continue;
        };
        names += name.len();
        bounded(module, "bytes of names", names as u64, NAMES_MAX as u64)?;
        functions.push((address, name));
    }
    functions.sort();
    functions.dedup_by_key(|(address, _)| *address);
    Ok(functions)
}

fn function(
    memory: &(impl TargetMemory + ?Sized),
    strtab: Gva,
    symbol: &[u8; SYMBOL],
    module: &Module,
) -> Result<Option<(Gva, String)>, ModuleError> {
    let part = |at: usize| symbol.get(at..).unwrap_or_default();
    let name = u32::from_le_bytes(part(0).first_chunk().copied().unwrap_or_default());
    let section = u16::from_le_bytes(part(SECTION).first_chunk().copied().unwrap_or_default());
    let value = u64::from_le_bytes(part(VALUE).first_chunk().copied().unwrap_or_default());
    if section == 0 || !module.text.holds(Gva(value), 1) {
        return Ok(None);
    }
    let name = name_at(memory, strtab.wrapping_add(u64::from(name)))?;
    // Padding and local labels are no functions.
    let is_function = !name.is_empty()
        && !["__pfx_", "__cfi_", "."]
            .iter()
            .any(|no| name.starts_with(no));
    Ok(is_function.then_some((Gva(value), name)))
}

/// A string in steps that end where pages do: what follows it may not be mapped.
fn name_at(memory: &(impl TargetMemory + ?Sized), mut at: Gva) -> Result<String, ModuleError> {
    let mut name = Vec::new();
    while name.len() < NAME_MAX {
        let step = NAME_STEP - usize::try_from(at.0 % NAME_STEP as u64).unwrap_or_default();
        let mut bytes = [0; NAME_STEP];
        let part = bytes.get_mut(..step).unwrap_or_default();
        memory.read(at, part)?;
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            name.extend_from_slice(part.get(..end).unwrap_or_default());
            break;
        }
        name.extend_from_slice(part);
        at = at.wrapping_add(step as u64);
    }
    let is_name = name.iter().all(u8::is_ascii_graphic);
    Ok(if is_name {
        String::from_utf8_lossy(&name).into_owned()
    } else {
        String::new()
    })
}

fn bounded(
    module: &Module,
    what: &'static str,
    count: u64,
    limit: u64,
) -> Result<usize, ModuleError> {
    match usize::try_from(count) {
        Ok(bounded) if count <= limit => Ok(bounded),
        _ => Err(ModuleError::TooMany {
            name: module.name.to_string(),
            what,
            count,
            limit,
        }),
    }
}
