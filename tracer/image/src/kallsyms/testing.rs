//! Kallsyms tables for tests, in each layout that kernels have had.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "what a test asks for that no table can hold is a failed test"
)]

use super::aligned;

/// Where parts lie and how they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Addresses before the names (until 6.3), or after the tokens.
    pub addresses_first: bool,
    /// With the table by name between markers and tokens (6.2 and 6.3), else after it or absent.
    pub by_name: bool,
    /// Lengths of two bytes where one is not enough.
    pub wide: bool,
    /// Offsets of per-CPU symbols are addresses.
    pub absolute_percpu: bool,
    /// Whole addresses before the names.
    pub whole: bool,
    /// Offsets from where they lie themselves, without a base (since 7.0). Says where the tables lie.
    pub from_themselves: Option<u64>,
    /// What follows the tokens lies at odd multiples of four.
    pub odd: bool,
}

impl Layout {
    /// Every layout; where addresses are whole, nothing is to be said of offsets.
    #[cfg(test)]
    pub fn all() -> impl Iterator<Item = Self> {
        let is_one = |bits: &i32| bits & 16 == 0 || bits & 9 == 8;
        (0..32).filter(is_one).map(|bits| Self {
            addresses_first: bits & 1 != 0,
            by_name: bits & 2 != 0,
            wide: bits & 4 != 0,
            absolute_percpu: bits & 8 != 0,
            whole: bits & 16 != 0,
            from_themselves: None,
            odd: false,
        })
    }
}

/// Type, name and address.
pub(crate) type Entry = (u8, String, u64);

/// What a token above the characters stands for.
const WORDS: [&str; 4] = ["sys_", "__", "init", "read"];

/// The tables for `symbols`, sorted by address, with the others in front of and after them that a
/// section of data has.
pub(crate) fn tables(symbols: &[Entry], base: u64, layout: Layout) -> Vec<u8> {
    let mut out = Vec::from_iter((0..200_u8).map(|byte| byte ^ 0x5a));
    if layout.whole {
        align(&mut out, 8);
        out.extend(symbols.iter().flat_map(|(_, _, at)| at.to_le_bytes()));
    } else if layout.addresses_first {
        addresses(&mut out, symbols, base, layout);
    }
    align(&mut out, 8);
    out.extend(u32::try_from(symbols.len()).unwrap().to_le_bytes());
    align(&mut out, 8);
    let start = out.len();
    let mut markers = Vec::new();
    for (index, (letter, name, _)) in symbols.iter().enumerate() {
        if index % 256 == 0 {
            markers.push(u32::try_from(out.len() - start).unwrap());
        }
        let packed = packed(*letter, name);
        length(&mut out, packed.len(), layout);
        out.extend(packed);
    }
    align(&mut out, 8);
    out.extend(markers.iter().flat_map(|marker| marker.to_le_bytes()));
    if layout.by_name {
        align(&mut out, 8);
        let numbers = 0..u16::try_from(symbols.len()).unwrap();
        out.extend(numbers.flat_map(|number| {
            let [high, low] = number.to_be_bytes();
            [0, high, low]
        }));
    }
    align(&mut out, 8);
    tokens(&mut out, layout.odd);
    if let Some(place) = layout.from_themselves {
        align(&mut out, 4);
        for (_, _, address) in symbols {
            let here = place + out.len() as u64;
            let distance = address.wrapping_sub(here).cast_signed();
            out.extend(i32::try_from(distance).unwrap().to_le_bytes());
        }
    } else if !layout.whole && !layout.addresses_first {
        addresses(&mut out, symbols, base, layout);
    }
    out.extend([0x77; 100]);
    out
}

fn align(out: &mut Vec<u8>, to: usize) {
    out.resize(aligned(out.len(), to), 0);
}

fn addresses(out: &mut Vec<u8>, symbols: &[Entry], base: u64, layout: Layout) {
    align(out, 8);
    for (_, _, address) in symbols {
        let offset = match address.checked_sub(base) {
            None => u32::try_from(*address).unwrap(),
            Some(far) if layout.absolute_percpu => {
                (-1 - i32::try_from(far).unwrap()).cast_unsigned()
            }
            Some(far) => u32::try_from(far).unwrap(),
        };
        out.extend(offset.to_le_bytes());
    }
    align(out, 8);
    out.extend(base.to_le_bytes());
}

fn packed(letter: u8, name: &str) -> Vec<u8> {
    let mut packed = vec![letter];
    let mut rest = name;
    while let Some(first) = rest.bytes().next() {
        let word = WORDS.iter().position(|word| rest.starts_with(word));
        let (token, length) = match word {
            Some(word) => (0x80 + u8::try_from(word).unwrap(), WORDS[word].len()),
            None => (first, 1),
        };
        packed.push(token);
        rest = &rest[length..];
    }
    packed
}

fn length(out: &mut Vec<u8>, length: usize, layout: Layout) {
    if layout.wide && length > 0x7f {
        out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        out.push(u8::try_from(length >> 7).unwrap());
    } else {
        out.push(u8::try_from(length).unwrap());
    }
}

fn tokens(out: &mut Vec<u8>, odd: bool) {
    // One that no name uses makes up the length.
    let made = ["", "four"].map(table_and_index);
    let rest = if odd { 4 } else { 0 };
    let suits = |(table, _): &&(Vec<u8>, Vec<u8>)| aligned(table.len(), 4) % 8 == rest;
    let (table, index) = made.iter().find(suits).unwrap();
    out.extend(table);
    align(out, 4);
    out.extend(index);
}

fn table_and_index(unused: &str) -> (Vec<u8>, Vec<u8>) {
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for token in 0..=255_u8 {
        index.extend(u16::try_from(table.len()).unwrap().to_le_bytes());
        match token {
            0x21..=0x7e => table.push(token),
            0x80..0x84 => table.extend(WORDS[usize::from(token - 0x80)].bytes()),
            0xff => table.extend(unused.bytes()),
            _ => {}
        }
        table.push(0);
    }
    (table, index)
}
