//! Puts a kernel into guest memory so that the boot vCPU can be entered: checked ELF, boot
//! parameters, entry state. The order of the files is the order of the work.

pub mod boot_params;
pub mod elf;
pub mod entry_state;

use std::io::Cursor;
use std::path::{Path, PathBuf};

use linux_loader::loader::KernelLoader;
use tracer::addr::Gpa;

pub use elf::{BadElf, ElfLayout, Segment};

use crate::layout;
use crate::memory::Memory;

/// Kernels larger than this are refused before they are read.
const FILE_MAX: u64 = 1 << 30;

/// Why a kernel could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("cannot read the kernel {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A device, a directory, …
    #[error("the kernel {} is not a regular file", path.display())]
    NotAFile {
        /// Which file.
        path: PathBuf,
    },
    /// An absurd size.
    #[error("the kernel {} has {bytes} bytes; more than {FILE_MAX} are refused", path.display())]
    FileTooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The headers are wrong.
    #[error("the kernel {}: {source}", path.display())]
    Elf {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: BadElf,
    },
    /// linux-loader found something that our checks did not.
    #[error("the kernel cannot be loaded: {0}")]
    Loader(#[source] linux_loader::loader::Error),
    /// No memory where a boot structure belongs.
    #[error("{what} does not fit the guest's RAM at {at}; raise --memory")]
    NoRoom {
        /// Which structure.
        what: &'static str,
        /// Where.
        at: Gpa,
    },
    /// A command line with NUL or newline.
    #[error("--cmdline contains a NUL or a newline")]
    CommandLineBytes,
    /// A command line that does not fit.
    #[error("--cmdline has {bytes} bytes with ` vcpus=N`; at most {} fit", layout::CMDLINE_MAX - 1)]
    CommandLineTooLong {
        /// Its length.
        bytes: usize,
    },
}

/// A kernel file, read once: what is checked is what is loaded and what the tracer parses.
#[derive(Debug, Clone)]
pub struct KernelFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl KernelFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing, unreadable, no regular file or absurdly large.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let path = path.to_path_buf();
        let status = match std::fs::metadata(&path) {
            Ok(status) => status,
            Err(source) => return Err(LoadError::Read { path, source }),
        };
        if !status.is_file() {
            return Err(LoadError::NotAFile { path });
        }
        if status.len() > FILE_MAX {
            return Err(LoadError::FileTooLarge {
                path,
                bytes: status.len(),
            });
        }
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Self { path, bytes }),
            Err(source) => Err(LoadError::Read { path, source }),
        }
    }

    /// Where it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Checks the ELF headers against guest memory.
    ///
    /// # Errors
    /// [`LoadError::Elf`] that names what is wrong.
    pub fn check(&self, memory: &Memory) -> Result<ElfLayout, LoadError> {
        let ram_end = Gpa(memory.ram_bytes().min(layout::MMIO_HOLE_START.0));
        elf::check(&self.bytes, ram_end).map_err(|source| LoadError::Elf {
            path: self.path.clone(),
            source,
        })
    }
}

/// Loads `kernel` with its boot parameters and page tables.
///
/// # Errors
/// [`LoadError`]; the memory's contents are then undefined.
pub fn load(
    memory: &mut Memory,
    kernel: &KernelFile,
    cmdline: &str,
    vcpus: u64,
) -> Result<ElfLayout, LoadError> {
    let layout = kernel.check(memory)?;
    let mut image = Cursor::new(kernel.bytes());
    linux_loader::loader::Elf::load(memory.map(), None, &mut image, None)
        .map_err(LoadError::Loader)?;
    boot_params::write(memory, cmdline, vcpus)?;
    entry_state::write_tables(memory).map_err(|_| LoadError::NoRoom {
        what: "the entry state",
        at: layout::GDT,
    })?;
    Ok(layout)
}
