//! What is particular to the file of a Linux kernel: the ranges that its symbols bound, its version, its types.

use terms::addr::Gva;

use super::elf::Elf;
use super::{SymbolTable, TextRange};

/// What a kernel's version string begins with (`linux_banner`).
pub(super) const BANNER: &[u8] = b"Linux version ";
/// A version is not longer than that.
const VERSION_MAX: usize = 64;

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

pub(super) fn version(bytes: &[u8]) -> Option<String> {
    let at = memchr::memmem::find(bytes, BANNER)? + BANNER.len();
    let banner = bytes.get(at..)?;
    let banner = banner.get(..VERSION_MAX).unwrap_or(banner);
    let length = banner.iter().position(|byte| !byte.is_ascii_graphic())?;
    let version = banner.get(..length)?;
    let is_version = version.first().is_some_and(u8::is_ascii_digit);
    is_version.then(|| String::from_utf8_lossy(version).into_owned())
}
