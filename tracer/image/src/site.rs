//! Patch sites: the one instruction in each function's entry that tracing rewrites, and the
//! reasons why some functions and some listed places have none.

use std::fmt;
use std::sync::Arc;

use terms::addr::Gva;
use terms::function::FunctionId;
use terms::site::{HexBytes, SITE_LENGTH, SiteBytes};

/// A place in a function that can be rewritten to reach a stub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Where the five bytes lie.
    pub address: Gva,
    /// The function they belong to.
    pub function: FunctionId,
    /// The raw (mangled) name of that function.
    pub symbol: Arc<str>,
    /// How the compiler made the site.
    pub kind: SiteKind,
    /// What its bytes are in the image.
    pub form: SiteForm,
    /// The bytes in the image.
    pub original: [u8; SITE_LENGTH],
}

/// How the compiler made a site, and so where in the function it sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SiteKind {
    /// `-pg -mfentry`: before the prologue; the return address is on top of the stack.
    Fentry,
    /// Plain `-pg`: after the prologue; the caller's return address is at `8(%rbp)`.
    Mcount,
    /// `-fpatchable-function-entry`, `-Z patchable-function-entry`: before the prologue.
    Patchable,
    /// Not at all: it is the function's first instructions.
    Displaced,
}

impl SiteKind {
    /// The word for it in listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Mcount => "mcount",
            Self::Patchable => "patchable",
            Self::Displaced => "displaced",
        }
    }
}

/// What the bytes of a site are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteForm {
    /// One five-byte nop: can be patched as it is.
    Nop5,
    /// A call of the profiling function, to be normalised before the guest runs.
    RawCall {
        /// What it calls.
        target: Gva,
    },
    /// The same in a guest that makes its sites nops itself and has not made this one: it stays a call, and comes back as one.
    LeftCall,
    /// Several nops: a thread can be preempted between them. To be normalised before the guest
    /// runs.
    MultiNop,
    /// Instructions that do something: they are displaced into a detour.
    One(SiteBytes),
    /// Several of them: no thread may be between them when they are.
    Several(SiteBytes),
}

impl SiteForm {
    /// The instructions that are displaced, if any are.
    #[must_use]
    pub const fn displaced(&self) -> Option<&SiteBytes> {
        match self {
            Self::One(bytes) | Self::Several(bytes) => Some(bytes),
            Self::Nop5 | Self::RawCall { .. } | Self::LeftCall | Self::MultiNop => None,
        }
    }

    /// The word for it in listings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop5 => "nop5",
            Self::RawCall { .. } => "call",
            Self::LeftCall => "left call",
            Self::MultiNop => "multi-nop",
            Self::One(_) => "one",
            Self::Several(_) => "several",
        }
    }
}

/// A function symbol without a usable site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untraceable {
    /// The function.
    pub function: FunctionId,
    /// Its raw (mangled) name.
    pub symbol: Arc<str>,
    /// Where it begins.
    pub address: Gva,
    /// Why it cannot be traced.
    pub reason: UntraceableReason,
}

/// Why a function cannot be traced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UntraceableReason {
    /// It lies outside executable text.
    OutsideText,
    /// It was compiled without instrumentation (`notrace`), or it is assembly.
    NotInstrumented,
    /// A place in it was listed, but could not become a site.
    Skipped(SkipReason),
    /// It has no site, and its entry cannot be displaced either.
    NotDisplaced {
        /// The reason without what is particular to it.
        class: &'static str,
        /// The whole reason.
        why: Arc<str>,
    },
}

impl UntraceableReason {
    /// The reason without what is particular to one function: for totals.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::OutsideText => "not in executable text",
            Self::NotInstrumented => "no patch site",
            Self::Skipped(reason) => reason.class(),
            Self::NotDisplaced { class, .. } => class,
        }
    }
}

impl fmt::Display for UntraceableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideText => f.write_str("not in executable text"),
            Self::NotInstrumented => {
                f.write_str("no patch site: compiled without instrumentation, notrace or assembly")
            }
            Self::Skipped(reason) => reason.fmt(f),
            Self::NotDisplaced { why, .. } => write!(f, "no patch site, and {why}"),
        }
    }
}

/// A listed place that did not become a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedSite {
    /// The address in the list.
    pub address: Gva,
    /// The function it lies in, if in one.
    pub function: Option<FunctionId>,
    /// The bytes there, as many as the image holds (at most 8).
    pub bytes: Vec<u8>,
    /// Why it was left out.
    pub reason: SkipReason,
}

/// Why a listed place did not become a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipReason {
    /// It lies outside executable text.
    OutsideText,
    /// Fewer than five bytes of the file lie there.
    NoBytes,
    /// No function symbol covers it.
    NoFunction,
    /// The five bytes would reach past the function's end.
    CrossesEnd,
    /// Its bytes are no nop and no call of the profiling function.
    UnexpectedBytes(Vec<u8>),
    /// It calls something that is not the profiling function.
    ForeignCall {
        /// What it calls.
        target: Gva,
    },
    /// A six-byte call through the GOT or with a prefix, as position-independent code has it.
    IndirectCall,
    /// It lies further in a function than a call of `__fentry__` can: it belongs to a function whose
    /// name the linker dropped (a weak one that another one overrides).
    InsideFunction {
        /// Bytes from the beginning of the function.
        offset: u64,
    },
    /// The function has a site already, at that address.
    SecondSite {
        /// The site that is kept.
        first: Gva,
    },
    /// A call of the profiling function that is not in the list by which a kernel makes its sites nops: it stays
    /// a call.
    Unlisted,
}

impl SkipReason {
    /// The reason without what is particular to one place: for totals.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::OutsideText => "not in executable text",
            Self::NoBytes => "too few bytes",
            Self::NoFunction => "in no function symbol",
            Self::CrossesEnd => "reaches past the function's end",
            Self::UnexpectedBytes(_) => "unexpected bytes",
            Self::ForeignCall { .. } => "calls something else",
            Self::IndirectCall => "6-byte call of position-independent code",
            Self::InsideFunction { .. } => "not at a function's beginning",
            Self::SecondSite { .. } => "second site in its function",
            Self::Unlisted => "not in the kernel's list",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideText => f.write_str("not in executable text"),
            Self::NoBytes => f.write_str("fewer than 5 bytes of the image lie there"),
            Self::Unlisted => f.write_str("a call that the kernel's own list does not have"),
            Self::NoFunction => f.write_str("in no function symbol"),
            Self::CrossesEnd => f.write_str("its 5 bytes reach past the end of the function"),
            Self::UnexpectedBytes(bytes) => {
                write!(
                    f,
                    "unexpected bytes {}, expected a nop or a call",
                    HexBytes(bytes)
                )
            }
            Self::ForeignCall { target } => {
                write!(f, "calls {target}, which is not mcount or __fentry__")
            }
            Self::IndirectCall => {
                f.write_str("6-byte call of position-independent code: build with -fno-pic")
            }
            Self::InsideFunction { offset } => {
                write!(
                    f,
                    "{offset:#x} bytes into the function: of one without a name"
                )
            }
            Self::SecondSite { first } => {
                write!(f, "second site in its function, the first is at {first}")
            }
        }
    }
}
