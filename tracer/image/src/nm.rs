//! Symbols whose type is a letter, as `nm`, System.map and kallsyms write it.

use std::sync::Arc;

use terms::addr::Gva;
use terms::printable::escaped;

use super::symtab::demangled;
use super::{Symbol, SymbolKind, TextRange, text_range};

/// What linker scripts put before or after the functions of a section.
const BOUNDS: [&str; 5] = ["_text", "_stext", "_etext", "_sinittext", "_einittext"];
/// Entries of the padding before functions, made by objtool and clang.
const PADDING: [&str; 2] = ["__pfx_", "__cfi_"];

/// A symbol without a size. Code outside `text` is no function.
pub(super) fn symbol(address: Gva, letter: u8, name: &str, text: &[TextRange]) -> Symbol {
    let name: Arc<str> = escaped(name).into();
    let display = demangled(&name).map_or_else(|| Arc::clone(&name), Arc::from);
    let is_padding = PADDING.iter().any(|start| name.starts_with(start));
    let kind = match letter.to_ascii_lowercase() {
        b't' | b'w' | b'i' if !is_padding && text_range(text, address).is_some() => {
            SymbolKind::Function
        }
        b'b' | b'd' | b'g' | b'r' | b's' | b'v' => SymbolKind::Object,
        _ => SymbolKind::Other,
    };
    Symbol {
        address,
        size: 0,
        name,
        display,
        kind,
        // The lower letters of weak symbols say something else.
        global: letter.is_ascii_uppercase() || matches!(letter, b'v' | b'w' | b'i'),
    }
}

/// Makes labels of what bounds a section and lies where a function begins: `__softirqentry_text_start`
/// is no name for that.
pub(super) fn demote_labels(symbols: &mut [Symbol]) {
    symbols.sort_by_key(|symbol| symbol.address);
    for group in symbols.chunk_by_mut(|a, b| a.address == b.address) {
        let is_function = |symbol: &Symbol| symbol.kind == SymbolKind::Function;
        if group
            .iter()
            .any(|symbol| is_function(symbol) && !is_bound(&symbol.name))
        {
            for symbol in group.iter_mut().filter(|symbol| is_function(symbol)) {
                if is_bound(&symbol.name) {
                    symbol.kind = SymbolKind::Other;
                }
            }
        }
    }
}

fn is_bound(name: &str) -> bool {
    let of_section = name.starts_with("__")
        && ["_start", "_end", "_begin"]
            .iter()
            .any(|end| name.ends_with(end));
    of_section || BOUNDS.contains(&name)
}
