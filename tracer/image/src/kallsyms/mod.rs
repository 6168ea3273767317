//! The symbols that a Linux kernel carries for its own messages: names packed with a table of 256
//! tokens, and addresses as offsets to a base.
//!
//! The layout differs between versions (offsets before the names, or after the tokens since 6.4; a
//! table by name after the markers since 6.2 and where that was backported; lengths of two bytes
//! since 6.1; offsets without a base since 7.0), so no version is asked for. What cannot be mistaken is found first, the token table
//! with its index; each further part is where it must be next to the last one, and is believed
//! when all of it decodes: every 256th name begins where its marker says, and code symbols lie where code
//! is.
//!
//! Facts: `scripts/kallsyms.c` and `kernel/kallsyms.c` of Linux 5.10 to 6.12; read without a difference to
//! System.map up to 7.3 (`tests/tests/linux_image`).

mod addresses;
mod names;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tokens;
mod unread;

use terms::addr::Gva;
pub use unread::UnreadSymbols;

use self::names::Names;
use self::tokens::Tokens;
use super::elf::Elf;
use super::nm;
use super::{ImageError, Symbol};

/// All names together may be this many times as long as the file.
const NAMES_PER_FILE: usize = 4;
/// What looks like a table of tokens, in one segment: a kernel has one, and for each all before it is looked through.
const TABLES_MAX: usize = 16;

/// What became of a kernel's own symbols.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// Empty where there are none that could be read.
    pub symbols: Vec<Symbol>,
    /// Why some are there and were not read.
    pub unread: Option<UnreadSymbols>,
}

/// All symbols of the kernel in `elf`.
///
/// # Errors
/// [`ImageError::AbsurdNames`] when the tokens make far more of the names than any kernel has.
pub(super) fn read(elf: &Elf<'_>, notes: &mut Vec<String>) -> Result<Read, ImageError> {
    let mut unread = None;
    for (start, bytes) in elf.loaded() {
        for tokens in tokens::find(bytes).take(TABLES_MAX) {
            match addresses(elf, start, bytes, &tokens) {
                Ok((names, addresses)) => {
                    notes.push(format!("kallsyms: {} symbols", names.count));
                    let symbols = symbols(elf, &tokens, &names, &addresses)?;
                    let unread = None;
                    return Ok(Read { symbols, unread });
                }
                Err(why) => {
                    notes.push(format!("kallsyms: {why}"));
                    unread = Some(why);
                }
            }
        }
    }
    let symbols = Vec::new();
    Ok(Read { symbols, unread })
}

/// The names that belong to `tokens` in the segment at `start`, and their addresses.
fn addresses<'a>(
    elf: &Elf<'_>,
    start: Gva,
    bytes: &'a [u8],
    tokens: &Tokens<'_>,
) -> Result<(Names<'a>, Vec<Gva>), UnreadSymbols> {
    let at = Gva(start.0.saturating_add(tokens.start as u64));
    let names = names::find(bytes, tokens).ok_or(UnreadSymbols::Names { tokens: at })?;
    let addresses = addresses::find((start, bytes), tokens, &names, &elf.claimed_code())?;
    Ok((names, addresses))
}

fn symbols(
    elf: &Elf<'_>,
    tokens: &Tokens<'_>,
    names: &Names<'_>,
    addresses: &[Gva],
) -> Result<Vec<Symbol>, ImageError> {
    let text = elf.text();
    let limit = elf.bytes.len().saturating_mul(NAMES_PER_FILE);
    let mut total = 0_usize;
    let mut symbols = Vec::with_capacity(addresses.len());
    for (packed, &address) in names.entries().zip(addresses) {
        let Some((letter, name)) = tokens.expand(packed) else {
            continue;
        };
        let symbol = nm::symbol(address, letter, &name, &text);
        // A short name can stand for a long one of its language.
        let both = symbol.name.len().saturating_add(symbol.display.len());
        total = total.saturating_add(both);
        if total > limit {
            let limit = limit as u64;
            return Err(ImageError::AbsurdNames { limit });
        }
        symbols.push(symbol);
    }
    nm::demote_labels(&mut symbols);
    Ok(symbols)
}

/// The word at `offset`.
fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let word = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

/// `offset` rounded up to `align`, a power of two.
fn aligned(offset: usize, align: usize) -> usize {
    offset.saturating_add(align - 1) & !(align - 1)
}
