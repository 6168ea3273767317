//! The static calls of a Linux kernel: its own dynamic functions. Each has a *trampoline*
//! (`__SCT__NAME`), which is a jump that the kernel retargets, and a *key* (`__SCK__NAME`); calls of it in
//! line are listed between `__start_static_call_sites` and `__stop_static_call_sites` as two signed 32-bit
//! distances: to the call, and to the key, whose low bits are flags (Linux, `include/linux/static_call_types.h`).
//!
//! The kernel changes them itself, so they are shown and left alone.

use std::collections::HashMap;
use std::sync::Arc;

use insn::jump::jump_target;
use terms::addr::Gva;
use terms::site::SITE_LENGTH;

use super::Image;
use super::elf::Elf;

const TRAMPOLINE: &str = "__SCT__";
const KEY: &str = "__SCK__";
const SITES: (&str, &str) = ("__start_static_call_sites", "__stop_static_call_sites");
/// What the names of the functions end with that a kernel returns by which protects its returns. One jump to such a function
/// is all of a static call that returns at once.
const RETURN_THUNK: &str = "_return_thunk";
/// Flags in the low bits of a distance to a key.
const FLAGS: u64 = 3;

/// One static call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticCall {
    /// Its name.
    pub name: Arc<str>,
    /// Its trampoline.
    pub trampoline: Gva,
    /// Where it leads in the image; none when it returns at once.
    pub default: Option<Gva>,
    /// Calls of it in line.
    pub sites: usize,
}

impl StaticCall {
    /// Where it leads in `image` when these are the bytes of its trampoline; none when it returns at once.
    #[must_use]
    pub fn target(&self, image: &Image, bytes: [u8; SITE_LENGTH]) -> Option<Gva> {
        target(image, self.trampoline, bytes)
    }
}

fn target(image: &Image, trampoline: Gva, bytes: [u8; SITE_LENGTH]) -> Option<Gva> {
    let to = jump_target(trampoline, bytes)?;
    let function = image.function_at(to).and_then(|id| image.function(id));
    let returns = function.is_some_and(|function| {
        let mut names = function.names();
        function.address == to && names.any(|name| name.ends_with(RETURN_THUNK))
    });
    (!returns).then_some(to)
}

/// Every static call that the symbols name, by name.
pub(super) fn read(elf: &Elf<'_>, image: &mut Image) {
    let sites = sites(elf, image);
    let one = |name: &str, trampoline: Gva| {
        let bytes = elf.bytes_at(trampoline, SITE_LENGTH as u64).try_into().ok();
        let key = image.symbols.address_of(&format!("{KEY}{name}"));
        StaticCall {
            name: name.into(),
            trampoline,
            default: bytes.and_then(|bytes| target(image, trampoline, bytes)),
            sites: key.and_then(|key| sites.get(&key)).copied().unwrap_or(0),
        }
    };
    let mut calls: Vec<StaticCall> = image
        .symbols
        .iter()
        .filter_map(|symbol| Some((symbol.name.strip_prefix(TRAMPOLINE)?, symbol.address)))
        .filter(|(_, at)| image.is_text(*at, SITE_LENGTH as u64))
        .map(|(name, at)| one(name, at))
        .collect();
    calls.sort_by(|one, other| one.name.cmp(&other.name));
    calls.dedup_by(|one, other| one.name == other.name);
    if !calls.is_empty() {
        let (count, sites) = (calls.len(), sites.values().sum::<usize>());
        image
            .notes
            .push(format!("{count} static calls, {sites} sites"));
    }
    image.static_calls = calls;
}

/// How many calls of each key there are in line.
fn sites(elf: &Elf<'_>, image: &Image) -> HashMap<Gva, usize> {
    let mut sites: HashMap<Gva, usize> = HashMap::new();
    let bound = |name| image.symbols.address_of(name);
    let (Some(start), Some(stop)) = (bound(SITES.0), bound(SITES.1)) else {
        return sites;
    };
    let data = elf.bytes_at(start, stop.0.saturating_sub(start.0));
    let (entries, _) = data.as_chunks::<8>();
    for (entry, number) in entries.iter().zip(0u64..) {
        let [_, _, _, _, distance @ ..] = entry;
        let distance = i64::from(i32::from_le_bytes(*distance));
        let from = start.wrapping_add(8 * number + 4);
        let key = from.0.wrapping_add_signed(distance) & !FLAGS;
        *sites.entry(Gva(key)).or_default() += 1;
    }
    sites
}

#[cfg(test)]
mod tests {
    use insn::jump::jump;

    use super::*;
    use crate::testing::{ElfFile, TEXT, body};

    const TABLE: u64 = TEXT - 0x8_0000;
    const KEYS: u64 = TEXT - 0x7_0000;

    /// An entry at `at` of the list of calls, for the key at `key` with these flags.
    fn entry(at: u64, key: u64, flags: u64) -> u64 {
        let distance = (key | flags).wrapping_sub(at + 4);
        distance << 32 | 0x1234
    }

    #[test]
    fn trampolines_keys_and_sites_are_read() {
        let [first, second, third] = [TEXT, TEXT + 0x10, TEXT + 0x20];
        let leads = jump(Gva(first), Gva(third)).unwrap();
        let text = [body(&leads), body(&[0xc3]), body(&[0xc3])].concat();
        let table = [(0, 0), (0, 1), (8, 2)].into_iter().zip(0u64..);
        let table: Vec<u64> = table
            .map(|((key, flags), n)| entry(TABLE + 8 * n, KEYS + key, flags))
            .collect();
        let file = ElfFile::new()
            .text(TEXT, &text)
            .list(".data", TABLE, &table)
            .list(".keys", KEYS, &[0, 0])
            .function("__SCT__leads", first, 8)
            .function("__SCT__returns", second, 8)
            .function("target", third, 8)
            .label("__SCK__leads", KEYS)
            .label("__SCK__returns", KEYS + 8)
            .label(SITES.0, TABLE)
            .label(SITES.1, TABLE + 24);
        let image = Image::parse(&file.build()).unwrap();
        let calls: Vec<_> = image
            .static_calls
            .iter()
            .map(|call| (&*call.name, call.default, call.sites))
            .collect();
        assert_eq!(
            calls,
            [("leads", Some(Gva(third)), 2), ("returns", None, 1)]
        );
    }

    #[test]
    fn a_jump_to_what_returns_is_a_return() {
        let [one, two, thunk, after] = [0, 0x10, 0x20, 0x30].map(|offset| TEXT + offset);
        let jumps = [(one, thunk), (two, thunk + 1)];
        let jumps = jumps.map(|(at, to)| body(&jump(Gva(at), Gva(to)).unwrap()));
        let text = [&jumps.concat()[..], &body(&[0xc3]), &body(&[0xc3])].concat();
        for (name, alias, is_one) in [
            ("__x86_return_thunk", "__pi___x86_return_thunk", true),
            ("other_name", "srso_return_thunk", true),
            ("return_thunk_of", "nothing", false),
        ] {
            let file = ElfFile::new()
                .text(TEXT, &text)
                .function("__SCT__one", one, 8)
                .function("__SCT__two", two, 8)
                .function(name, thunk, 16)
                .function(alias, thunk, 16)
                .function("after", after, 16);
            let image = Image::parse(&file.build()).unwrap();
            let found: Vec<_> = image.static_calls.iter().map(|one| one.default).collect();
            // Into the middle of it is no return.
            let expected = (!is_one).then_some(Gva(thunk));
            assert_eq!(found, [expected, Some(Gva(thunk + 1))], "{name}");
        }
    }
}
