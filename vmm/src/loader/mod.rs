//! Puts a kernel into guest memory so that the boot vCPU can be entered: checked ELF, initial RAM disk,
//! ACPI tables, boot parameters, entry state. The order of the files is the order of the work.

mod acpi;
pub mod boot_params;
pub mod elf;
pub mod entry_state;
pub mod initrd;

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use debuginfo::DebugInfo;
use image::bzimage::{BzImage, BzImageError};
use image::given_module::{GivenModuleError, put_module};
use image::{Image, ImageError};
use linux_loader::loader::KernelLoader;
use terms::addr::{Gpa, Gva};

pub use elf::{BadElf, ElfLayout, Segment};
pub use initrd::Initrd;

use crate::layout;
use crate::memory::{Memory, Ram};

/// Files larger than this are refused before they are read.
const FILE_MAX: u64 = 1 << 30;

/// Why a kernel could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("cannot read the {what} {}: {source}; give a file that is there and that you may read", path.display())]
    Read {
        /// Kernel or initrd.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A device, a directory, …
    #[error("the {what} {} is not a regular file: give one", path.display())]
    NotAFile {
        /// Kernel or initrd.
        what: &'static str,
        /// Which file.
        path: PathBuf,
    },
    /// An absurd size.
    #[error("the {what} {} has {bytes} bytes; more than {FILE_MAX} are refused", path.display())]
    FileTooLarge {
        /// Kernel or initrd.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// No kernel can be taken out of the bzImage.
    #[error("the kernel {}: {source}", path.display())]
    BzImage {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: BzImageError,
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
    /// It cannot be put into the kernel.
    #[error("the module {}: {source}", path.display())]
    Module {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: GivenModuleError,
    },
    /// linux-loader found something that our checks did not.
    #[error("the kernel cannot be loaded: {0}")]
    Loader(#[source] linux_loader::loader::Error),
    /// A file without content.
    #[error("the initrd {} is empty: make it again, or leave --initrd out", path.display())]
    EmptyInitrd {
        /// Which file.
        path: PathBuf,
    },
    /// An initrd that does not fit after the kernel.
    #[error(
        "the initrd has {bytes} bytes, after the kernel there is room for {room}; raise --memory"
    )]
    InitrdTooLarge {
        /// Its size.
        bytes: u64,
        /// Bytes between the kernel's end and the end of the RAM that can hold it.
        room: u64,
    },
    /// No memory where a boot structure belongs.
    #[error("{what} does not fit the guest's RAM at {at}; raise --memory")]
    NoRoom {
        /// Which structure.
        what: &'static str,
        /// Where.
        at: Gpa,
    },
    /// A command line with NUL or newline.
    #[error("--cmdline contains a NUL or a newline: leave it out")]
    CommandLineBytes,
    /// A command line that does not fit.
    #[error("--cmdline has {bytes} bytes with ` vcpus=N`; at most {} fit", layout::CMDLINE_MAX - 1)]
    CommandLineTooLong {
        /// Its length.
        bytes: usize,
    },
}

/// A kernel file, read once: what is checked is what is loaded and what the tracer parses. Of a
/// bzImage that is the ELF file inside.
#[derive(Debug, Clone)]
pub struct KernelFile {
    path: PathBuf,
    bytes: Arc<Vec<u8>>,
    setup_header: Vec<u8>,
    symbols: Option<SymbolFile>,
}

/// A file of symbols, read.
#[derive(Debug, Clone)]
struct SymbolFile {
    path: PathBuf,
    bytes: Arc<Vec<u8>>,
}

impl KernelFile {
    /// Reads the file at `path`, and unpacks it if it is a bzImage.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing, unreadable, no regular file, absurdly large, or a bzImage
    /// without a kernel in it.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let bytes = read_file("kernel", path)?;
        if BzImage::recognise(&bytes) {
            return Self::unpack(path, &bytes);
        }
        Ok(Self {
            path: path.to_path_buf(),
            bytes: Arc::new(bytes),
            setup_header: Vec::new(),
            symbols: None,
        })
    }

    fn unpack(path: &Path, file: &[u8]) -> Result<Self, LoadError> {
        let path = path.to_path_buf();
        let unpacked = BzImage::parse(file).and_then(|image| {
            let setup_header = image.setup_header().to_vec();
            Ok((image.unpack()?, setup_header))
        });
        match unpacked {
            Ok((bytes, setup_header)) => Ok(Self {
                path,
                bytes: Arc::new(bytes),
                setup_header,
                symbols: None,
            }),
            Err(source) => Err(LoadError::BzImage { path, source }),
        }
    }

    /// Takes the symbols from the file at `path`, if there is one, not from the kernel.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing, unreadable, no regular file or absurdly large.
    pub fn with_symbols(mut self, path: Option<&Path>) -> Result<Self, LoadError> {
        let read = |path: &Path| {
            let bytes = Arc::new(read_file("file of symbols", path)?);
            let path = path.to_path_buf();
            Ok(SymbolFile { path, bytes })
        };
        self.symbols = path.map(read).transpose()?;
        Ok(self)
    }

    /// Puts the module in the file at `path`, if there is one, in the place of the one that the kernel has linked
    /// in.
    ///
    /// # Errors
    /// [`LoadError`] when it is missing, unreadable, no regular file, or no module that the kernel could load.
    pub fn with_module(mut self, path: Option<&Path>) -> Result<Self, LoadError> {
        if let Some(path) = path {
            let module = read_file("module", path)?;
            put_module(Arc::<Vec<u8>>::make_mut(&mut self.bytes), &module).map_err(|source| {
                LoadError::Module {
                    path: path.to_path_buf(),
                    source,
                }
            })?;
        }
        Ok(self)
    }

    /// What the tracer needs to know of the kernel.
    ///
    /// # Errors
    /// [`ImageError`] that says what is wrong with the kernel or its file of symbols.
    pub fn image(&self) -> Result<Image, ImageError> {
        match &self.symbols {
            Some(symbols) => Image::parse_with_symbols(&self.bytes, &symbols.bytes),
            None => Image::parse(&self.bytes),
        }
    }

    /// Why its image is refused: the file that is at fault, what is wrong with it, and what mends that.
    #[must_use]
    pub fn refused(&self, error: &ImageError) -> String {
        let file = match &self.symbols {
            Some(symbols) if error.is_of_symbols() => {
                format!("the symbols {}", symbols.path.display())
            }
            _ => format!("the kernel {}", self.path.display()),
        };
        let remedy = match error.lacks_symbols() {
            true => ": give one with --symbols",
            false => "",
        };
        format!("{file}: {error}{remedy}")
    }

    /// What its files say of variables and types.
    #[must_use]
    pub fn debug(&self) -> Option<DebugInfo> {
        let symbols = self.symbols.as_ref();
        let symbols = symbols.map(|symbols| Arc::clone(&symbols.bytes));
        DebugInfo::read(Arc::clone(&self.bytes), symbols).ok()
    }

    /// Whether it calls itself a Linux. That is asked before anything of it is read.
    #[must_use]
    pub fn is_linux(&self) -> bool {
        image::linux::banner(Gva(0), &self.bytes).is_some()
    }

    /// Where it was read from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's ELF file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The setup header of a bzImage (`boot_params.hdr`, as far as the file has it), else empty.
    #[must_use]
    pub fn setup_header(&self) -> &[u8] {
        &self.setup_header
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

/// Reads a file of sane size that is one.
fn read_file(what: &'static str, path: &Path) -> Result<Vec<u8>, LoadError> {
    let owned = || path.to_path_buf();
    let unreadable = |source| LoadError::Read {
        what,
        path: owned(),
        source,
    };
    let status = std::fs::metadata(path).map_err(unreadable)?;
    if !status.is_file() {
        let path = owned();
        return Err(LoadError::NotAFile { what, path });
    }
    if status.len() > FILE_MAX {
        return Err(LoadError::FileTooLarge {
            what,
            path: owned(),
            bytes: status.len(),
        });
    }
    std::fs::read(path).map_err(unreadable)
}

/// What a kernel is started with.
#[derive(Debug, Clone, Copy)]
pub struct BootOptions<'a> {
    /// Its command line, before ` vcpus=N` is added.
    pub cmdline: &'a str,
    /// How many vCPUs there are.
    pub vcpus: u64,
    /// Its initial RAM disk.
    pub initrd: Option<&'a Initrd>,
}

/// Loads `kernel` with its initial RAM disk, ACPI tables, boot parameters and page tables.
///
/// # Errors
/// [`LoadError`]; the memory's contents are then undefined.
pub fn load(
    ram: &Ram,
    kernel: &KernelFile,
    options: &BootOptions<'_>,
) -> Result<ElfLayout, LoadError> {
    let layout = kernel.check(ram.memory())?;
    let mut image = Cursor::new(kernel.bytes());
    linux_loader::loader::Elf::load(ram.map(), None, &mut image, None)
        .map_err(LoadError::Loader)?;
    let place = |initrd: &Initrd| initrd.place(ram, &layout);
    let found = boot_params::Found {
        initrd: options.initrd.map(place).transpose()?,
        rsdp: acpi::write(ram, options.vcpus)?,
    };
    boot_params::write(ram, options, found)?;
    entry_state::write_tables(ram).map_err(|_| LoadError::NoRoom {
        what: "the entry state",
        at: layout::GDT,
    })?;
    Ok(layout)
}
