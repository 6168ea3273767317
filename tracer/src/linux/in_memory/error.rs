//! Why a running kernel could not be read out of the guest's memory.

use image::{ImageError, UnreadSymbols};
use terms::addr::Gva;

use crate::paging::TranslateError;
use crate::target::MemoryError;

/// Why a running kernel could not be read out of the guest's memory. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoKernel {
    /// The vCPU does not run in long mode, or its tables map no kernel.
    #[error("no kernel was found in the guest's memory: {0}")]
    Tables(#[from] TranslateError),
    /// No vCPU was told where system calls enter.
    #[error(
        "no kernel was found in the guest's memory: its processor was not told yet where 64-bit system calls enter \
         (IA32_LSTAR is 0), so it starts just now, or is no 64-bit Linux; try again when it has started, or give the \
         kernel's file"
    )]
    NotTold,
    /// System calls do not enter where Linux is.
    #[error(
        "no Linux was found in the guest's memory: its system calls enter at {entry}, and a Linux has its text between \
         {start} and {end}; give the kernel's file"
    )]
    Elsewhere {
        /// Where they enter.
        entry: Gva,
        /// Where Linux begins.
        start: Gva,
        /// Where it ends.
        end: Gva,
    },
    /// What is mapped there is not executed.
    #[error(
        "no kernel was found in the guest's memory: its system calls enter at {entry}, where its page tables map \
         nothing that can be executed ({runs} runs of memory are mapped near it)"
    )]
    NotExecuted {
        /// Where they enter.
        entry: Gva,
        /// How many runs there are.
        runs: usize,
    },
    /// More is mapped than any kernel has.
    #[error(
        "{bytes} bytes are mapped around the kernel's text at {entry}, a kernel has at most {limit}: give the kernel's file"
    )]
    TooLarge {
        /// Where system calls enter.
        entry: Gva,
        /// What is mapped.
        bytes: u64,
        /// What is believed.
        limit: u64,
    },
    /// The text cannot be read.
    #[error("the kernel's text at {at} cannot be read: {why}")]
    Unreadable {
        /// Where it is mapped.
        at: Gva,
        /// Why not.
        #[source]
        why: MemoryError,
    },
    /// There is a kernel, which is no Linux.
    #[error(
        "the kernel around {entry} does not say which Linux it is ({bytes} bytes of it were read): give the kernel's file"
    )]
    NotLinux {
        /// Where system calls enter.
        entry: Gva,
        /// How many bytes were read.
        bytes: usize,
    },
    /// Names that are there and cannot be read.
    #[error(
        "the symbols of Linux {version} in the guest's memory cannot be read: {why}; give the kernel's file or its symbols"
    )]
    Unread {
        /// Which Linux.
        version: String,
        /// Why not.
        why: UnreadSymbols,
    },
    /// There are none.
    #[error(
        "Linux {version} has no names in its memory (it was built without CONFIG_KALLSYMS): give the kernel's file or \
         its symbols"
    )]
    NoNames {
        /// Which Linux.
        version: String,
    },
    /// It starts just now.
    #[error(
        "Linux {version} has not started yet (its system_state is {state}): try again when it has"
    )]
    Starting {
        /// Which Linux.
        version: String,
        /// The value of its `system_state`.
        state: u32,
    },
    /// What was read makes no image.
    #[error("the kernel in the guest's memory makes no sense: {0}")]
    Image(#[from] ImageError),
}

/// Why the places that a running kernel's own tracer keeps are not known. Functions can be traced all the same where
/// their first instructions can be displaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSites {
    /// It has no function tracer, or does not name its data.
    #[error(
        "Linux {version} names no list of its function sites (ftrace_pages_start): it was built without \
         CONFIG_FUNCTION_TRACER, or without CONFIG_KALLSYMS_ALL; only functions whose first instructions can be \
         displaced can be traced, or give the kernel's file"
    )]
    NotNamed {
        /// Which Linux.
        version: String,
    },
    /// The list makes no sense.
    #[error("the list of function sites of Linux {version} cannot be followed: {why}")]
    Broken {
        /// Which Linux.
        version: String,
        /// Why not.
        why: BrokenList,
    },
    /// It has no entries of text that stays.
    #[error(
        "the list of function sites of Linux {version} is empty: none of {listed} entries lies in its text"
    )]
    Empty {
        /// Which Linux.
        version: String,
        /// How many there are.
        listed: usize,
    },
}

/// What is wrong with the list of sites.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokenList {
    /// A part cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// It does not end.
    #[error("it goes on after {0} pages")]
    Endless(usize),
    /// A number that cannot be.
    #[error("the page at {page} says that it has {count} entries, at most {limit} are believed")]
    TooMany {
        /// Which one.
        page: Gva,
        /// What it says.
        count: u64,
        /// What is believed.
        limit: u64,
    },
}
