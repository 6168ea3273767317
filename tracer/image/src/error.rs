//! Why bytes are no guest image that can be traced.

use terms::addr::Gva;
use terms::site::HexBytes;

use super::UnreadSymbols;

/// Why a guest image was refused. Every number in it comes from the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The file has no bytes.
    #[error("the image is empty: build or copy it again")]
    Empty,
    /// The first bytes are not those of an ELF file.
    #[error("neither an ELF file nor a bzImage: it begins with {}", HexBytes(.found))]
    NotElf {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// An ELF file of another word size.
    #[error("{class} ELF file, expected a 64-bit one: build the guest for x86-64")]
    Not64Bit {
        /// What its class byte says.
        class: &'static str,
    },
    /// A big-endian file.
    #[error("not a little-endian ELF file (data encoding {encoding}): build the guest for x86-64")]
    NotLittleEndian {
        /// Its data encoding byte.
        encoding: u8,
    },
    /// Another machine.
    #[error("ELF file for machine {machine}: build the guest for x86-64 (62)")]
    NotX86 {
        /// The machine number.
        machine: u16,
    },
    /// Not a linked program.
    #[error("ELF file is {found}, expected an executable: link it first")]
    NotExecutable {
        /// What it is.
        found: &'static str,
    },
    /// A header table or section reaches past the end of the file.
    #[error(
        "{what} at file offset {offset:#x}, {length:#x} bytes long, reaches past the end of the \
         file ({file:#x} bytes): the image is truncated or damaged"
    )]
    PastEnd {
        /// What does.
        what: String,
        /// Its offset in the file.
        offset: u64,
        /// Its length.
        length: u64,
        /// The length of the file.
        file: u64,
    },
    /// A header holds something else that cannot be.
    #[error("damaged ELF file: {0}; build or copy it again")]
    Damaged(String),
    /// Nothing would be loaded.
    #[error("the ELF file has no load segments: there is nothing to run")]
    NoSegments,
    /// More bytes in the file than in memory.
    #[error(
        "load segment {index}: {filesz:#x} bytes in the file but {memsz:#x} in memory: the image is damaged"
    )]
    FileLargerThanMemory {
        /// Number of the program header.
        index: usize,
        /// Bytes in the file.
        filesz: u64,
        /// Bytes in memory.
        memsz: u64,
    },
    /// A segment that no guest has memory for, or that wraps around the address space.
    #[error(
        "load segment {index}: {memsz:#x} bytes at {address:#x} is more than an image can be \
         (limit {limit:#x} bytes, below the end of the address space)"
    )]
    AbsurdSegment {
        /// Number of the program header.
        index: usize,
        /// Its virtual or physical address.
        address: u64,
        /// Bytes in memory.
        memsz: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// Two segments want the same memory.
    #[error("load segments {first} and {second} overlap at {space} address {address:#x}")]
    Overlap {
        /// Number of the lower program header.
        first: usize,
        /// Number of the other.
        second: usize,
        /// `virtual` or `physical`.
        space: &'static str,
        /// Where the overlap begins.
        address: u64,
    },
    /// Headers that together claim far more than their file has.
    #[error(
        "the {what} together hold {claimed:#x} bytes, more than twice what the file has ({file:#x}): they lie over \
         each other, the image is damaged"
    )]
    AbsurdClaims {
        /// What they are headers of.
        what: &'static str,
        /// How many bytes they claim.
        claimed: u64,
        /// The length of the file.
        file: u64,
    },
    /// Symbol names that together are far longer than their file.
    #[error("the symbol names together are longer than {limit:#x} bytes: the string table lies")]
    AbsurdNames {
        /// The most that is accepted.
        limit: u64,
    },
    /// A file of symbols that is none.
    #[error(
        "no file of symbols: line {line} is `{found}`, expected `ADDRESS TYPE NAME` as in \
         System.map, or an ELF file"
    )]
    NotSymbols {
        /// Number of the line, from 1.
        line: usize,
        /// What it begins with.
        found: String,
    },
    /// A file of symbols that is a damaged ELF file.
    #[error("no file of symbols: {0}")]
    BadSymbolFile(#[source] Box<ImageError>),
    /// A file of symbols of another kernel.
    #[error(
        "the file of symbols belongs to another kernel: {inside} of its {functions} functions lie \
         in the text of this one"
    )]
    OtherSymbols {
        /// Functions in the file.
        functions: usize,
        /// Those that lie in text.
        inside: usize,
    },
    /// A file of symbols without the one by which it is known where the kernel runs.
    #[error("the file of symbols has no {name}, by which it would be known where the kernel runs")]
    SymbolMissing {
        /// Which one.
        name: &'static str,
    },
    /// A file of symbols that has the kernel's version elsewhere.
    #[error(
        "the file of symbols belongs to another kernel: it has linux_banner at {at}, where this one \
         has no version"
    )]
    OtherBanner {
        /// Where.
        at: Gva,
    },
    /// A file of symbols that contradicts those of the kernel itself.
    #[error(
        "the file of symbols belongs to another kernel: of {names} names that this one has, too, \
         {elsewhere} are elsewhere, as {name}, at {given} by the file and at {own} by the kernel"
    )]
    OtherAddresses {
        /// Names in common.
        names: usize,
        /// Those with another address.
        elsewhere: usize,
        /// One of them.
        name: String,
        /// Its address by the file.
        given: Gva,
        /// Its address by the kernel.
        own: Gva,
    },
    /// A file of symbols with which functions do not begin at their sites.
    #[error(
        "the file of symbols belongs to another kernel: of the {listed} function sites that this one \
         lists, {sites} lie at the beginning of functions in it"
    )]
    OtherSites {
        /// Sites in the kernel's list.
        listed: usize,
        /// Those that are sites by the file.
        sites: usize,
    },
    /// No function symbols.
    #[error("the image has no function symbols: link it without -s and do not strip it")]
    NoSymbols,
    /// A Linux kernel without kallsyms.
    #[error(
        "Linux {version} carries no symbols: neither a symbol table nor kallsyms (CONFIG_KALLSYMS) was found in \
         it; its System.map and its unstripped vmlinux have them"
    )]
    NoKallsyms {
        /// Its version.
        version: String,
    },
    /// A Linux kernel whose kallsyms could not be read.
    #[error(
        "the symbols that Linux {version} carries (kallsyms) cannot be read: {why}; its System.map and its \
         unstripped vmlinux have them"
    )]
    UnreadSymbols {
        /// Its version.
        version: String,
        /// What was found instead.
        why: UnreadSymbols,
    },
    /// A Linux kernel that cannot be traced.
    #[error(
        "Linux {version} has no function sites (CONFIG_FUNCTION_TRACER is off): use a kernel that \
         is built with it, as those of Debian, Ubuntu and Fedora are{hint}"
    )]
    NoFunctionTracer {
        /// Its version.
        version: String,
        /// Why listed places were left out, if any were.
        hint: String,
    },
    /// No patch sites.
    #[error(
        "the image has no patch sites: compile it with -pg -mfentry, \
         -fpatchable-function-entry=5 or (rustc) -Z patchable-function-entry=5{hint}"
    )]
    NoSites {
        /// Why listed places were left out, if any were.
        hint: String,
    },
}

impl ImageError {
    /// Whether all that is wrong is that the kernel does not say what is where in it: a file of symbols does.
    #[must_use]
    pub const fn lacks_symbols(&self) -> bool {
        matches!(self, Self::NoKallsyms { .. } | Self::UnreadSymbols { .. })
    }

    /// Whether the file of symbols is at fault, and not the kernel.
    #[must_use]
    pub const fn is_of_symbols(&self) -> bool {
        matches!(
            self,
            Self::NotSymbols { .. }
                | Self::BadSymbolFile(_)
                | Self::OtherSymbols { .. }
                | Self::SymbolMissing { .. }
                | Self::OtherBanner { .. }
                | Self::OtherAddresses { .. }
                | Self::OtherSites { .. }
        )
    }
}
