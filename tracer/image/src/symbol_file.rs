//! Symbols that are given beside a kernel: System.map, or the kernel before it was stripped. Those of
//! another build look much the same, and with them the wrong functions would be patched: so they must agree
//! with everything that this kernel says of itself.

use std::collections::HashMap;

use terms::addr::{Gva, Slide};
use terms::printable::escaped;

use super::elf::Elf;
use super::linux::BANNER;
use super::{
    Image, ImageError, Symbol, SymbolKind, SymbolTable, TextRange, nm, symtab, text_range,
};

/// What is shown of a line that is no symbol.
const SHOWN: usize = 40;
/// Of a hundred functions, so many must lie in the text of the kernel.
const IN_TEXT: usize = 90;

/// Of a hundred names in common, so many must be in the same place.
const AGREEING: usize = 99;
/// Of a hundred listed sites, so many may be none: Linux has some of weak functions that were replaced.
const SKIPPED: usize = 10;

/// The symbols in `file`, for the kernel `elf` with symbols of its `own`, if any.
pub(super) fn read(
    file: &[u8],
    elf: &Elf<'_>,
    own: &SymbolTable,
) -> Result<SymbolTable, ImageError> {
    let text = elf.text();
    let table = table(file, &text)?;
    check(&table, &text, elf, own)?;
    Ok(table)
}

/// The symbols in `file`, for the kernel `elf` that runs, with symbols of its `own`, if any: moved so that the one of
/// this name lies where it runs.
pub(super) fn read_moved(
    file: &[u8],
    elf: &Elf<'_>,
    own: &SymbolTable,
    (name, runs): (&'static str, Gva),
) -> Result<(SymbolTable, Slide), ImageError> {
    let text = elf.text();
    let linked = table(file, &text)?.address_of(name);
    let linked = linked.ok_or(ImageError::SymbolMissing { name })?;
    let slide = Slide(runs.0.wrapping_sub(linked.0));
    let back = Slide(linked.0.wrapping_sub(runs.0));
    let as_linked: Vec<TextRange> = text.iter().map(|range| range.moved_by(back)).collect();
    let table = table(file, &as_linked)?.moved_by(slide);
    check(&table, &text, elf, own)?;
    Ok((table, slide))
}

/// All symbols, of which those of code outside of `text` are no functions.
fn table(file: &[u8], text: &[TextRange]) -> Result<SymbolTable, ImageError> {
    if !file.starts_with(b"\x7fELF") {
        return system_map(file, text);
    }
    let bad = |error| ImageError::BadSymbolFile(Box::new(error));
    symtab::read(&Elf::parse(file).map_err(bad)?).map_err(bad)
}

/// Whether the symbols agree with what the kernel says of itself.
fn check(
    table: &SymbolTable,
    text: &[TextRange],
    elf: &Elf<'_>,
    own: &SymbolTable,
) -> Result<(), ImageError> {
    let is_function = |symbol: &&Symbol| symbol.kind == SymbolKind::Function;
    let functions = table.iter().filter(is_function).count();
    let in_text = |symbol: &&Symbol| text_range(text, symbol.address).is_some();
    let inside = table.iter().filter(is_function).filter(in_text).count();
    if inside * 100 < functions * IN_TEXT || functions == 0 {
        return Err(ImageError::OtherSymbols { functions, inside });
    }
    check_banner(elf, table)?;
    check_names(own, table)
}

/// The version of a Linux kernel must lie where the symbols have it.
fn check_banner(elf: &Elf<'_>, given: &SymbolTable) -> Result<(), ImageError> {
    let Some(at) = given.address_of("linux_banner") else {
        return Ok(());
    };
    if elf.bytes_at(at, BANNER.len() as u64) == BANNER {
        return Ok(());
    }
    Err(ImageError::OtherBanner { at })
}

/// What the kernel's own symbols have, too, must be in the same place.
fn check_names(own: &SymbolTable, given: &SymbolTable) -> Result<(), ImageError> {
    let (own, given) = (unambiguous(own), unambiguous(given));
    let common = || {
        let both = given.iter().filter_map(|(name, at)| Some((name, (*at)?)));
        both.filter_map(|(name, at)| Some((name, at, (*own.get(name)?)?)))
    };
    let moved = || common().filter(|(_, given, own)| given != own);
    let (names, elsewhere) = (common().count(), moved().count());
    if elsewhere * 100 <= names * (100 - AGREEING) {
        return Ok(());
    }
    // The lowest, so that the same is said each time.
    let first = moved().min_by_key(|(name, _, own)| (*own, *name));
    let Some((name, given, own)) = first else {
        return Ok(());
    };
    Err(ImageError::OtherAddresses {
        names,
        elsewhere,
        name: escaped(name).into_owned(),
        given,
        own,
    })
}

/// The address of each name; none where there are several.
fn unambiguous(symbols: &SymbolTable) -> HashMap<&str, Option<Gva>> {
    let mut addresses = HashMap::new();
    for symbol in symbols.iter() {
        let of = addresses
            .entry(&*symbol.name)
            .or_insert(Some(symbol.address));
        of.take_if(|at| *at != symbol.address);
    }
    addresses
}

/// What a Linux kernel lists as its function sites must lie where the symbols have functions.
pub(super) fn check_sites(image: &Image) -> Result<(), ImageError> {
    let (sites, skipped) = (image.sites.len(), image.skipped.len());
    let listed = sites + skipped;
    if image.linux.is_none() || sites * 100 >= listed * (100 - SKIPPED) {
        return Ok(());
    }
    Err(ImageError::OtherSites { listed, sites })
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
                found: escaped(&line).chars().take(SHOWN).collect(),
            });
        };
        symbols.push(nm::symbol(address, letter, name, text));
    }
    nm::demote_labels(&mut symbols);
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
