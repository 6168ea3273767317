//! Symbols that are given beside a kernel: System.map, or the kernel before it was stripped.

use super::elf::Elf;
use super::{ImageError, Symbol, SymbolKind, SymbolTable, TextRange, letter, symtab, text_range};
use crate::addr::Gva;

/// What is shown of a line that is no symbol.
const SHOWN: usize = 40;
/// Of a hundred functions, so many must lie in the text of the kernel.
const IN_TEXT: usize = 90;

/// The symbols in `file`, for a kernel with this text.
pub(super) fn read(file: &[u8], text: &[TextRange]) -> Result<SymbolTable, ImageError> {
    let table = if file.starts_with(b"\x7fELF") {
        symtab::read(&Elf::parse(file)?)?
    } else {
        system_map(file, text)?
    };
    let is_function = |symbol: &&Symbol| symbol.kind == SymbolKind::Function;
    let functions = table.iter().filter(is_function).count();
    let in_text = |symbol: &&Symbol| text_range(text, symbol.address).is_some();
    let inside = table.iter().filter(is_function).filter(in_text).count();
    if inside * 100 < functions * IN_TEXT || functions == 0 {
        return Err(ImageError::OtherSymbols { functions, inside });
    }
    Ok(table)
}

/// Lines of `ADDRESS TYPE NAME`.
fn system_map(file: &[u8], text: &[TextRange]) -> Result<SymbolTable, ImageError> {
    let mut symbols = Vec::new();
    for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let line = String::from_utf8_lossy(line);
        let Some((address, letter, name)) = fields(&line) else {
            return Err(ImageError::NotSymbols {
                line: index + 1,
                found: symtab::printable(&line).chars().take(SHOWN).collect(),
            });
        };
        symbols.push(letter::symbol(address, letter, name, text));
    }
    letter::demote_labels(&mut symbols);
    Ok(SymbolTable::new(symbols))
}

fn fields(line: &str) -> Option<(Gva, u8, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let (letter, name) = rest.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let &[letter] = letter.as_bytes() else {
        return None;
    };
    (!name.is_empty()).then_some((Gva(address), letter, name))
}
