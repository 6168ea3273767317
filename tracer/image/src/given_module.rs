//! A module that is given as a file, in the place of the one that is linked into a kernel's image.
//!
//! It is put into the image's own bytes before anything else reads them: what the guest loads is then what
//! we know of it.

use terms::addr::Gva;

use super::elf::Elf;
use super::parts::MODULE;
use super::{Image, ImageError, Segment};

/// Why a module cannot be put into an image.
#[derive(Debug, thiserror::Error)]
pub enum GivenModuleError {
    /// The kernel has no module of its own.
    #[error("the kernel loads no module: it has no section {MODULE}*")]
    NoRoom,
    /// It does not fit.
    #[error("it has {bytes} bytes, the kernel has room for {room}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest that fits.
        room: usize,
    },
    /// The file is damaged, or something else.
    #[error("it is no module: {0}")]
    Image(#[from] ImageError),
    /// The guest copies one segment, and calls its first byte.
    #[error(
        "it must be one executable segment without .bss, entered at its first byte (it has {segments} segments, and is entered at {entry})"
    )]
    Shape {
        /// Load segments.
        segments: usize,
        /// Its entry point.
        entry: Gva,
    },
    /// It was linked to another place.
    #[error("it is linked to {found}, the kernel loads modules to {expected}")]
    Elsewhere {
        /// Where it is linked.
        found: Gva,
        /// Where the kernel's own is.
        expected: Gva,
    },
    /// Nothing in it could be traced or called.
    #[error("it has no functions")]
    NoFunctions,
}

/// Puts `module` in the place of the first module that is linked into the image of a kernel.
///
/// # Errors
/// A [`GivenModuleError`]; then the image is as it was.
pub fn put_module(kernel: &mut [u8], module: &[u8]) -> Result<(), GivenModuleError> {
    let (place, own) = room(kernel)?;
    let room = place.len().saturating_sub(1);
    if module.len() > room {
        let bytes = module.len();
        return Err(GivenModuleError::TooLarge { bytes, room });
    }
    let elf = Elf::parse(module)?;
    let segment = only_segment(&elf)?;
    if segment.vaddr != own {
        return Err(GivenModuleError::Elsewhere {
            found: segment.vaddr,
            expected: own,
        });
    }
    if Image::alone(&elf)?.functions.is_empty() {
        return Err(GivenModuleError::NoFunctions);
    }
    let place = kernel.get_mut(place).unwrap_or_default();
    for (index, byte) in place.iter_mut().enumerate() {
        *byte = module.get(index).copied().unwrap_or_default();
    }
    Ok(())
}

/// Which bytes of the kernel's file are those of its module, and where that is linked.
fn room(kernel: &[u8]) -> Result<(std::ops::Range<usize>, Gva), GivenModuleError> {
    let elf = Elf::parse(kernel).map_err(|_| GivenModuleError::NoRoom)?;
    let sections = elf.sections_starting_with(MODULE);
    let (_, own) = sections.first().ok_or(GivenModuleError::NoRoom)?;
    // The section is a part of the file, so the distance of the two is its offset.
    let start = (own.as_ptr() as usize).checked_sub(kernel.as_ptr() as usize);
    let start = start.ok_or(GivenModuleError::NoRoom)?;
    let linked = only_segment(&Elf::parse(own)?)?.vaddr;
    Ok((start..start + own.len(), linked))
}

fn only_segment(elf: &Elf<'_>) -> Result<Segment, GivenModuleError> {
    let segments = elf.segments();
    match segments.as_slice() {
        [only] if only.execute && only.filesz == only.memsz && only.vaddr.0 == elf.entry => {
            Ok(*only)
        }
        _ => Err(GivenModuleError::Shape {
            segments: segments.len(),
            entry: Gva(elf.entry),
        }),
    }
}

#[cfg(test)]
mod tests {
    use insn::nop::NOP5;

    use super::*;
    use crate::testing::{ElfFile, TEXT, body};

    const AWAY: u64 = TEXT + 0x80_0000;

    fn module(at: u64, name: &'static str) -> Vec<u8> {
        let text = [body(&NOP5), body(&[0xc3])].concat();
        let file = ElfFile::new().text(at, &text).function(name, at, 16);
        let mut bytes = file.build();
        bytes[24..32].copy_from_slice(&at.to_le_bytes());
        bytes
    }

    fn kernel() -> Vec<u8> {
        let mut room = module(AWAY, "own");
        room.extend([0; 512]);
        ElfFile::new()
            .text(TEXT, &body(&NOP5))
            .function("kernel", TEXT, 16)
            .data(".module.one", TEXT - 0x7_0000, &room)
            .build()
    }

    fn functions(kernel: &[u8]) -> Vec<String> {
        let image = Image::parse(kernel).unwrap();
        let names = image.functions.iter();
        names.map(|function| function.name.to_string()).collect()
    }

    #[test]
    fn a_module_takes_the_place_of_the_linked_one() {
        let mut kernel = kernel();
        assert_eq!(functions(&kernel), ["kernel", "own"]);
        put_module(&mut kernel, &module(AWAY, "given")).unwrap();
        assert_eq!(functions(&kernel), ["kernel", "given"]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let kernel = kernel();
        let bare = ElfFile::new().text(TEXT, &body(&NOP5)).build();
        let good = module(AWAY, "given");
        let cases = [
            (&bare, good.clone(), "the kernel loads no module"),
            (&kernel, module(AWAY + 0x1000, "x"), "it is linked to"),
            (&kernel, [&good[..], &[0; 600]].concat(), "has room for"),
            (&kernel, b"#!/bin/sh\n".to_vec(), "it is no module"),
            (&kernel, Vec::new(), "it is no module"),
        ];
        for (kernel, module, expected) in cases {
            let mut changed = kernel.clone();
            let error = put_module(&mut changed, &module).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(&changed, kernel, "{expected}");
        }
        for length in 0..good.len() {
            // Cut off in a part that nobody needs it is a module; otherwise it is refused.
            let _ = put_module(&mut kernel.clone(), &good[..length]);
        }
    }
}
