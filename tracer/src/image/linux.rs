//! What is particular to a Linux kernel: the ranges that its symbols bound, and its version.

use super::btf::Btf;
use super::elf::Elf;
use super::{SymbolTable, TextRange};
use crate::addr::{Gpa, Gva};
use crate::kernel_view::KernelTables;
use crate::kprobes::KprobeLayout;
use crate::module::ModuleLayout;
use crate::target::PhysicalMemory;
use crate::task::TaskLayout;

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
    /// How its memory tells whether init text is still there; without this it is taken to be gone.
    pub init: Option<InitState>,
    /// Where to find its modules, if it has any and they can be traced.
    pub modules: Option<ModuleLayout>,
    /// Where to find its own probes, if it has any.
    pub kprobes: Option<KprobeLayout>,
    /// Where to find its tasks.
    pub tasks: Option<TaskLayout>,
    /// Whether it turns its own function sites into nops (`ftrace_init`), so that they are not
    /// to be touched before that.
    pub prepares_sites: bool,
}

impl Linux {
    /// What `elf` says of itself, if it is a Linux kernel. Remarks go to `notes`.
    pub(super) fn find(
        elf: &Elf<'_>,
        symbols: &SymbolTable,
        notes: &mut Vec<String>,
    ) -> Option<Self> {
        let version = elf.loaded().find_map(|(_, bytes)| version(bytes))?;
        let range = |start, end| {
            let (start, end) = (symbols.address_of(start)?, symbols.address_of(end)?);
            (start < end).then_some(TextRange { start, end })
        };
        let btf = types(elf, symbols, notes);
        let tables = KernelTables::find(symbols, |address| elf.physical(address));
        let typed = || btf.as_ref().zip(tables);
        Some(Self {
            version,
            text: range("_stext", "_etext"),
            init_text: range("_sinittext", "_einittext"),
            rodata: range("__start_rodata", "__end_rodata"),
            init: btf
                .as_ref()
                .and_then(|btf| InitState::find(elf, symbols, btf)),
            modules: typed().and_then(|(btf, tables)| ModuleLayout::find(btf, symbols, tables)),
            kprobes: typed().and_then(|(btf, tables)| KprobeLayout::find(btf, symbols, tables)),
            tasks: typed().and_then(|(btf, tables)| TaskLayout::find(btf, symbols, tables)),
            prepares_sites: symbols.address_of("ftrace_init").is_some(),
        })
    }

    /// Whether the code at `address` stays for as long as the kernel runs. What lies outside
    /// `_stext.._etext` is freed when it has started.
    #[must_use]
    pub fn lasts(&self, address: Gva) -> bool {
        self.text.is_none_or(|text| text.holds(address, 1))
    }

    /// Whether the code that does not last may have been freed. `memory` is the guest's.
    #[must_use]
    pub fn init_is_gone(&self, memory: &(impl PhysicalMemory + ?Sized)) -> bool {
        let mut word = [0; 4];
        match self.init {
            Some(InitState { at, gone_from }) => {
                memory.read_physical(at, &mut word).is_err()
                    || u32::from_le_bytes(word) >= gone_from
            }
            None => true,
        }
    }
}

/// `system_state`, which the kernel raises before it frees init text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitState {
    /// Where it lies.
    pub at: Gpa,
    /// Its first value with which init text may be gone.
    pub gone_from: u32,
}

impl InitState {
    fn find(elf: &Elf<'_>, symbols: &SymbolTable, btf: &Btf<'_>) -> Option<Self> {
        let value = |name| btf.enumerator("system_states", name);
        // Before 5.15 nothing is raised between the last init function and the freeing, so there init
        // text has to count as gone from the value on with which initcalls run.
        let gone_from = value("SYSTEM_FREEING_INITMEM").or_else(|| value("SYSTEM_SCHEDULING"))?;
        let at = elf.physical(symbols.address_of("system_state")?)?;
        Some(Self { at, gone_from })
    }
}

/// The bytes of the kernel's types.
pub(super) fn btf_section<'a>(elf: &Elf<'a>, symbols: &SymbolTable) -> Option<&'a [u8]> {
    let bounded = || {
        let start = symbols.address_of("__start_BTF")?;
        let length = symbols.address_of("__stop_BTF")?.0.checked_sub(start.0)?;
        Some(elf.bytes_at(start, length))
    };
    let section = elf.sections_named(".BTF").first().map(|(_, bytes)| *bytes);
    section.or_else(bounded)
}

/// The kernel's types.
fn types<'a>(elf: &Elf<'a>, symbols: &SymbolTable, notes: &mut Vec<String>) -> Option<Btf<'a>> {
    match Btf::parse(btf_section(elf, symbols)?) {
        Ok(btf) => {
            notes.push(format!("BTF: {} types", btf.len()));
            Some(btf)
        }
        Err(error) => {
            notes.push(error.to_string());
            None
        }
    }
}

fn version(bytes: &[u8]) -> Option<String> {
    let at = memchr::memmem::find(bytes, BANNER)? + BANNER.len();
    let banner = bytes.get(at..)?;
    let banner = banner.get(..VERSION_MAX).unwrap_or(banner);
    let length = banner.iter().position(|byte| !byte.is_ascii_graphic())?;
    let version = banner.get(..length)?;
    let is_version = version.first().is_some_and(u8::is_ascii_digit);
    is_version.then(|| String::from_utf8_lossy(version).into_owned())
}
