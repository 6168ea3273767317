//! What is particular to the file of a Linux kernel: the ranges that its symbols bound, its version, its types.

use std::sync::Arc;

use terms::addr::Gva;

use super::elf::Elf;
use super::{SymbolTable, TextRange};

/// What a kernel's version string begins with (`linux_banner`).
pub(super) const BANNER: &[u8] = b"Linux version ";
/// A version is not longer than that.
const VERSION_MAX: usize = 64;
/// Nor is a banner longer than that.
const BANNER_MAX: usize = 512;
/// What bounds a kernel's notes, and its section with them.
const NOTES: (&str, &str, &str) = ("__start_notes", "__stop_notes", ".notes");
/// The owner of the note with the build id, its type, and the longest one.
const BUILD_ID: (&[u8], u32) = (b"GNU\0", 3);
const BUILD_ID_MAX: usize = 64;

/// A Linux kernel. Its addresses are as linked: they are where it runs as long as it is loaded at
/// its own address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linux {
    /// Its version, as `6.1.0-56-cloud-amd64`.
    pub version: String,
    /// `_stext.._etext`.
    pub text: Option<TextRange>,
    /// `_sinittext.._einittext`: text that the kernel frees when it has started.
    pub init_text: Option<TextRange>,
    /// `__start_rodata..__end_rodata`.
    pub rodata: Option<TextRange>,
    /// Whether it turns its own function sites into nops (`ftrace_init`), so that they are not
    /// to be touched before that.
    pub prepares_sites: bool,
    /// What tells this build from all others.
    pub identity: Identity,
}

/// What tells one build of a kernel from all others: bytes, and where they lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `linux_banner`: version, who built it, with what, and when.
    pub banner: Option<(Gva, Arc<str>)>,
    /// The build id that the linker has made of all of it.
    pub build_id: Option<(Gva, Arc<[u8]>)>,
}

impl Identity {
    fn find(elf: &Elf<'_>, symbols: &SymbolTable) -> Self {
        let mut pieces = elf.loaded();
        Self {
            banner: pieces.find_map(|(start, bytes)| banner(start, bytes)),
            build_id: notes(elf, symbols).and_then(|(start, notes)| build_id(start, notes)),
        }
    }
}

impl Linux {
    /// What `elf` says of itself, if it is a Linux kernel.
    pub(super) fn find(elf: &Elf<'_>, symbols: &SymbolTable) -> Option<Self> {
        let version = elf.loaded().find_map(|(_, bytes)| version(bytes))?;
        let range = |start, end| {
            let (start, end) = (symbols.address_of(start)?, symbols.address_of(end)?);
            (start < end).then_some(TextRange { start, end })
        };
        Some(Self {
            version,
            text: range("_stext", "_etext"),
            init_text: range("_sinittext", "_einittext"),
            rodata: range("__start_rodata", "__end_rodata"),
            prepares_sites: symbols.address_of("ftrace_init").is_some(),
            identity: Identity::find(elf, symbols),
        })
    }

    /// Whether the code at `address` stays for as long as the kernel runs. What lies outside
    /// `_stext.._etext` is freed when it has started.
    #[must_use]
    pub fn lasts(&self, address: Gva) -> bool {
        self.text.is_none_or(|text| text.holds(address, 1))
    }
}

/// The bytes in which a kernel describes its types.
pub(super) fn btf<'a>(elf: &Elf<'a>, symbols: &SymbolTable) -> Option<&'a [u8]> {
    let bounded = || {
        let start = symbols.address_of("__start_BTF")?;
        let length = symbols.address_of("__stop_BTF")?.0.checked_sub(start.0)?;
        Some(elf.bytes_at(start, length))
    };
    let section = elf.sections_named(".BTF").first().map(|(_, bytes)| *bytes);
    section.or_else(bounded)
}

/// The first banner in `bytes`, which lie at `start`: up to the end of its line.
#[must_use]
pub fn banner(start: Gva, bytes: &[u8]) -> Option<(Gva, Arc<str>)> {
    let mut found = memchr::memmem::find_iter(bytes, BANNER);
    found.find_map(|at| {
        let text = bytes.get(at..)?;
        let text = text.get(..BANNER_MAX).unwrap_or(text);
        let end = text.iter().position(|byte| matches!(byte, 0 | b'\n'))?;
        let text = text.get(..end)?;
        let is_one = text.get(BANNER.len()).is_some_and(u8::is_ascii_digit);
        let is_text = text.iter().all(|byte| (b' '..=b'~').contains(byte));
        let text = String::from_utf8_lossy(text).into();
        (is_one && is_text).then_some((start.wrapping_add(at as u64), text))
    })
}

/// The notes, and where they lie.
fn notes<'a>(elf: &Elf<'a>, symbols: &SymbolTable) -> Option<(Gva, &'a [u8])> {
    let (start, stop, section) = NOTES;
    let bounded = || {
        let start = symbols.address_of(start)?;
        let length = symbols.address_of(stop)?.0.checked_sub(start.0)?;
        Some((start, elf.bytes_at(start, length)))
    };
    elf.sections_named(section)
        .first()
        .copied()
        .or_else(bounded)
}

/// The build id among notes that lie at `start`.
fn build_id(start: Gva, notes: &[u8]) -> Option<(Gva, Arc<[u8]>)> {
    let mut at = 0_usize;
    loop {
        let rest = notes.get(at..)?;
        let (header, rest) = rest.split_first_chunk::<12>()?;
        let [name, length, kind] = words(header);
        let described = aligned(name)?;
        let next = described.checked_add(aligned(length)?)?;
        let id = rest.get(described..described.checked_add(length as usize)?)?;
        let is_id = rest.get(..name as usize) == Some(BUILD_ID.0) && kind == BUILD_ID.1;
        if is_id && (1..=BUILD_ID_MAX).contains(&id.len()) {
            let id_at = at.checked_add(12)?.checked_add(described)?;
            return Some((start.wrapping_add(id_at as u64), id.into()));
        }
        at = at.checked_add(12)?.checked_add(next)?;
    }
}

fn words(header: &[u8; 12]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}

/// The length of a part of a note, up to the next one.
fn aligned(length: u32) -> Option<usize> {
    usize::try_from(length).ok()?.checked_next_multiple_of(4)
}

pub(super) fn version(bytes: &[u8]) -> Option<String> {
    let at = memchr::memmem::find(bytes, BANNER)? + BANNER.len();
    let banner = bytes.get(at..)?;
    let banner = banner.get(..VERSION_MAX).unwrap_or(banner);
    let length = banner.iter().position(|byte| !byte.is_ascii_graphic())?;
    let version = banner.get(..length)?;
    let is_version = version.first().is_some_and(u8::is_ascii_digit);
    is_version.then(|| String::from_utf8_lossy(version).into_owned())
}
