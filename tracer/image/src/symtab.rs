//! The symbol table of the ELF file, made into named symbols and functions.

use std::fmt::{self, Write};
use std::sync::Arc;

use object::elf::{
    FileHeader64, SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_FILE, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE,
    STT_OBJECT, STT_SECTION, STT_TLS, Sym64,
};
use object::endian::LittleEndian as LE;
use object::read::elf::{Sym, SymbolTable as ElfSymbols};
use terms::addr::Gva;
use terms::printable::escaped;

use terms::function::Function;

use super::elf::Elf;
use super::{ImageError, Symbol, SymbolKind, SymbolTable};

/// A demangled name longer than this is not used: the raw one is shown.
const MAX_DISPLAY: usize = 4096;
/// All names together may be this many times as long as the file (names may share their ends).
const NAMES_PER_FILE: u64 = 4;

/// All defined, named symbols of the file.
pub(super) fn read(elf: &Elf<'_>) -> Result<SymbolTable, ImageError> {
    let mut table = elf_symbols(elf, SHT_SYMTAB)?;
    if table.is_empty() {
        table = elf_symbols(elf, SHT_DYNSYM)?;
    }
    let limit = (elf.bytes.len() as u64).saturating_mul(NAMES_PER_FILE);
    let mut total = 0u64;
    let mut symbols = Vec::new();
    for symbol in table.iter() {
        let Some(kind) = kind_of(symbol) else {
            continue;
        };
        let name = symbol.name(LE, table.strings()).map_err(|error| {
            ImageError::Damaged(format!(
                "{error} (symbol at {:#x})",
                symbol.st_value.get(LE)
            ))
        })?;
        total = total.saturating_add(name.len() as u64);
        if total > limit {
            return Err(ImageError::AbsurdNames { limit });
        }
        if !name.is_empty() {
            symbols.push(named(symbol, kind, name));
        }
    }
    Ok(SymbolTable::new(symbols))
}

/// One entry per address that has a function symbol, by address.
pub(super) fn functions(symbols: &SymbolTable) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    for symbol in symbols
        .iter()
        .filter(|symbol| symbol.kind == SymbolKind::Function)
    {
        match functions.last_mut() {
            Some(last) if last.address == symbol.address => add_alias(last, symbol),
            _ => functions.push(Function {
                address: symbol.address,
                size: symbol.size,
                name: Arc::clone(&symbol.name),
                display: Arc::clone(&symbol.display),
                ..Function::default()
            }),
        }
    }
    functions
}

fn add_alias(function: &mut Function, symbol: &Symbol) {
    function.size = function.size.max(symbol.size);
    function.aliases.push(Arc::clone(&symbol.name));
    if !Arc::ptr_eq(&symbol.name, &symbol.display) {
        function.aliases.push(Arc::clone(&symbol.display));
    }
}

fn elf_symbols<'a>(
    elf: &Elf<'a>,
    kind: object::elf::SectionType,
) -> Result<ElfSymbols<'a, FileHeader64<LE>>, ImageError> {
    elf.sections
        .symbols(LE, elf.bytes, kind)
        .map_err(|error| ImageError::Damaged(error.to_string()))
}

/// `None` for what names no place in memory.
fn kind_of(symbol: &Sym64<LE>) -> Option<SymbolKind> {
    if symbol.is_undefined(LE) {
        return None;
    }
    match symbol.st_type() {
        STT_FUNC | STT_GNU_IFUNC => Some(SymbolKind::Function),
        STT_OBJECT => Some(SymbolKind::Object),
        STT_SECTION | STT_FILE | STT_TLS => None,
        STT_NOTYPE => Some(SymbolKind::Other),
        _ => Some(SymbolKind::Other),
    }
}

fn named(symbol: &Sym64<LE>, kind: SymbolKind, name: &[u8]) -> Symbol {
    let name: Arc<str> = escaped(&String::from_utf8_lossy(name)).into();
    let display = demangled(&name).map_or_else(|| Arc::clone(&name), Arc::from);
    Symbol {
        address: Gva(symbol.st_value.get(LE)),
        size: symbol.st_size.get(LE),
        name,
        display,
        kind,
        global: symbol.st_bind() != STB_LOCAL,
    }
}

/// The name as its language has it. It is looked at again: a mangled name of plain letters can stand for any
/// character.
pub(super) fn demangled(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut display = Bounded(String::new());
    write!(display, "{demangled:#}").ok()?;
    Some(escaped(&display.0).into_owned())
}

/// A string that refuses to grow past [`MAX_DISPLAY`]: a short mangled name can stand for
/// megabytes.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_DISPLAY {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_letters_that_stand_for_what_turns_text_round_are_escaped() {
        let name = "_ZN9a$u202e$b17h0123456789abcdefE";
        assert_eq!(demangled(name).as_deref(), Some("a\\u{202e}b"));
        assert_eq!(
            demangled("_ZN3foo17h0123456789abcdefE").as_deref(),
            Some("foo")
        );
        assert_eq!(demangled("foo"), None);
    }
}
