//! What the files of a kernel say beyond what [`Image`](super::Image) keeps: the bytes of its text, and where
//! variables are and what types they have. Nothing is read before somebody asks.

mod error;
pub(crate) mod place;
pub(crate) mod shape;

use std::sync::Arc;

pub use error::DebugError;
pub use place::{Piece, Place};
pub use shape::{Member, Moment, Shape, Slice, Structure, TypeId, Variable};

use super::ImageError;
use super::elf::Elf;
use crate::addr::Gva;

/// The files of a kernel, to be asked for variables and types.
#[derive(Debug)]
pub struct DebugInfo {
    kernel: Arc<Vec<u8>>,
    #[expect(dead_code, reason = "DWARF follows")]
    symbols: Option<Arc<Vec<u8>>>,
}

impl DebugInfo {
    /// Of a kernel's ELF file, and of its file of symbols, if it has one (an unstripped `vmlinux` has debug information, too).
    ///
    /// # Errors
    /// An [`ImageError`] when the kernel is no ELF file.
    pub fn read(kernel: Arc<Vec<u8>>, symbols: Option<Arc<Vec<u8>>>) -> Result<Self, ImageError> {
        Elf::parse(&kernel)?;
        Ok(Self { kernel, symbols })
    }

    /// The bytes of text at an address, as linked; fewer where the file holds fewer.
    #[must_use]
    pub fn text(&self, address: Gva, length: u64) -> &[u8] {
        match Elf::parse(&self.kernel) {
            Ok(elf) => elf.bytes_at(address, length),
            Err(_) => &[],
        }
    }

    /// What values of a type are made of.
    ///
    /// # Errors
    /// [`DebugError::Damaged`].
    pub fn shape(&self, of: TypeId) -> Result<Shape, DebugError> {
        Err(DebugError::Damaged(format!("{of:?}")))
    }

    /// What a type is called.
    #[must_use]
    pub fn type_name(&self, of: TypeId) -> String {
        format!("{of:?}")
    }

    /// The variable that `name` means there and then.
    ///
    /// # Errors
    /// A [`DebugError`] that says why it is not known.
    pub fn variable(&self, _moment: Moment, name: &str) -> Result<Variable, DebugError> {
        Err(DebugError::Absent {
            what: format!("`{name}`"),
        })
    }

    /// All parameters of the function, in their order.
    ///
    /// # Errors
    /// A [`DebugError`] that says why they are not known.
    pub fn parameters(&self, _moment: Moment) -> Result<Vec<Variable>, DebugError> {
        Err(DebugError::Absent {
            what: "$args".to_owned(),
        })
    }

    /// What the function that begins at `address` returns; `None` if it returns nothing.
    ///
    /// # Errors
    /// A [`DebugError`] that says why it is not known.
    pub fn returned(&self, _address: Gva) -> Result<Option<Variable>, DebugError> {
        Err(DebugError::Absent {
            what: "$retval".to_owned(),
        })
    }

    /// Where the code for a line begins, by address.
    ///
    /// # Errors
    /// A [`DebugError`] that says why it is not known.
    pub fn line(&self, file: &str, line: u64) -> Result<Vec<Gva>, DebugError> {
        Err(DebugError::Absent {
            what: format!("{file}:{line}"),
        })
    }
}
